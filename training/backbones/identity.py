"""The network of data that are already embeddings."""

import torch
from torch import Tensor, nn

from training.errors import BackboneError


class Identity(nn.Module):
    """Returns embeddings (B, d) float32 unchanged; refuses anything else."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.embedding_size = embedding_size

    def forward(self, embeddings: Tensor) -> Tensor:
        wanted = (self.embedding_size,)
        if embeddings.dtype != torch.float32 or tuple(embeddings.shape[1:]) != wanted:
            advice = ""
            if embeddings.ndim == 4:
                advice = "; for images, choose another backbone.kind"
            elif embeddings.ndim == 2:
                advice = f"; set backbone.embedding_size to {embeddings.shape[1]}"
            raise BackboneError(
                f'backbone.kind "identity" takes float32 embeddings (n, {self.embedding_size}); '
                f"got {embeddings.dtype} {tuple(embeddings.shape)}{advice}"
            )
        return embeddings
