"""Image sets converted to sets of embeddings, for a frozen backbone."""

import numpy as np
import torch
from tqdm import tqdm

from training.data import ImageSet
from training.data.resident import ResidentImages
from training.model import MetaModel

_BATCH = 1024


def embed_once(model: MetaModel, data: ImageSet) -> ImageSet:
    """The set with embeddings (n, d) or (n, V, d) float32 in place of images; the same seeds give the same episodes.

    Rotated classes have embeddings of their own, stored after those of the unrotated images.
    """
    count, views, width = len(data.images), data.views, model.backbone.embedding_size
    embeddings = np.empty((data.rotations * count, views, width), dtype=np.float32)
    pixels = ResidentImages(data, torch.device("cpu"))
    batches = [
        (turn, np.arange(first, min(first + _BATCH, count)))
        for turn in range(data.rotations)
        for first in range(0, count, _BATCH)
    ]
    for turn, indices in tqdm(batches, desc="embedding", leave=False, disable=None):
        images = pixels.gather_views(np.full(len(indices), turn), indices)
        embeddings[turn * count + indices] = model.embed(images.numpy()).reshape(-1, views, width)
    members = [own + turn * count for own in data.members for turn in range(data.rotations)]
    names = [name for name in data.names for _ in range(data.rotations)]
    groups = None if data.groups is None else np.tile(data.groups, data.rotations)
    return ImageSet(embeddings if views > 1 else embeddings[:, 0], tuple(members), tuple(names), groups=groups)
