"""From a checkpoint to a bundle the server can load."""

import hashlib
import json
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
import torch

from comln_serve.bundle import AccuracyEntry, ComparisonEntry, Manifest, load_bundle
from comln_serve.bundle.manifest import (
    BACKBONE,
    CARD,
    HEAD,
    MANIFEST,
    ExponentsEntry,
    FileEntry,
    Files,
    HeadEntry,
    Shots,
    SolverEntry,
    TrainingEntry,
    format_version,
)
from comln_serve.engine.backbone import Backbone as ServedBackbone
from training.backbones import Backbone
from training.backbones.identity import Identity
from training.backbones.onnx_graph import bundle_graph, drop_provenance, store_in_half
from training.backbones.onnx_model import OnnxNetwork
from training.card import render_card
from training.checkpoint import Checkpoint
from training.config import Config, override_config
from training.model import MetaModel

# Largest difference between torch's and ONNX Runtime's embeddings, relative to their size.
EXPORT_TOLERANCE = 1e-4
# The same with weights rounded to 16 bits, each by up to 5e-4 of itself.
HALF_TOLERANCE = 1e-2


class ExportError(RuntimeError):
    """No bundle can be made of a run, or the exported graph does not compute what it computes."""


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


def export_bundle(
    checkpoint: Checkpoint, folder: Path, about: About, *, half: bool = False
) -> float:
    """Write the bundle of a checkpoint to `folder` and verify it by loading it.

    Args:
        half: store the backbone's weights in 16 bits, for half the size; it computes in 32.

    Returns:
        The largest difference between the bundle's embeddings and the checkpoint's, relative to
        the largest embedding.

    Raises:
        ExportError: the run was trained on embeddings, or ONNX Runtime's differ from torch's.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Built and verified beside its place: a failed export leaves no bundle a server would load.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as workshop:
        draft = Path(workshop) / folder.name
        draft.mkdir()
        model = _write(checkpoint, draft, about, half=half)
        difference = _verify(model, draft, HALF_TOLERANCE if half else EXPORT_TOLERANCE)
        folder.mkdir(exist_ok=True)
        for name in (BACKBONE, HEAD, CARD, MANIFEST):  # the manifest last: it vouches for the rest
            (draft / name).replace(folder / name)
    return difference


def with_backbone(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Checkpoint:
    """The checkpoint over another backbone: of a run on embeddings, the network that makes such
    embeddings of images.

    Args:
        overrides: `backbone.key=value` and `data.preprocessing.key=value`. A run on an ONNX file
            may be told that the file is elsewhere now, `backbone.path=...`, and any run
            `backbone.mirror=...`.

    Raises:
        ConfigError: the configuration is not usable. ExportError: a run whose backbone is its own.
        BackboneError: the network cannot be made, or is not of the embeddings' size.
    """
    kind, keys = checkpoint.config.backbone.kind, [item.partition("=")[0] for item in overrides]
    if kind == "identity":
        foreign = [k for k in keys if not k.startswith(("backbone.", "data.preprocessing."))]
    else:
        free = {"backbone.mirror"} | ({"backbone.path"} if kind == "onnx" else set[str]())
        foreign = [key for key in keys if key not in free]
    if foreign:
        raise ExportError(
            f'{foreign[0]} cannot be changed after training with a backbone of kind "{kind}": '
            'only a run on embeddings ("identity") takes another backbone.* and '
            "data.preprocessing.*, a run on an ONNX file another backbone.path, and both and all "
            "others backbone.mirror"
        )
    config = override_config(checkpoint.config, overrides)
    state = {
        key: value
        for key, value in MetaModel(config).state_dict().items()
        if key.startswith("backbone.")
    }
    return replace(checkpoint, config=config, model=state | checkpoint.model)


def _write(checkpoint: Checkpoint, folder: Path, about: About, *, half: bool) -> MetaModel:
    model = checkpoint.restore_model().eval()
    head = model.head()
    graph = backbone_graph(model)
    if half:
        store_in_half(graph)
    (folder / BACKBONE).write_bytes(graph.SerializeToString())
    tensors: dict[str, np.ndarray] = {"T": np.array(head.horizon, dtype=np.float64)}
    if head.W0 is not None:
        tensors["W0"] = head.W0
    if head.alpha is not None:
        tensors["alpha"] = np.array(head.alpha, dtype=np.float64)
    (folder / HEAD).write_bytes(safetensors.numpy.save(tensors))
    config = checkpoint.config
    accuracy = tuple(
        AccuracyEntry(split="val", command="validation during training", **result)
        for result in checkpoint.validation
    )
    head_entry = HeadEntry(
        start=head.start,
        ways=head.ways,
        horizon=head.horizon,
        regularisation=head.regularisation,
        weighting=head.weighting,
        exponents=head.exponents and ExponentsEntry(**vars(head.exponents)),
        similarity=head.similarity,
    )
    manifest = Manifest(
        format_version=format_version(head_entry, accuracy, ()),
        description=about.description,
        licence=about.licence,
        created=datetime.now(UTC).date().isoformat(),
        files=Files(backbone=_entry(folder / BACKBONE), head=_entry(folder / HEAD)),
        preprocessing=config.data.preprocessing,
        embedding_size=model.backbone.embedding_size,
        head=head_entry,
        solver=SolverEntry(**vars(head.solver)),
        training=TrainingEntry(
            data=about.data,
            command=checkpoint.command,
            config=_without_folders(config),
            seed=config.seed,
            updates=checkpoint.update,
            seconds=round(checkpoint.seconds, 1),
            hardware=checkpoint.hardware,
            notes=about.notes,
            versions={name: version(name) for name in ("torch", "numpy", "numba", "pillow")},
        ),
        accuracy=accuracy,
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


def record_measurements(
    folder: Path,
    manifest: Manifest,
    accuracy: Sequence[AccuracyEntry],
    comparisons: Sequence[ComparisonEntry] = (),
) -> None:
    """Add measurements to a bundle, in place of earlier ones of the same split and task.

    Earlier comparisons of a task are dropped, unless the bundle's accuracy on it is what it was.
    """
    before = {_task(entry): _figures(entry) for entry in manifest.accuracy}
    measured = {_task(entry): _figures(entry) for entry in accuracy}
    changed = {task for task, figures in measured.items() if before.get(task) != figures}
    compared = {_task(entry) for entry in comparisons}
    kept = [entry for entry in manifest.accuracy if _task(entry) not in measured]
    kept_comparisons = [
        entry for entry in manifest.comparisons if _task(entry) not in changed | compared
    ]
    merged = tuple(sorted([*kept, *accuracy], key=_task))
    # Sorting is stable: the heads of a task stay in their order.
    merged_comparisons = tuple(sorted([*kept_comparisons, *comparisons], key=_task))
    update = {
        "format_version": format_version(
            manifest.head, merged, merged_comparisons, manifest.calibration
        ),
        "accuracy": merged,
        "comparisons": merged_comparisons,
    }
    write_manifest(folder, manifest.model_copy(update=update))


def _task(entry: AccuracyEntry | ComparisonEntry) -> tuple[str, int, tuple[int, int]]:
    shots: Shots = entry.shots
    return entry.split, entry.ways, (shots, shots) if isinstance(shots, int) else shots


def _figures(entry: AccuracyEntry) -> tuple[object, ...]:
    return entry.queries, entry.episodes, entry.seed, entry.mean, entry.interval


def _without_folders(config: Config) -> dict[str, Any]:
    """The configuration for others to read: files by their names, not where they lay here."""
    tree = config.model_dump(mode="json")
    for key in ("path", "warm_start", "weights"):
        if tree["backbone"][key] is not None:
            tree["backbone"][key] = PurePath(tree["backbone"][key]).name
    return tree


def backbone_graph(model: MetaModel) -> onnx.ModelProto:
    """The model's backbone as a bundle holds it: uint8 RGB (batch, S, S, 3) -> (batch, d).

    Raises:
        ExportError: the backbone takes embeddings.
    """
    backbone = model.backbone
    if not isinstance(backbone, Backbone):
        raise TypeError("a model of precomputed embeddings; export the one it was made from")
    if isinstance(backbone.network, Identity):
        raise ExportError(
            'this run was trained on embeddings (backbone.kind "identity"); a bundle is served '
            "images and needs the network that made the embeddings of them. Name it: --set "
            "backbone.kind=onnx --set backbone.path=FILE --set backbone.mean=[...] --set "
            "backbone.std=[...] --set data.preprocessing.image_size=SIZE"
        )
    if isinstance(backbone.network, OnnxNetwork):
        return bundle_graph(
            backbone.network.graph,
            backbone.pixels,
            backbone.network.layout,
            backbone.embedding_size,
            flatten=backbone.network.flattens,
            normalise=backbone.config.normalise == "l2",
            scale=backbone.scale,
        )
    return _traced_graph(backbone)


def _traced_graph(backbone: Backbone) -> onnx.ModelProto:
    size = backbone.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with warnings.catch_warnings():
        # Deprecations inside the exporter's own dependencies; the result is verified later.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            backbone.to(memory_format=torch.contiguous_format),
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
    drop_provenance(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph


def _verify(model: MetaModel, folder: Path, tolerance: float) -> float:
    rng = np.random.default_rng(0)
    size = model.config.data.preprocessing.image_size
    images = rng.integers(0, 256, size=(5, size, size, 3), dtype=np.uint8)
    expected = model.embed(images)
    found = ServedBackbone(load_bundle(folder), "cpu").embed(images)
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= tolerance:
        raise ExportError(
            f"{folder}: ONNX Runtime's embeddings differ from torch's by {difference:.2g} "
            f"(allowed {tolerance:g})"
        )
    return difference


def _entry(path: Path) -> FileEntry:
    content = path.read_bytes()
    return FileEntry(path=path.name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
