"""Exports the head alone, for users who have the bundle or the embeddings, and the metadata of every export."""

import json

import numpy as np
import safetensors.numpy

from comln_serve.bundle import Bundle
from comln_serve.domain.classifier import Classifier

FORMAT_VERSION = 1


def head_file(classifier: Classifier, bundle: Bundle) -> bytes:
    """A safetensors file with `W` (N, d) float32 and the metadata in its header.

    Probabilities are softmax(q W^T / temperature) for embeddings q (n, d) of the bundle's backbone.
    """
    W = np.ascontiguousarray(classifier.W, dtype=np.float32)
    return safetensors.numpy.save({"W": W}, metadata=metadata(classifier, bundle))


def metadata(classifier: Classifier, bundle: Bundle) -> dict[str, str]:
    """What a user of an exported file alone needs to know, as text pairs. docs/export.md lists the keys."""
    manifest = bundle.manifest
    entries = {
        "format_version": str(FORMAT_VERSION),
        "classifier_id": classifier.id,
        "labels": json.dumps(classifier.labels, ensure_ascii=False),
        "temperature": repr(bundle.temperature_of(classifier)),
        "horizon": repr(classifier.horizon),
        "created_at": classifier.created_at.isoformat(),
        "model": classifier.model,
        "embedder_sha256": classifier.embedder_sha256,
        "embedding_size": str(manifest.embedding_size),
        "preprocessing": manifest.preprocessing.model_dump_json(),
        "licence": manifest.licence,
    }
    if classifier.name is not None:
        entries |= {"classifier_name": classifier.name, "classifier_version": str(classifier.version)}
    threshold = bundle.unknown_threshold_of(classifier)
    if threshold is not None:
        entries["unknown_threshold"] = repr(threshold)
    return entries
