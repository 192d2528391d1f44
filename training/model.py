"""What is meta-learned: Phi (the backbone), the start of the classifier, and log T."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from comln_serve.bundle.head import Head, SolverSettings
from training.backbones import Backbone
from training.config import Config
from training.gradient_flow import gradient_flow

SERVED_SOLVER = SolverSettings(rtol=1e-6, atol=1e-6, max_steps=200_000)


class MetaModel(nn.Module):
    """Backbone and head; `adapt` is equation 4 from the configured start.

    T = exp(log_T) and alpha = exp(log_alpha) stay positive whatever SGD does.
    """

    W0: nn.Parameter | None
    log_alpha: nn.Parameter | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        head = config.head
        self.backbone = Backbone(config.backbone, config.data.preprocessing.image_size)
        self.log_T = nn.Parameter(
            torch.tensor(math.log(head.initial_horizon), dtype=torch.float64),
            requires_grad=head.learn_horizon,
        )
        self.W0 = None
        self.log_alpha = None
        if head.start == "learned":
            self.W0 = nn.Parameter(torch.zeros(config.episodes.ways, self.backbone.embedding_size))
        elif head.start == "prototype":
            self.log_alpha = nn.Parameter(
                torch.tensor(math.log(head.initial_alpha), dtype=torch.float64)
            )

    def features(self, images: Tensor) -> Tensor:
        """Embeddings (n, d) float32 of uint8 images (n, S, S, 3), in the configured precision."""
        mixed = self.config.precision == "bfloat16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
            embeddings: Tensor = self.backbone(images)
        return embeddings.float()

    def adapt(self, phi: Tensor, Y: Tensor) -> Tensor:
        """Adapted classifiers W(T) (B, N, d) for support phi (B, M, d), one-hot Y (B, M, N)."""
        per_class = Y.sum(dim=1)  # (B, N)
        if self.W0 is not None:
            W0 = self.W0
        elif self.log_alpha is not None:
            prototypes = Y.transpose(1, 2) @ phi / per_class[:, :, None]
            W0 = self.log_alpha.exp().to(phi.dtype) * prototypes
        else:
            W0 = phi.new_zeros(Y.shape[-1], phi.shape[-1])
        weights = None
        if self.config.head.weighting == "balanced":
            weights = (Y / (Y.shape[-1] * per_class[:, None, :])).sum(dim=2)
        return gradient_flow(
            phi,
            W0,
            Y,
            self.log_T.exp(),
            lam=self.config.head.regularisation,
            weights=weights,
        )

    def head(self) -> Head:
        """The head as a bundle holds it, with the current values."""
        W0 = None if self.W0 is None else self.W0.detach().cpu().numpy().astype(np.float32)
        alpha = None if self.log_alpha is None else float(self.log_alpha.detach().exp())
        return Head(
            start=self.config.head.start,
            horizon=float(self.log_T.detach().exp()),
            regularisation=self.config.head.regularisation,
            weighting=self.config.head.weighting,
            solver=SERVED_SOLVER,
            W0=W0,
            alpha=alpha,
        )

    @torch.no_grad()
    def embed(self, images: np.ndarray, batch_size: int = 512) -> np.ndarray:
        """Embeddings (n, d) float32 of uint8 images (n, S, S, 3), with running statistics."""
        was_training = self.training
        self.eval()
        device = self.log_T.device
        parts = [
            self.features(torch.from_numpy(images[i : i + batch_size]).to(device)).cpu().numpy()
            for i in range(0, len(images), batch_size)
        ]
        self.train(was_training)
        return np.concatenate(parts)
