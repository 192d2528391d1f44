"""Exports the head alone, for users who have the bundle or the embeddings."""

import numpy as np
import safetensors.numpy

from comln_serve.bundle import Bundle
from comln_serve.domain.classifier import Classifier
from comln_serve.export.metadata import metadata


def head_file(classifier: Classifier, bundle: Bundle) -> bytes:
    """A safetensors file with `W` (N, d) float32 and the metadata in its header.

    Probabilities are softmax(q W^T / temperature) for embeddings q (n, d) of the bundle's backbone.
    """
    W = np.ascontiguousarray(classifier.W, dtype=np.float32)
    return safetensors.numpy.save({"W": W}, metadata=metadata(classifier, bundle))
