"""Bundles that are altered as an attacker, or an accident, would."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
from numpy.typing import NDArray

from comln_serve.bundle.calibration import Calibration, TaskLaw
from comln_serve.bundle.manifest import BACKBONE, HEAD, MANIFEST


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to the manifest."""
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def with_views(bundle: Path, folder: Path, shares: Sequence[float]) -> Path:
    """A folder with a copy of the bundle, whose support images have these views, the first as predictions see it."""
    copied = Path(shutil.copytree(bundle, folder / bundle.name))

    def change(content: dict[str, Any]) -> None:
        content["preprocessing"].update(crop_fraction=shares[0], support_views=shares[1:])
        content.update(format_version=6, stored_embeddings="int16")

    edit_manifest(copied, change)
    return folder


def replace_file(folder: Path, part: str, data: bytes) -> None:
    """Write another `backbone` or `head`, and make the manifest agree with it."""
    path = folder / {"backbone": BACKBONE, "head": HEAD}[part]
    path.write_bytes(data)
    entry = {"path": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(folder, lambda content: content["files"].update({part: entry}))


def edit_tensors(folder: Path, change: Callable[[dict[str, NDArray[Any]]], object]) -> None:
    """Apply `change` to the tensors of the head."""
    tensors = {name: np.array(tensor) for name, tensor in safetensors.numpy.load((folder / HEAD).read_bytes()).items()}
    change(tensors)
    replace_file(folder, "head", safetensors.numpy.save(tensors))


def break_backbone(folder: Path) -> None:
    """Let the graph look up an element that does not exist, which shows when it runs."""
    model = onnx.load_from_string((folder / BACKBONE).read_bytes())
    output = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["inside" if name == output else name for name in node.output]
    width = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    where = np.arange(1, width + 1)  # one too far, and not known before: the shape of what is looked up is dynamic
    model.graph.initializer.append(onnx.numpy_helper.from_array(where, "where"))
    model.graph.node.append(onnx.helper.make_node("Gather", ["inside", "where"], [output], axis=1))
    replace_file(folder, "backbone", model.SerializeToString())


def poison_backbone(folder: Path) -> None:
    """Make every weight of the graph NaN."""
    model = onnx.load_from_string((folder / BACKBONE).read_bytes())
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(values * np.float32("nan"), tensor.name))
    replace_file(folder, "backbone", model.SerializeToString())


def calibration(log_temperature: TaskLaw, unknown: float) -> Calibration:
    """A calibration of which nothing was measured, with one threshold for all tasks."""
    return Calibration(
        log_temperature=log_temperature,
        unknown=TaskLaw(constant=unknown, shots=0.0, ways=0.0),
        shots=(1, 5),
        ways=(2, 10),
        split="val",
        queries=10,
        episodes=5,
        seed=0,
        command="none",
        tasks=(),
    )
