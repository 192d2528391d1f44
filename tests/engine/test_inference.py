"""The backbone in ONNX Runtime: batches, padding, interruption."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.bundle import load_bundle
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.backbone import OnnxBackbone, batch_sizes

COLOURS = [(220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30), (30, 220, 220)]


@pytest.mark.parametrize("max_batch_size", [1, 6, 8])
def test_padded_batches_give_what_single_images_give(models_dir: Path, max_batch_size: int) -> None:
    """The path of accelerators, run on the CPU."""
    bundle = load_bundle(models_dir / "tiny")
    backbone = OnnxBackbone(bundle, "cpu", max_batch_size=max_batch_size)
    images = np.random.default_rng(0).integers(0, 256, (13, 16, 16, 3), dtype=np.uint8)
    alone = np.concatenate([backbone.embed(images[i : i + 1]) for i in range(13)])
    np.testing.assert_array_equal(backbone.embed(images), alone)
    backbone.provider = "cuda"
    backbone.warm()
    for count in (1, 2, 3, 5, 6, 8, 13):
        np.testing.assert_allclose(backbone.embed(images[:count]), alone[:count], atol=1e-5)


@pytest.mark.parametrize("rounds", [False, True])
def test_a_network_that_rounds_otherwise_in_a_batch_runs_image_by_image(models_dir: Path, rounds: bool) -> None:
    """So that other requests change no embedding on a CPU."""
    backbone = OnnxBackbone(load_bundle(models_dir / "tiny"), "cpu", threads=1)
    run, sizes, most = backbone._run, list[int](), backbone.max_batch_size
    assert most > 1

    def told(session: object, images: NDArray[np.uint8], options: object) -> NDArray[np.float32]:
        sizes.append(len(images))
        embeddings = run(session, images, options)
        return np.nextafter(embeddings, np.float32(np.inf)) if rounds and len(images) > 1 else embeddings

    backbone._run = told  # type: ignore[method-assign]
    backbone.warm()
    images = np.random.default_rng(0).integers(0, 256, (most, 16, 16, 3), dtype=np.uint8)
    alone = np.concatenate([backbone.embed(images[i : i + 1]) for i in range(most)])
    sizes.clear()
    np.testing.assert_array_equal(backbone.embed(images), alone)
    assert sizes == ([1] * most if rounds else [most])
    assert backbone.max_batch_size == (1 if rounds else most)


def test_batch_sizes() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(2) == (1, 2)
    assert batch_sizes(48) == (1, 2, 4, 8, 16, 32, 48)
    assert batch_sizes(64) == (1, 2, 4, 8, 16, 32, 64)


def test_an_interrupted_backbone_raises_and_goes_on(models_dir: Path) -> None:
    backbone = OnnxBackbone(load_bundle(models_dir / "tiny"), "cpu")
    images = np.zeros((4000, 16, 16, 3), dtype=np.uint8)
    cancellation = Cancellation()
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(backbone.embed, images, cancellation)
        cancellation.cancel()
        with pytest.raises(Exception, match="terminate"):
            task.result()
    assert backbone.embed(images[:3]).shape == (3, 8)
