"""ProtoNet (Snell et al. 2017): the nearest class mean."""

import torch
from torch import Tensor

from benchmarks.rivals.embedding_rival import EmbeddingRival


class ProtoNet(EmbeddingRival):
    """Logits are minus the squared Euclidean distances to the class means."""

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        means = (Y.T @ phi) / Y.sum(dim=0)[:, None]
        return -torch.cdist(query, means, compute_mode="donot_use_mm_for_euclid_dist").square()
