"""Images that are small as files and large in memory: their pixels in memory at a time are bounded."""

import gc
import io
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.decoders import Decoders
from comln_serve.engine.embedding.job import Job
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import FORMATS, ImageError, ImageFile, Preprocessing, StoppedError, fit_views, open_image
from tests.support import http
from tests.support.hostile_files import webp_bomb
from tests.support.image_files import image_bytes, with_text
from tests.support.live import live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.processes import memory, needs_proc
from tests.support.waiting import wait_until

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


@pytest.mark.slow
@needs_proc
@pytest.mark.timeout(300)
def test_large_images_at_once_take_the_memory_of_one(models_dir: Path, tmp_path: Path) -> None:
    """Eight images of 25 million pixels where 30 are allowed; each takes 200 MB, or 300."""
    pictures = [solid("RGBA"), solid("LA"), solid("P", transparency=3), progressive()]
    damaged = pictures[0][: len(pictures[0]) // 2]
    flags = ("--default-model", "tiny", "--max-image-pixels", "30000000")
    flags += ("--max-queue-seconds", "120")
    with live_server(models_dir, tmp_path, *flags) as server:
        made = http.post(f"{server.url}/adapt", **adapt_form(name="known"))
        assert made.status_code == 201
        process = server.process.pid
        before = memory(process)

        def predict(picture: bytes) -> int:
            form = predict_form(picture)
            return http.post(f"{server.url}/predict", **form, timeout=120).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(predict, pictures * 2)) == {200}
            assert set(pool.map(predict, [damaged] * 8)) == {422}
        assert memory(process, "VmHWM") - before < 20 * SIDE * SIDE
        wait_until(lambda: memory(process) - before <= 64 * MB)  # what was freed is given back


