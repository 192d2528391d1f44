"""The backbone in OpenVINO: the embeddings of ONNX Runtime, refused where they are others; interruption; a server."""

import logging
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.bundle import Bundle, load_bundle
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.openvino_session import OpenVinoSession
from comln_serve.errors import StartupError
from tests.conftest import Serve
from tests.support import messages
from tests.support.paths import REPOSITORY
from tests.support.programs import python


def images_of(bundle: Bundle, count: int) -> NDArray[np.uint8]:
    size = bundle.manifest.preprocessing.image_size
    return np.random.default_rng(3).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", ["photos-efficientnet-lite0", "miniimagenet-conv4", "omniglot-conv4"])
def test_openvino_computes_the_embeddings_of_onnx_runtime(name: str) -> None:
    """Nearly: it computes in bfloat16 where the CPU has it, and rounds 8-bit integers at other places. Among its own
    embeddings there is no difference, whatever the batch and the number of cores.
    """
    bundle = load_bundle(REPOSITORY / "models" / name)
    backbone, usual = OnnxBackbone(bundle, "openvino", threads=2), OnnxBackbone(bundle, "cpu", threads=2)
    backbone.warm()
    assert (backbone.provider, backbone.on_gpu) == ("openvino", False)
    assert backbone.max_batch_size == usual.max_batch_size > 1
    images = images_of(bundle, 11)
    found, wanted = backbone.embed(images), usual.embed(images)
    cosines = (found * wanted).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() > 0.99
    np.testing.assert_array_equal(backbone.embed(images[4:5], alone=False), found[4:5])


@pytest.mark.parametrize(
    "change", [lambda phi: np.roll(phi, 1, axis=1), lambda phi: 1.2 * phi], ids=["other", "longer"]
)
def test_other_embeddings_are_refused(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
) -> None:
    run = OpenVinoSession.run
    monkeypatch.setattr(OpenVinoSession, "run", lambda *given: change(run(*given)))
    with pytest.raises(StartupError, match=r"model tiny: on this CPU OpenVINO's embeddings are not .* --provider cpu"):
        OnnxBackbone(load_bundle(models_dir / "tiny"), "openvino")


def test_embeddings_that_are_not_finite_are_refused(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whichever image: a comparison with NaN must not pass."""
    run = OpenVinoSession.run

    def broken(session: OpenVinoSession, images: NDArray[np.uint8], cancellation: Cancellation) -> NDArray[np.float32]:
        found = run(session, images, cancellation)
        found[1:] = np.nan
        return found

    monkeypatch.setattr(OpenVinoSession, "run", broken)
    with pytest.raises(StartupError, match=r"differ by nan of their length"):
        OnnxBackbone(load_bundle(models_dir / "tiny"), "openvino")


def test_an_image_gets_one_core_where_all_of_them_round_otherwise(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(models_dir / "tiny")
    backbone = OnnxBackbone(bundle, "openvino", threads=2)
    on_all, run = backbone._session, OpenVinoSession.run

    def rounded(session: OpenVinoSession, images: NDArray[np.uint8], cancellation: Cancellation) -> NDArray[np.float32]:
        found = run(session, images, cancellation)
        return found * np.float32(1 + 1e-6) if session is on_all else found

    monkeypatch.setattr(OpenVinoSession, "run", rounded)
    images = images_of(bundle, 3)
    assert not np.array_equal(backbone.embed(images), backbone.embed(images, alone=False))
    backbone.warm()
    np.testing.assert_array_equal(backbone.embed(images), backbone.embed(images, alone=False))
    assert backbone.max_batch_size > 1


def test_no_images_are_kept(models_dir: Path) -> None:
    """A request of OpenVINO's keeps its input, and with it the data set that it is a part of."""

    class Images(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
        """An array that can be referred to weakly."""

    bundle = load_bundle(models_dir / "tiny")
    backbone = OnnxBackbone(bundle, "openvino")
    images = images_of(bundle, 20).view(Images)
    alive = weakref.ref(images)
    backbone.embed(images)
    del images
    assert alive() is None


def test_any_array_can_be_embedded(models_dir: Path) -> None:
    bundle = load_bundle(models_dir / "tiny")
    backbone = OnnxBackbone(bundle, "openvino")
    images = images_of(bundle, 4)
    wanted = backbone.embed(images)
    images.flags.writeable = False
    np.testing.assert_array_equal(backbone.embed(images), wanted)
    np.testing.assert_array_equal(backbone.embed(images[::-1]), wanted[::-1])


def test_what_openvino_cannot_open_is_told() -> None:
    with pytest.raises(StartupError, match=r"^here: OpenVINO cannot open the backbone: "):
        OpenVinoSession(b"no graph", "here", 1, at_once=1)


def test_without_the_package(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(StartupError, match=r"Install comln-serve\[openvino\] besides \[cpu\], or .* --provider cpu"):
        OnnxBackbone(load_bundle(models_dir / "tiny"), "openvino")


def test_nothing_is_sent_anywhere(models_dir: Path) -> None:
    """As OpenVINO would, by itself, as soon as it is imported."""
    program = """if True:
        import sys
        from pathlib import Path

        watched = ("socket.connect", "socket.getaddrinfo", "os.fork", "os.posix_spawn", "subprocess.Popen")
        seen = []
        sys.addaudithook(lambda event, given: seen.append((event, given)) if event in watched else None)

        from comln_serve.bundle import load_bundle
        from comln_serve.engine.embedding.backbone import OnnxBackbone

        OnnxBackbone(load_bundle(Path(sys.argv[1])), "openvino").warm()
        assert "openvino" in sys.modules
        assert seen == [], seen
    """
    done = python("-c", program, models_dir / "tiny")
    assert done.returncode == 0, done.stderr


def test_an_interrupted_batch_fails_alone(models_dir: Path) -> None:
    backbone = OnnxBackbone(load_bundle(models_dir / "tiny"), "openvino", threads=2)
    images = images_of(load_bundle(models_dir / "tiny"), 4000)
    whole = backbone.embed(images[:40], alone=False)
    cancellation = Cancellation()
    with ThreadPoolExecutor(2) as pool:
        dropped = pool.submit(backbone.embed, images, cancellation, alone=False)
        other = pool.submit(backbone.embed, images[:40], alone=False)
        cancellation.cancel()
        with pytest.raises(Exception, match=r"canceled|closed the connection"):
            dropped.result()
        np.testing.assert_array_equal(other.result(), whole)
    for _ in range(3):
        np.testing.assert_array_equal(backbone.embed(images[:40], alone=False), whole)


def test_a_server_says_that_it_runs_on_openvino(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "comln_serve.engine"):
        client = serve(provider="openvino")
    assert any("model tiny: OpenVINO computes in" in line for line in caplog.messages)
    assert set(client.get("/health/ready").json()["provider"].values()) == {"openvino"}
    assert {model["provider"] for model in client.get("/models").json()["models"]} == {"openvino"}
    assert 'comln_model_info{default="true",model="tiny",provider="openvino"} 1.0' in client.get("/metrics").text
    made = client.post("/adapt", **messages.adapt_form())
    assert made.status_code == 201
