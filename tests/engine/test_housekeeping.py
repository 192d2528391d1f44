"""What housekeeping does beside the store, which tests/storage covers: it returns freed memory."""

import platform
from pathlib import Path

import pytest

from comln_serve.engine.classifiers.housekeeping import Housekeeping
from comln_serve.storage import Store
from tests.support.processes import memory
from tests.support.waiting import wait_until

BLOCK = 16 * 2**10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators return memory by themselves, or cannot")
def test_memory_between_blocks_in_use_is_returned(tmp_path: Path) -> None:
    blocks = [b"x" * BLOCK for _ in range(8192)]
    still_used = blocks[::64]  # so that what is freed does not lie at the heap's end
    del blocks
    before = memory("self")
    store = Store(f"sqlite:///{tmp_path}/classifiers.db")
    housekeeping = Housekeeping(store)
    try:
        wait_until(lambda: memory("self") < before - 4096 * BLOCK)
    finally:
        housekeeping.close()
        store.close()
    assert len(still_used) == 128