def test_the_error_of_a_damaged_image_does_not_keep_its_pixels() -> None:
    """As long as the collector of cycles has not come by: errors are kept in some."""
    kept: list[ImageError] = []
    whole = solid("RGBA", 1000)
    file = open_image(whole[: len(whole) // 2])
    picture = weakref.ref(file.picture)
    gc.disable()
    try:
        with pytest.raises(ImageError) as caught:
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


@pytest.fixture
def decoders() -> Iterator[Decoders]:
    """Two threads, and one for large images."""
    decoders = Decoders(2, 2 * SIDE * SIDE, FORMATS, 30.0)
    yield decoders
    decoders.close()


def waiting_pixels(decoders: Decoders) -> int:
    """Of the large images that wait."""
    with decoders._lock:
        return sum(file.pixels for upload in decoders._large.members("") for _, file in upload.large)


POLICY = Preprocessing(image_size=8)
SETTINGS = Settings(max_queue_seconds=60, max_inference_seconds=60)


def decode(decoders: Decoders, files: list[bytes], job: Job | None = None, *, partial: bool = False) -> Future[Any]:
    """Begin to decode the files of a request; the embedding of an image is its mean colour."""
    job = job or Job(len(files), SETTINGS)

    def embed(position: int, pixels: NDArray[np.uint8] | None) -> None:
        if pixels is None:
            job.skip(position)
        else:
            job.deliver(position, 0, pixels.mean(axis=(0, 1, 2)).astype(np.float32))

    upload = decoders.submit(job, files, POLICY, embed, partial=partial)
    found: Future[Any] = Future()

    def wait() -> None:
        try:
            found.set_result((job.wait(), upload.rejected) if partial else job.wait())
        except ServiceError as error:
            found.set_exception(error)

    Thread(target=wait).start()
    return found


def test_the_first_bad_file_is_named_though_another_is_found_before(decoders: Decoders) -> None:
    """It is large, and waits in line while the small one is looked at."""
    large = solid("RGB")
    files = [large, large[: len(large) // 2], b"not an image", solid("RGB", 20)]
    with pytest.raises(ServiceError) as caught:
        decode(decoders, files).result(60)
    assert caught.value.code is ErrorCode.INVALID_IMAGE
    assert caught.value.message.startswith("Image 2 of 4: ")
    assert caught.value.detail["image"] == 1


def test_a_partial_upload_goes_on_without_its_bad_files(decoders: Decoders) -> None:
    """Large or small, and whichever is looked at first; the error of the first, if there is nothing else."""
    large, small = solid("RGB"), solid("RGB", 20)
    bad = [large[: len(large) // 2], b"not an image"]
    embeddings, rejected = decode(decoders, [bad[0], large, bad[1], small], partial=True).result(60)
    np.testing.assert_array_equal(embeddings[:, 0], [[200, 30, 30]] * 2)
    assert [(one.index, one.code) for one in rejected] == [(0, "invalid_image"), (2, "invalid_image")]
    with pytest.raises(ServiceError) as caught:
        decode(decoders, bad, partial=True).result(60)
    assert caught.value.message == f"Image 1 of 2: {rejected[0].message}"
    assert [one["index"] for one in caught.value.detail["rejected"]] == [0, 1]


@pytest.mark.parametrize("behind", [b"IHDR", b"IDAT"])
def test_a_text_in_a_large_png_keeps_no_thread_busy(decoders: Decoders, behind: bytes) -> None:
    """Pillow keeps texts beside what it knows of a picture, under names of the file's choice."""
    large = solid("RGB")
    for png in (with_text(large, b"bit_depth", behind), large):
        np.testing.assert_array_equal(decode(decoders, [png]).result(60)[:, 0], [[200, 30, 30]])
    assert not decoders.stuck


def test_single_images_do_not_wait_for_large_ones_nor_for_many(decoders: Decoders) -> None:
    large, small = solid("P"), solid("RGB", 20)
    some = decode(decoders, [large] * 8)
    many = decode(decoders, [solid("RGB", 600)] * 400)
    single = decode(decoders, [small])
    np.testing.assert_array_equal(single.result(60)[:, 0], [[200, 30, 30]])
    assert not some.done()
    assert not many.done()
    assert len(some.result(120)) == 8, "a lone request may have as many as it likes"
    assert len(many.result(120)) == 400


def test_a_tenant_with_many_requests_does_not_delay_others(decoders: Decoders) -> None:
    """Requests of one image each: they would all be decoded before the last one's."""
    image = solid("RGB", 1000)
    many = [decode(decoders, [image]) for _ in range(100)]
    before = sum(request.done() for request in many)
    single = decode(decoders, [solid("RGB", 20)], Job(1, SETTINGS, tenant="other"))
    single.result(60)
    assert sum(request.done() for request in many) - before < len(many) / 2
    for request in many:
        request.result(120)


def test_a_request_with_large_images_is_refused_while_too_many_wait(decoders: Decoders) -> None:
    first = Job(24, SETTINGS)
    some = decode(decoders, [solid("RGB")] * 24, first)
    wait_until(lambda: waiting_pixels(decoders) > 16 * SIDE * SIDE)
    with pytest.raises(ServiceError) as caught:
        decode(decoders, [solid("RGB")]).result(60)
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.detail["limit_pixels"] == 16 * SIDE * SIDE
    other = decode(decoders, [solid("RGB")], Job(1, SETTINGS, tenant="other"))
    assert len(other.result(60)) == 1, "another tenant's does not wait for all of these"
    assert not some.done()
    first.cancel()
    with pytest.raises(ServiceError):
        some.result(60)
    wait_until(lambda: not decoders._large)
    assert len(decode(decoders, [solid("RGB")]).result(60)) == 1


@pytest.mark.parametrize("picture", [solid("RGB"), progressive()])
def test_decoding_stops_when_it_is_told_to(picture: bytes) -> None:
    reads = 0

    def check() -> None:
        nonlocal reads
        reads += 1
        if opened and reads > 1:
            raise StoppedError

    opened = False
    file = open_image(picture, check=check)
    opened, reads = True, 0
    with pytest.raises(StoppedError):
        file.decode()
    assert reads == 2


@pytest.mark.slow
def test_a_small_prediction_is_answered_while_bombs_are_decoded(models_dir: Path, tmp_path: Path) -> None:
    """Files of 3 kB with 64 million pixels each."""
    bomb = webp_bomb()
    assert len(bomb) < 3000
    with live_server(models_dir, tmp_path, "--default-model", "tiny") as server:
        http.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        before = memory(server.process.pid)
        over = Event()

        def attack(_: int) -> set[int]:
            statuses: set[int] = set()
            while not over.is_set():
                answer = http.post(f"{server.url}/predict", timeout=120, **predict_form(*[bomb] * 2))
                statuses.add(answer.status_code)
            return statuses

        with ThreadPoolExecutor(9) as pool:
            attackers = [pool.submit(attack, number) for number in range(8)]
            try:
                seconds: list[float] = []
                for _ in range(8):
                    began = time.monotonic()
                    answer = http.post(f"{server.url}/predict", **predict_form(image_bytes()))
                    seconds.append(time.monotonic() - began)
                    assert answer.status_code == 200, answer.text
            finally:
                over.set()
            statuses = set.union(*[attacker.result(180) for attacker in attackers])
        assert statuses <= {200, 429, 503}
        assert max(seconds) < 10
        # One at a time, of up to 16 bytes a pixel.
        assert memory(server.process.pid, "VmHWM") - before < 18 * 64 * MB


def test_what_was_given_up_leaves_the_line_at_once(decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are released, and its pixels keep nobody out, while another image takes long."""
    go_on, fit = Event(), fit_views

    def slow(file: ImageFile, policy: Preprocessing, count: int) -> NDArray[np.uint8]:
        assert go_on.wait(60)
        return fit(file, policy, count)

    monkeypatch.setattr("comln_serve.engine.embedding.decoders.fit_views", slow)
    large = solid("RGB")
    first = decode(decoders, [large])
    for _ in range(20):
        job = Job(2, SETTINGS)
        upload = decoders.submit(job, [large, large], POLICY, lambda _position, _pixels: None)
        wait_until(lambda: waiting_pixels(decoders) > 0)
        job.cancel()
        decoders.forget(upload)
    wait_until(lambda: waiting_pixels(decoders) == 0)
    last = decode(decoders, [large])
    go_on.set()
    assert len(first.result(60)) == len(last.result(60)) == 1
