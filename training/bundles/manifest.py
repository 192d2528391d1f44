"""A bundle's `bundle.json` and the model card rendered from it: written, and added to by measurements."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from comln_serve.bundle import AccuracyEntry, Calibration, ComparisonEntry, Manifest
from comln_serve.bundle.manifest import CARD, MANIFEST, FileEntry, StoredEmbeddings
from training.bundles.card import render_card
from training.errors import writing


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `bundle.json`, in the lowest format version that can hold it, and the model card rendered from it."""
    manifest = manifest.model_copy(update={"format_version": manifest.lowest_version})
    content = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    for name, text in ((CARD, render_card(folder.name, manifest)), (MANIFEST, content + "\n")):
        temporary = folder / f".{name}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / name)
        finally:
            temporary.unlink(missing_ok=True)


def file_entry(path: Path) -> FileEntry:
    """The file as a manifest lists it."""
    content = path.read_bytes()
    return FileEntry(path=path.name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def record_measurements(
    folder: Path, manifest: Manifest, accuracy: Sequence[AccuracyEntry], comparisons: Sequence[ComparisonEntry] = ()
) -> None:
    """Add measurements to a bundle; they replace earlier ones of the same split, data set and task.

    Earlier comparisons of a measured task are dropped if the bundle's own accuracy on it changed;
    otherwise those of heads that were not measured again are kept.
    """
    before = {_task(entry): _figures(entry) for entry in manifest.accuracy}
    measured = {_task(entry): _figures(entry) for entry in accuracy}
    changed = {task for task, figures in measured.items() if before.get(task) != figures}
    compared = {(_task(entry), entry.head) for entry in comparisons}
    kept = [entry for entry in manifest.accuracy if _task(entry) not in measured]
    kept_comparisons = [
        entry
        for entry in manifest.comparisons
        if _task(entry) not in changed and (_task(entry), entry.head) not in compared
    ]
    # Sorting is stable: the heads of a task stay in their order.
    update = {
        "accuracy": tuple(sorted([*kept, *accuracy], key=_task)),
        "comparisons": tuple(sorted([*kept_comparisons, *comparisons], key=_task)),
    }
    with writing(folder):
        write_manifest(folder, manifest.model_copy(update=update))


def record_calibration(
    folder: Path, manifest: Manifest, calibration: Calibration, stored_embeddings: StoredEmbeddings
) -> None:
    """Put a calibration in place of the bundle's earlier one, and set how servers store support embeddings."""
    update = {"calibration": calibration, "stored_embeddings": stored_embeddings}
    with writing(folder):
        write_manifest(folder, manifest.model_copy(update=update))


def _task(entry: AccuracyEntry | ComparisonEntry) -> tuple[str, str, int, tuple[int, int]]:
    shots = entry.shots
    least_and_most = (shots, shots) if isinstance(shots, int) else shots
    return entry.split, entry.data or "", entry.ways, least_and_most


def _figures(entry: AccuracyEntry) -> tuple[object, ...]:
    return entry.queries, entry.episodes, entry.seed, entry.mean, entry.interval
