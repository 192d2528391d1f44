"""Converts a bundle in float32 to INT8 on images of a folder, and compares the embeddings of the two."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from comln_serve.bundle import Bundle, load_bundle
from comln_serve.bundle.manifest import BACKBONE, HEAD
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.imaging import Preprocessing
from training.backbones.onnx_graph import drop_provenance
from training.bundles.manifest import file_entry, write_manifest
from training.bundles.quantise import REMEDY, cosines, quantise
from training.bundles.writer import bundle_draft
from training.data.image_folder import SUFFIXES
from training.data.images import DataError, build_image_set
from training.errors import ExportError

LEAST_COSINE = 0.9
_SEED = 0  # of the draw of images


def quantise_bundle(
    source: Path, folder: Path, images: NDArray[np.uint8], origin: str, float_layers: int = 0
) -> NDArray[np.float64]:
    """Write to `folder` the bundle in `source` with its backbone in INT8; returns cosines (n,) of its embeddings.

    They are those between the embeddings of the images in INT8 and in float32.

    The notes of the new bundle say that it was quantised, and on which images it was calibrated.

    Args:
        images: (n, S, S, 3), prepared as the bundle prepares them. origin: of the images, in words.
        float_layers: how many convolutions and matrix products at the beginning stay in float32.

    Raises:
        ExportError: the graph cannot be quantised, or its embeddings differ too much from those in float32.
    """
    bundle = load_bundle(source)
    quantised = quantise(onnx.load_from_string(bundle.backbone), images, float_layers)
    drop_provenance(quantised)
    with bundle_draft(folder) as draft:
        (draft / BACKBONE).write_bytes(quantised.SerializeToString())
        (draft / HEAD).write_bytes((source / HEAD).read_bytes())
        _describe(bundle, draft, "not verified yet")  # only a complete bundle can be loaded and verified
        found = cosines(*(OnnxBackbone(one, "cpu").embed(images) for one in (bundle, load_bundle(draft))))
        mean, least = found.mean(), found.min()
        if not mean >= LEAST_COSINE:
            raise ExportError(
                f"in INT8 the embeddings of {len(images)} images of {origin} have a cosine of "
                f"{mean:.3f} on average to those in float32 (least {least:.3f}; {LEAST_COSINE:g} is needed). "
                f"Calibrate on images like those the model will see, or {REMEDY}"
            )
        but = f", but for its first {float_layers} convolutions and matrix products" if float_layers else ""
        _describe(
            bundle,
            draft,
            f"INT8: the backbone computes in 8-bit integers{but}, quantised by ONNX Runtime "
            f"{ort.__version__}; the ranges of its activations come from {len(images)} images of "
            f"{origin}. Cosine of its embeddings to those in float32 on these images: "
            f"{mean:.4f} on average, {least:.4f} at least. Accuracies by "
            '"validation during training" are of the network in float32.',
        )
    return found


def _describe(bundle: Bundle, draft: Path, note: str) -> None:
    manifest = bundle.manifest
    notes = "\n\n".join(text for text in (manifest.training.notes, note) if text)
    update = {
        "files": manifest.files.model_copy(update={"backbone": file_entry(draft / BACKBONE)}),
        "training": manifest.training.model_copy(update={"notes": notes}),
    }
    write_manifest(draft, manifest.model_copy(update=update))


def load_calibration_images(folder: Path, count: int, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """At most `count` images below a folder, (n, S, S, 3) RGB, as the bundle prepares them for predictions.

    Equally many are taken from every subfolder with images, as long as it has enough. The same files
    always give the same images.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; images to calibrate with are expected below it")
    chosen = _spread(folder, count)
    if not chosen:
        raise DataError(f"{folder}: no image below it; images to calibrate with end in {', '.join(sorted(SUFFIXES))}")
    files = [(str(path.relative_to(folder)), path.read_bytes) for path in chosen]
    return build_image_set([(folder.name, files)], preprocessing.of_predictions, str(folder)).images


def _spread(folder: Path, count: int) -> list[Path]:
    """Files drawn from one folder after another in turns, at random within each folder."""
    rng = np.random.default_rng(_SEED)
    groups: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        # Archives made on macOS have a "._x.jpg" beside every "x.jpg".
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
            groups.setdefault(path.parent, []).append(path)
    # Shuffled, so that with fewer images than folders they are not of the first folders only.
    shuffled = [list(groups.values())[i] for i in rng.permutation(len(groups))]
    drawn = [[paths[i] for i in rng.permutation(len(paths))] for paths in shuffled]
    rounds = max(map(len, drawn), default=0)
    ordered = [paths[i] for i in range(rounds) for paths in drawn if i < len(paths)]
    return ordered[:count]
