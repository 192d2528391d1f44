"""Reads and verifies a bundle, without trusting any of its content."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError

from comln_serve.bundle.calibration import Calibration
from comln_serve.bundle.head import Head
from comln_serve.bundle.manifest import FORMAT_VERSIONS, MANIFEST, FileEntry, Manifest
from comln_serve.domain.classifier import ClassifierRecord

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_MANIFEST_BYTES = 4 * 2**20


class BundleError(ValueError):
    """The bundle cannot be used; the message names the folder, the part and the remedy."""


@dataclass(frozen=True)
class Bundle:
    """A verified bundle.

    Attributes:
        name: the folder's name, which is the model's name in requests.
        backbone: the bytes of the ONNX graph, exactly those whose checksum was verified.
    """

    name: str
    folder: Path
    manifest: Manifest
    head: Head
    backbone: bytes

    @cached_property
    def embedder_sha256(self) -> str:
        """Hash of what determines an image's embedding: the graph and the preprocessing."""
        return _hash_of(self.manifest.files.backbone.sha256, self.manifest.preprocessing.model_dump_json())

    @cached_property
    def head_sha256(self) -> str:
        """Hash of what determines a classifier, given the embeddings: the head and its solver."""
        # Written by json: the numbers of a newer Pydantic's JSON may look different.
        settings = [self.manifest.head.model_dump(mode="json"), asdict(self.manifest.solver)]
        return _hash_of(self.manifest.files.head.sha256, json.dumps(settings, sort_keys=True))

    def calibration_for(self, classifier: ClassifierRecord) -> Calibration | None:
        """The bundle's calibration, if it was measured for such classifiers; else None.

        It was not if an earlier head of the bundle adapted the classifier, or if its horizon does not follow the
        bundle's own rule. Of classifiers stored before the head's hash was, the head counts as this one.
        """
        if classifier.head_sha256 not in (None, self.head_sha256):
            return None
        return self.manifest.calibration if classifier.report is None or classifier.report.own_horizon else None

    def temperature_of(self, classifier: ClassifierRecord) -> float:
        """The temperature that the classifier's logits are divided by: the measured one, or 1."""
        measured = self.measured_temperature_of(classifier)
        return 1.0 if measured is None else measured

    def measured_temperature_of(self, classifier: ClassifierRecord) -> float | None:
        """The temperature by the calibration where it applies, else the report's; None: it has none, either."""
        calibration = self.calibration_for(classifier)
        if calibration is not None:
            return calibration.temperature_of(classifier.examples)
        return None if classifier.report is None else classifier.report.temperature

    def unknown_threshold_of(self, classifier: ClassifierRecord) -> float | None:
        """Similarity below which an image is unknown: the report's, else the calibration's, else None."""
        report, calibration = classifier.report, self.calibration_for(classifier)
        if report is not None and report.unknown_threshold is not None:
            return report.unknown_threshold
        nearest_other = None if report is None else report.nearest_other_class
        if calibration is None or (calibration.unknown_relative and nearest_other is None):
            return None
        return calibration.unknown_of(classifier.examples, nearest_other or 0.0)


def load_bundle(folder: Path) -> Bundle:
    """Read and verify the bundle in `folder`.

    Raises:
        BundleError: unknown format version, missing or altered file, path outside the folder,
            tensors with wrong names, types or shapes, or values out of range.
    """
    manifest = _read_manifest(folder)
    backbone = _read_file(folder, manifest.files.backbone)
    tensors = _read_tensors(folder, manifest.files.head)
    return Bundle(folder.name, folder, manifest, _head(folder, manifest, tensors), backbone)


def find_bundles(models_dir: Path) -> list[Path]:
    """The folders in `models_dir` that hold a `bundle.json`, but for hidden ones, in alphabetical order.

    Raises:
        BundleError: no such folder, or no bundle in it.
    """
    if not models_dir.is_dir():
        raise BundleError(f"{models_dir}: no such folder; --models-dir must hold bundle folders")
    found = sorted(path.parent for path in models_dir.glob(f"[!.]*/{MANIFEST}"))
    if not found:
        raise BundleError(
            f"{models_dir}: no bundle in it; expected {models_dir}/<name>/{MANIFEST}. Make one "
            "with comln-train wrap or comln-train export"
        )
    return found


