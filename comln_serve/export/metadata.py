"""Metadata of an exported file, as the text pairs that both formats can store."""

import json

from comln_serve.bundle import Bundle
from comln_serve.domain.classifier import Classifier
from comln_serve.report import temperature

FORMAT_VERSION = 1


def metadata(classifier: Classifier, bundle: Bundle) -> dict[str, str]:
    """What a user of the file alone needs to know. docs/export.md lists the keys."""
    manifest = bundle.manifest
    entries = {
        "format_version": str(FORMAT_VERSION),
        "classifier_id": classifier.id,
        "labels": json.dumps(classifier.labels, ensure_ascii=False),
        "temperature": repr(temperature(classifier, manifest.calibration) or 1.0),
        "horizon": repr(classifier.horizon),
        "created_at": classifier.created_at.isoformat(),
        "model": classifier.model,
        "embedder_sha256": classifier.embedder_sha256,
        "embedding_size": str(manifest.embedding_size),
        "preprocessing": manifest.preprocessing.model_dump_json(),
        "licence": manifest.licence,
    }
    if classifier.name is not None:
        entries["classifier_name"] = classifier.name
    return entries
