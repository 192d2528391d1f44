"""Images that are small as files and large in memory: many at once must not add up."""

import gc
import io
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import httpx2
import pytest
from PIL import Image

from comln_serve.errors import ServiceError
from comln_serve.imaging import open_image
from comln_serve.imaging.room import SMALL, Room
from tests.live import live_server
from tests.messages import adapt_form, predict_form

MB = 2**20
SIDE = 5000


def solid(mode: str, side: int = SIDE, fmt: str = "PNG", **options: int) -> bytes:
    buffer = io.BytesIO()
    colour = {"RGBA": (200, 30, 30, 128), "LA": (90, 128), "RGB": (200, 30, 30), "P": 3}[mode]
    Image.new(mode, (side, side), colour).save(buffer, fmt, compress_level=1, **options)
    return buffer.getvalue()


def progressive(side: int = SIDE) -> bytes:
    """A JPEG of which all coefficients are in memory until the last scan has been read."""
    buffer = io.BytesIO()
    picture = Image.new("CMYK", (side, side), (9, 80, 3, 20))
    picture.save(buffer, "JPEG", progressive=True, subsampling=0)
    return buffer.getvalue()


def memory(process: int, field: str) -> float:
    """MB: VmRSS, what is in memory, or VmHWM, the most that ever was."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field}")


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads what Linux shows in /proc"
)
@pytest.mark.timeout(300)
def test_large_images_at_once_take_the_memory_of_one(models_dir: Path, tmp_path: Path) -> None:
    """Eight images of 25 million pixels where 30 are allowed; each takes 200 MB, or 300."""
    pictures = [solid("RGBA"), solid("LA"), solid("P", transparency=3), progressive()]
    damaged = pictures[0][: len(pictures[0]) // 2]
    flags = ("--default-model", "tiny", "--max-image-pixels", "30000000")
    with live_server(models_dir, tmp_path, *flags) as server:
        made = httpx2.post(f"{server.url}/adapt", **adapt_form(name="known"))
        assert made.status_code == 201
        process = server.process.pid
        before = memory(process, "VmRSS")

        def predict(picture: bytes) -> int:
            form = predict_form(picture)
            return httpx2.post(f"{server.url}/predict", **form, timeout=120).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(predict, pictures * 2)) == {200}
            assert set(pool.map(predict, [damaged] * 8)) == {422}
        assert memory(process, "VmHWM") - before < 20 * SIDE * SIDE / MB
        end = time.monotonic() + 30
        while memory(process, "VmRSS") - before > 64 and time.monotonic() < end:
            time.sleep(0.1)
        assert memory(process, "VmRSS") - before <= 64, "what was freed is given back"


def test_images_have_room_up_to_the_limit_and_small_ones_always() -> None:
    room, limit = Room(), 3 * SMALL
    half = 2 * SMALL
    entered = Event()

    def another() -> None:
        with room.hold(half, limit):
            entered.set()

    with ThreadPoolExecutor(1) as pool:
        with room.hold(half, limit):
            waiting = pool.submit(another)
            with room.hold(SMALL, limit):
                assert not entered.wait(0.2)
        waiting.result(30)


def test_who_is_not_wanted_any_more_leaves_the_line() -> None:
    room, limit = Room(), 2 * SMALL
    behind = Event()

    def gone() -> None:
        raise KeyError

    def another() -> None:
        with room.hold(limit, limit):
            behind.set()

    with ThreadPoolExecutor(1) as pool:
        with room.hold(limit, limit):
            with pytest.raises(KeyError), room.hold(limit, limit, gone):
                raise AssertionError
            waiting = pool.submit(another)
            assert not behind.wait(0.2)
        waiting.result(30)


def test_the_error_of_a_damaged_image_does_not_keep_its_pixels() -> None:
    """As long as the collector of cycles has not come by: errors are kept in some."""
    kept: list[ServiceError] = []
    whole = solid("RGBA", 1000)
    file = open_image(whole[: len(whole) // 2])
    picture = weakref.ref(file.picture)
    gc.disable()
    try:
        with pytest.raises(ServiceError) as caught:
            file.decode()
        kept.append(caught.value)
        del file
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None
        left = picture()
        if left is not None:
            with pytest.raises(ValueError, match="closed"):
                left.getpixel((0, 0))
    finally:
        gc.enable()


def test_an_image_over_the_limit_is_alone_and_nobody_waits_for_ever() -> None:
    room, start = Room(), Barrier(16)
    inside: list[int] = []

    def one(number: int) -> None:
        start.wait(30)
        for _ in range(50):
            pixels = (number + 1) * SMALL
            with room.hold(pixels, 4 * SMALL):
                if pixels > SMALL:
                    inside.append(pixels)
                    seen = list(inside)
                    assert sum(seen) <= 4 * SMALL or len(seen) == 1
                    inside.remove(pixels)

    with ThreadPoolExecutor(16) as pool:
        for task in [pool.submit(one, number) for number in range(16)]:
            task.result(60)
    assert not inside


def test_what_fails_inside_leaves_its_room() -> None:
    room = Room()
    for _ in range(3):
        with pytest.raises(KeyError), room.hold(2 * SMALL, 2 * SMALL):
            raise KeyError
    with room.hold(2 * SMALL, 2 * SMALL):
        pass
