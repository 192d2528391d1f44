"""Distillation: the backbone learns to find those images alike that a trained network finds alike.

What is compared are cosines between embeddings, the numbers that episodes classify by after `normalise: l2`, so teacher
and student may have embeddings of different sizes.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from comln_serve.bundle import BundleError, load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from training.data import ImageSet
from training.data.images import fit_pixels
from training.errors import BackboneError

# Cosines are multiplied by this before the softmax.
_SHARPNESS = 15.0
_BATCH = 64


class Teacher:
    """Embeddings of all training images by a bundle's network, each image as it is, without augmentation."""

    def __init__(self, bundle: Path, data: ImageSet, out: Path, device: torch.device) -> None:
        """Embed the images, which takes minutes for tens of thousands.

        Args:
            out: folder that keeps the embeddings, for a run that is resumed.
        """
        try:
            loaded = load_bundle(bundle)
        except BundleError as error:
            raise BackboneError(f"pretraining.teacher: {error}") from error
        pixels = fit_pixels(data.first_views, loaded.manifest.preprocessing.of_predictions)
        digest = hashlib.sha256(loaded.embedder_sha256.encode())
        digest.update(np.ascontiguousarray(pixels).data)
        kept = out / f"teacher-{digest.hexdigest()[:16]}.npy"
        if not kept.exists():
            network = OnnxBackbone(loaded, "cpu")
            parts = [network.embed(pixels[i : i + _BATCH]) for i in range(0, len(pixels), _BATCH)]
            temporary = kept.with_suffix(f".{os.getpid()}.npy")  # the processes of a group may each write one
            np.save(temporary, np.concatenate(parts))
            temporary.replace(kept)
        embeddings = np.load(kept)
        self._unit = functional.normalize(torch.from_numpy(embeddings), dim=1).to(device)

    def loss(self, features: Tensor, indices: NDArray[np.intp]) -> Tensor:
        """How far the student's similarities within a batch are from the teacher's, a scalar.

        For each image, the softmax of its similarities to the others is a distribution; the loss is the mean
        Kullback-Leibler divergence of the student's from the teacher's.

        Args:
            features: (n, d) of the student. indices: (n,) of the images in the data set.
        """
        teacher = self._unit[torch.from_numpy(indices).to(self._unit.device)]
        student = functional.normalize(features.float(), dim=1)
        return functional.kl_div(
            _log_similarities(student), _log_similarities(teacher), reduction="batchmean", log_target=True
        )


def _log_similarities(unit: Tensor) -> Tensor:
    """Log softmax (n, n - 1) of the similarities of each of n unit vectors to the others."""
    n = len(unit)
    others = ~torch.eye(n, dtype=torch.bool, device=unit.device)
    return functional.log_softmax(_SHARPNESS * (unit @ unit.T)[others].reshape(n, n - 1), dim=1)
