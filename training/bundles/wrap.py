"""Makes a bundle from an ONNX model without data or training, with a head for any network."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.backbones.onnx_builder import bundle_graph
from training.backbones.onnx_file import OnnxFile
from training.backbones.onnx_guess import makes_probabilities
from training.backbones.pixel_format import PixelFormat, default_normalisation
from training.bundles.universal_head import UNIVERSAL_HEAD
from training.bundles.writer import About, Network, Origin, write_bundle
from training.config import Config
from training.errors import BackboneError

_TRIAL_IMAGES = 4


def wrap_model(config: Config, folder: Path, about: About, command: str) -> tuple[int, str | None]:
    """Write the bundle of an inspected model to `folder`.

    Returns:
        d, and why the tensor is no good embedding; None if nothing speaks against it.

    Raises:
        BackboneError: the graph does not run, or its output cannot be an embedding.
        ExportError: the folder is not a bundle, or the bundle's embeddings differ from the model's.
    """
    model = _Model(config)
    warning = _check_embeddings(model)
    origin = Origin(config, command, libraries=("onnx", *Origin.libraries))
    write_bundle(model.network(), UNIVERSAL_HEAD, folder, about, origin)
    return model.file.embedding_size, warning


class _Model:
    """An inspected model: uint8 images (n, S, S, 3) -> features and embeddings (n, d)."""

    def __init__(self, config: Config) -> None:
        size = config.data.preprocessing.image_size
        self.image_size = size
        self.file = OnnxFile(config.backbone, size)
        self.pixels = None
        if self.file.layout != "as_is":
            self.pixels = PixelFormat(config.backbone.colour, size, *default_normalisation(config.backbone))

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.file.features(images if self.pixels is None else self.pixels.planes(images))

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        features = self.features(images)
        # In float64: squares of large numbers would overflow.
        lengths = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
        return (features / np.maximum(lengths, 1e-12)).astype(np.float32)

    def network(self) -> Network:
        size = self.file.embedding_size
        graph = bundle_graph(
            self.file.graph, self.pixels, self.file.layout, size, flatten=self.file.flattens, normalise=True, scale=1.0
        )
        return Network(graph, size, self.embed)


def _check_embeddings(model: _Model) -> str | None:
    """Refuse embeddings that do not distinguish images; returns a warning of those that do so badly."""
    shape = (_TRIAL_IMAGES, model.image_size, model.image_size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    # From dark to bright, so that they also differ in brightness.
    images = (images * np.linspace(0, 1, _TRIAL_IMAGES)[:, None, None, None]).astype(np.uint8)
    embeddings = model.embed(images)
    path, width = model.file.path.name, embeddings.shape[1]
    if width < 2:
        raise BackboneError(
            f"{path}: the embedding has {width} number; 2 or more are needed to tell classes "
            "apart. Name another tensor with backbone.output"
        )
    if float(np.ptp(embeddings, axis=0).max()) == 0.0:
        raise BackboneError(
            f"{path}: the embeddings of all images are the same. Name another tensor with "
            "backbone.output, or check how the images are normalised (--normalisation)"
        )
    return _warning(model, images)


def _warning(model: _Model, images: NDArray[np.uint8]) -> str | None:
    """A warning if the embeddings are probabilities of classes."""
    graph = model.file.graph
    output = graph.graph.output[0].name
    operator = makes_probabilities(graph, output)
    if operator is None:
        features = model.features(images)
        if features.min() < 0 or not np.allclose(features.sum(axis=1), 1, atol=1e-3):
            return None
    why = f"a {operator} makes them" if operator else "none is below 0, and they sum to 1"
    return (
        f"{output} holds probabilities of the classes that the model was trained on ({why}). They tell other classes "
        "apart worse than the features that they are computed from. Name an earlier tensor with --output, or leave "
        "--output out: the tensor is then looked for"
    )
