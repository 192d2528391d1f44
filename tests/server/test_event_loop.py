"""A selector that deals out what is ready in portions: each socket in its turn, and none that has changed meanwhile."""

import asyncio
import itertools
import selectors
import socket
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from comln_serve.server.event_loop import PORTION, Portions, new_event_loop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no selector for this")
MANY = 2 * PORTION + 3


@contextmanager
def readable(count: int) -> Generator[list[socket.socket], None, None]:
    """Sockets with a byte to read each."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(count)]
        for reading, writing in pairs:
            stack.enter_context(reading)
            stack.enter_context(writing)
            writing.send(b"x")
        yield [reading for reading, _ in pairs]


def served(selector: selectors.BaseSelector) -> list[socket.socket]:
    """Sockets that have their turn now."""
    found = [(key.fileobj, events) for key, events in selector.select(0)]
    assert all(events == selectors.EVENT_READ for _, events in found)
    return [ready for ready, _ in found if isinstance(ready, socket.socket)]


def test_all_that_is_ready_has_its_turn() -> None:
    with readable(MANY) as sockets, Portions() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        for _ in range(2):  # nothing is read, so all of them are ready again
            portions = [served(selector) for _ in range(3)]
            assert [len(portion) for portion in portions] == [PORTION, PORTION, MANY - 2 * PORTION]
            assert set(itertools.chain(*portions)) == set(sockets)


def test_what_has_changed_since_it_was_ready_has_no_turn() -> None:
    with readable(MANY) as sockets, Portions() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        first = served(selector)
        waiting = [one for one in sockets if one not in first]
        gone, changed, registered_anew = waiting[:3]
        selector.unregister(gone)
        selector.modify(changed, selectors.EVENT_WRITE)
        selector.unregister(registered_anew)
        selector.register(registered_anew, selectors.EVENT_READ, data="another")
        assert set(served(selector) + served(selector)) == set(waiting[3:])
        selector.modify(changed, selectors.EVENT_READ)
        rest = list(itertools.chain(*(served(selector) for _ in range(3))))
        assert set(rest) == set(sockets) - {gone}


def test_it_waits_where_nothing_is_ready() -> None:
    with readable(1) as (one,), Portions() as selector:
        selector.register(one, selectors.EVENT_READ)
        assert served(selector) == [one]
        one.recv(1)
        assert selector.select(0.01) == []


def test_a_pass_of_the_event_loop_serves_few_sockets() -> None:
    passes = Counter[int]()
    current = 0

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def count() -> None:
            passes[current] += 1

        for one in sockets:
            loop.add_reader(one, count)
        nonlocal current
        while current < 10:
            current += 1
            await asyncio.sleep(0)
        for one in sockets:
            loop.remove_reader(one)

    with readable(MANY) as sockets, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
    assert passes.total() > MANY  # all, and some again
    assert max(passes.values()) <= PORTION
