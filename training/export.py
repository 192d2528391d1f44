"""From a checkpoint to a bundle the server can load."""

import hashlib
import json
import tempfile
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import safetensors.numpy
import torch

from comln_serve.bundle import AccuracyEntry, Manifest, load_bundle
from comln_serve.bundle.manifest import (
    BACKBONE,
    CARD,
    FORMAT_VERSION,
    HEAD,
    MANIFEST,
    ExponentsEntry,
    FileEntry,
    Files,
    HeadEntry,
    SolverEntry,
    TrainingEntry,
)
from comln_serve.engine.backbone import Backbone
from training.card import render_card
from training.checkpoint import Checkpoint
from training.model import MetaModel

# Largest difference between torch's and ONNX Runtime's embeddings, relative to their size.
EXPORT_TOLERANCE = 1e-4


class ExportError(RuntimeError):
    """The exported graph does not compute what the model computes."""


@dataclass(frozen=True)
class About:
    """What a bundle says of itself that its checkpoint does not know; for manifest and card.

    Attributes:
        description: what the model is for. licence: of the weights. data: what it was trained on.
        notes: what else a user of the model should know.
    """

    description: str
    licence: str
    data: str
    notes: str = ""


def export_bundle(checkpoint: Checkpoint, folder: Path, about: About) -> None:
    """Write the bundle of a checkpoint to `folder` and verify it by loading it.

    Raises:
        ExportError: ONNX Runtime's embeddings differ from torch's.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Built and verified beside its place: a failed export leaves no bundle a server would load.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as workshop:
        draft = Path(workshop) / folder.name
        draft.mkdir()
        model = _write(checkpoint, draft, about)
        _verify(model, draft)
        folder.mkdir(exist_ok=True)
        for name in (BACKBONE, HEAD, CARD, MANIFEST):  # the manifest last: it vouches for the rest
            (draft / name).replace(folder / name)


def _write(checkpoint: Checkpoint, folder: Path, about: About) -> MetaModel:
    model = checkpoint.restore_model().eval()
    head = model.head()
    _export_backbone(model, folder / BACKBONE)
    tensors: dict[str, np.ndarray] = {"T": np.array(head.horizon, dtype=np.float64)}
    if head.W0 is not None:
        tensors["W0"] = head.W0
    if head.alpha is not None:
        tensors["alpha"] = np.array(head.alpha, dtype=np.float64)
    (folder / HEAD).write_bytes(safetensors.numpy.save(tensors))
    config = checkpoint.config
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        description=about.description,
        licence=about.licence,
        created=datetime.now(UTC).date().isoformat(),
        files=Files(backbone=_entry(folder / BACKBONE), head=_entry(folder / HEAD)),
        preprocessing=config.data.preprocessing,
        embedding_size=model.backbone.embedding_size,
        head=HeadEntry(
            start=head.start,
            ways=head.ways,
            horizon=head.horizon,
            regularisation=head.regularisation,
            weighting=head.weighting,
            exponents=head.exponents and ExponentsEntry(**vars(head.exponents)),
        ),
        solver=SolverEntry(**vars(head.solver)),
        training=TrainingEntry(
            data=about.data,
            command=checkpoint.command,
            config=config.model_dump(mode="json"),
            seed=config.seed,
            updates=checkpoint.update,
            seconds=round(checkpoint.seconds, 1),
            hardware=checkpoint.hardware,
            notes=about.notes,
            versions={name: version(name) for name in ("torch", "numpy", "numba", "pillow")},
        ),
        accuracy=tuple(
            AccuracyEntry(split="val", command="validation during training", **result)
            for result in checkpoint.validation
        ),
    )
    write_manifest(folder, manifest)
    return model


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `bundle.json` and the model card that is rendered from it."""
    content = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    for name, text in ((CARD, render_card(folder.name, manifest)), (MANIFEST, content + "\n")):
        temporary = folder / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)


def record_accuracy(folder: Path, manifest: Manifest, entries: list[AccuracyEntry]) -> None:
    """Add measurements to a bundle, in place of earlier ones of the same split and task."""

    def task(entry: AccuracyEntry) -> tuple[str, int, int]:
        return entry.split, entry.ways, entry.shots

    replaced = {task(entry) for entry in entries}
    kept = [entry for entry in manifest.accuracy if task(entry) not in replaced]
    merged = sorted([*kept, *entries], key=task)
    write_manifest(folder, manifest.model_copy(update={"accuracy": tuple(merged)}))


def _export_backbone(model: MetaModel, path: Path) -> None:
    size = model.backbone.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    backbone = model.backbone.to(memory_format=torch.contiguous_format)
    with warnings.catch_warnings():
        # Deprecations inside the exporter's own dependencies; the result is verified below.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            backbone,
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise ExportError("the exporter returned nothing")
    graph = program.model_proto
    # The exporter's shape inference loses the batch axis where the last feature map is 1 x 1: it
    # declares (1, d) though the reshape is right. State what holds and drop what it inferred.
    batch, _ = graph.graph.output[0].type.tensor_type.shape.dim
    batch.dim_param = "batch"
    del graph.graph.value_info[:]
    # The exporter also notes, at every node, where in whose source files it came from.
    for part in (graph, graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output):
        del part.metadata_props[:]
    for tensor in graph.graph.initializer:
        del tensor.metadata_props[:]
    onnx.checker.check_model(graph, full_check=True)
    path.write_bytes(graph.SerializeToString())


def _verify(model: MetaModel, folder: Path) -> None:
    rng = np.random.default_rng(0)
    size = model.backbone.image_size
    images = rng.integers(0, 256, size=(5, size, size, 3), dtype=np.uint8)
    expected = model.embed(images)
    found = Backbone(load_bundle(folder), "cpu").embed(images)
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= EXPORT_TOLERANCE:
        raise ExportError(
            f"{folder}: ONNX Runtime's embeddings differ from torch's by {difference:.2g} "
            f"(allowed {EXPORT_TOLERANCE:g})"
        )


def _entry(path: Path) -> FileEntry:
    content = path.read_bytes()
    return FileEntry(path=path.name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
