"""Writes and verifies a bundle of a trained or wrapped model."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.numpy
from onnx import ModelProto, TensorProto

from comln_serve.bundle import AccuracyEntry, Head, Manifest, load_bundle
from comln_serve.bundle.manifest import BACKBONE, CARD, FORMAT_VERSIONS, HEAD, MANIFEST, Files, HeadEntry, TrainingEntry
from comln_serve.engine.embedding.backbone import OnnxBackbone
from training.backbones.onnx_builder import store_in_half
from training.bundles.manifest import file_entry, write_manifest
from training.config import Config
from training.config.files import without_folders
from training.data.images import Embed
from training.errors import ExportError, writing

# Largest allowed difference between the network's and the bundle's embeddings, relative to the largest.
EXPORT_TOLERANCE = 1e-4
# The same of a graph with weights in 16 bits: each, and each step of a float16 model, is off by up to 5e-4 of itself.
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Network:
    """The finished network that a bundle is made of.

    Attributes:
        graph: as stored in a bundle: uint8 RGB (batch, S, S, 3) -> float32 (batch, d).
        embedding_size: d.
        embed: computes the embeddings (n, d) of images (n, S, S, 3) without the graph, to verify it.
    """

    graph: ModelProto
    embedding_size: int
    embed: Embed


@dataclass(frozen=True)
class About:
    """Descriptions that are not in a checkpoint; for manifest and model card.

    Attributes:
        description: what the model is for. licence: of the weights. data: what it was trained on.
        notes: further remarks for users of the model.
    """

    description: str
    licence: str
    data: str
    notes: str = ""


@dataclass(frozen=True)
class Origin:
    """How a model was made; for manifest and model card.

    Attributes:
        config: the recipe as used. command: the command that makes it again.
        updates: number of training updates, 0 if not trained. seconds: training time.
        hardware: the machine, in words. validation: accuracies measured during training.
        libraries: whose versions are recorded.
    """

    config: Config
    command: str
    updates: int = 0
    seconds: float = 0.0
    hardware: str = "none"
    validation: tuple[AccuracyEntry, ...] = ()
    libraries: tuple[str, ...] = ("numpy", "numba", "pillow")


def write_bundle(
    network: Network, head: Head, folder: Path, about: About, origin: Origin, *, half: bool = False
) -> float:
    """Write a bundle to `folder` and verify it by loading it. An existing bundle is replaced.

    Args:
        network: that is stored. head: of the bundle.
        half: store the backbone's weights in 16 bits, for half the size; it computes in 32 bits.

    Returns:
        The largest difference between the bundle's embeddings and the network's, relative to the
        largest embedding.

    Raises:
        ExportError: the folder contains something other than a bundle, or ONNX Runtime's embeddings differ from
            the network's.
        WriteError: the bundle cannot be written.
    """
    with bundle_draft(folder) as draft:
        if half:
            store_in_half(network.graph)
        _write(network, head, draft, about, origin)
        is_half = any(tensor.data_type == TensorProto.FLOAT16 for tensor in network.graph.graph.initializer)
        image_size = origin.config.data.preprocessing.image_size
        return _verify(network, draft, image_size, HALF_TOLERANCE if is_half else EXPORT_TOLERANCE)


@contextmanager
def bundle_draft(folder: Path) -> Generator[Path, None, None]:
    """A temporary folder to build and verify a bundle in; moved to `folder` unless an error is raised.

    A failed export therefore leaves no bundle that a server would load.
    """
    check_destination(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"the folder {folder.parent} cannot be made: {error.strerror}") from error
    with writing(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as workshop:
        draft = Path(workshop) / folder.name
        draft.mkdir()
        yield draft
        folder.mkdir(exist_ok=True)
        for name in (BACKBONE, HEAD, CARD, MANIFEST):  # the manifest last: without it there is no bundle
            (draft / name).replace(folder / name)


def check_destination(folder: Path) -> None:
    """Refuse to overwrite anything but a bundle."""
    if not folder.name:
        raise ExportError(f"--to {str(folder)!r} has no name, which would be the model's; name a folder")
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder} is a file; a bundle is a folder. Name another with --to")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ExportError(
            f"{folder} holds files but no {MANIFEST}, so it is not a bundle to replace. Name a new "
            "folder, an empty one or a bundle with --to"
        )


def _write(network: Network, head: Head, folder: Path, about: About, origin: Origin) -> None:
    (folder / BACKBONE).write_bytes(network.graph.SerializeToString())
    tensors: dict[str, np.ndarray] = {"T": np.array(head.horizon, dtype=np.float64)}
    if head.W0 is not None:
        tensors["W0"] = head.W0
    if head.alpha is not None:
        tensors["alpha"] = np.array(head.alpha, dtype=np.float64)
    (folder / HEAD).write_bytes(safetensors.numpy.save(tensors))
    config = origin.config
    manifest = Manifest(
        format_version=FORMAT_VERSIONS[-1],  # `write_manifest` lowers it
        description=about.description,
        licence=about.licence,
        created=datetime.now(UTC).date().isoformat(),
        files=Files(backbone=file_entry(folder / BACKBONE), head=file_entry(folder / HEAD)),
        preprocessing=config.data.preprocessing,
        embedding_size=network.embedding_size,
        head=HeadEntry.model_validate(head, from_attributes=True),
        solver=head.solver,
        training=TrainingEntry(
            data=about.data,
            command=origin.command,
            config=without_folders(config.model_dump(mode="json")),
            seed=config.seed,
            updates=origin.updates,
            seconds=round(origin.seconds, 1),
            hardware=origin.hardware,
            notes=about.notes,
            versions={name: version(name) for name in origin.libraries},
        ),
        accuracy=origin.validation,
    )
    write_manifest(folder, manifest)


def _verify(network: Network, folder: Path, size: int, tolerance: float) -> float:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(5, size, size, 3), dtype=np.uint8)
    expected = network.embed(images)
    found = OnnxBackbone(load_bundle(folder), "cpu").embed(images)
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= tolerance:
        raise ExportError(
            f"{folder.name}: its embeddings differ from the model's by {difference:.2g} (allowed {tolerance:g})"
        )
    return difference