def _hash_of(file: str, settings: str) -> str:
    return hashlib.sha256(f"{file}\n{settings}".encode()).hexdigest()


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise BundleError(f"{path}: larger than {_MAX_MANIFEST_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BundleError(f"{path}: missing; {folder} is not a bundle") from error
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{path}: not readable as JSON ({error})") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if version not in FORMAT_VERSIONS:
        later = type(version) is int and version > FORMAT_VERSIONS[-1]
        raise BundleError(
            f"{path}: format_version is {version!r}; this server reads versions "
            f"{FORMAT_VERSIONS[0]} to {FORMAT_VERSIONS[-1]}. "
            f"{'Upgrade the server, or export' if later else 'Export'} the bundle again with the comln-train of this "
            "release"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BundleError(f"{path}: {where}: {first['msg']}, got {first['input']!r:.200}") from error


def _read_file(folder: Path, entry: FileEntry) -> bytes:
    path = folder / entry.path
    if not _PLAIN_NAME.fullmatch(entry.path) or path.resolve().parent != folder.resolve():
        raise BundleError(
            f"{folder / MANIFEST}: the path {entry.path!r} is not a plain file name inside the bundle's folder"
        )
    try:
        if (size := path.stat().st_size) != entry.bytes:
            raise BundleError(f"{path}: {size} bytes; {MANIFEST} says {entry.bytes}")
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise BundleError(f"{path}: missing; restore the whole bundle folder") from error
    except OSError as error:
        raise BundleError(f"{path}: not readable ({error})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry.sha256:
        raise BundleError(
            f"{path}: SHA-256 {digest[:12]}...; {MANIFEST} says {entry.sha256[:12]}... The file "
            "was changed or damaged; restore the bundle"
        )
    return content


def _read_tensors(folder: Path, entry: FileEntry) -> dict[str, NDArray[Any]]:
    content = _read_file(folder, entry)
    try:
        return safetensors.numpy.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{folder / entry.path}: not a safetensors file ({error})") from error


def _head(folder: Path, manifest: Manifest, tensors: dict[str, NDArray[Any]]) -> Head:
    spec, where = manifest.head, folder / manifest.files.head.path
    shapes: dict[str, tuple[int, ...]] = {"T": ()}
    dtypes = {"T": np.float64, "alpha": np.float64, "W0": np.float32}
    if spec.start == "learned":
        if spec.ways is None:
            raise BundleError(f"{folder / MANIFEST}: head.ways is needed with a learned start")
        shapes["W0"] = (spec.ways, manifest.embedding_size)
    elif spec.ways is not None:
        raise BundleError(f"{folder / MANIFEST}: head.ways must be null with a {spec.start} start, got {spec.ways}")
    if spec.start == "prototype":
        shapes["alpha"] = ()
    if set(tensors) != set(shapes):
        raise BundleError(f"{where}: a {spec.start} start needs the tensors {sorted(shapes)}, found {sorted(tensors)}")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape or tensor.dtype != dtypes[name]:
            raise BundleError(
                f"{where}: {name} must be {np.dtype(dtypes[name])} {shape}, found {tensor.dtype} {tensor.shape}"
            )
        if not np.isfinite(tensor).all():
            raise BundleError(f"{where}: {name} holds NaN or infinity")
    if float(tensors["T"]) != spec.horizon:
        raise BundleError(f"{where}: T is {float(tensors['T'])!r}; {MANIFEST} says {spec.horizon!r}")
    of_both = {name: value for name, value in spec if name != "ways"}  # which W0 tells
    alpha = float(tensors["alpha"]) if "alpha" in tensors else None
    return Head(**of_both, solver=manifest.solver, W0=tensors.get("W0"), alpha=alpha)
