"""The meta-learned parameters: Phi (the backbone), the classifier's start, and log T."""

import copy
import math
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from comln_serve.bundle.head import LEAST_COMMON, Head, HorizonLaw
from training.backbones.backbone import Backbone, Precomputed
from training.config import Config
from training.config.flow import SERVED_SOLVER
from training.config.head import REFERENCE_CLASSES, REFERENCE_EXAMPLES
from training.gradient_flow import gradient_flow
from training.gradient_flow.metric import whitened

_BATCH_PIXELS = 512 * 84**2


class MetaModel(nn.Module):
    """Backbone and head; `adapt` is equation 8 from the configured start.

    SGD updates the logarithms of T = exp(log_T) and alpha = exp(log_alpha), which therefore stay positive, and the log
    odds of the similarity sigmoid(similarity_odds) of a levelled start. A T that depends on the task is T (M / 25)^e_1
    (N / 5)^e_2 (mean ||phi||^2)^e_3 with learned exponents e. It is relative to a 5-way 5-shot task, so that T and the
    exponents are learned independently. With a metric of strength r = exp(log_whitening) a flow needs a time
    proportional to M, so e_1 starts at 1. The offset beta of the start is learned as it is, and the logarithm of the
    loss's temperature as an affine function of log (M / 25) and log (N / 5).
    """

    W0: nn.Parameter | None
    log_alpha: nn.Parameter | None
    similarity_odds: nn.Parameter | None
    shot_offset: nn.Parameter | None
    exponents: nn.Parameter | None
    log_whitening: nn.Parameter | None
    log_temperature: nn.Parameter | None

    backbone: Backbone | Precomputed

    def __init__(self, config: Config, *, pretrained: bool = True) -> None:
        """The model before training.

        Args:
            pretrained: false does not load the weights that the recipe names, because those of a
                checkpoint will replace them.
        """
        super().__init__()
        self.config = config
        head = config.head
        self.backbone = Backbone(config.backbone, config.data.preprocessing.image_size, pretrained=pretrained)
        self.log_T = _scalars(math.log(head.initial_horizon), learn=head.learn_horizon)
        by_examples = 1.0 if head.initial_whitening else 0.0
        self.exponents = _scalars([by_examples, 0.0, 0.0]) if head.condition_horizon else None
        self.log_whitening = _scalars(math.log(head.initial_whitening)) if head.initial_whitening else None
        self.log_temperature = _scalars([0.0, 0.0, 0.0]) if head.learn_temperature else None
        self.W0 = self.log_alpha = self.similarity_odds = self.shot_offset = None
        if head.start == "learned":
            self.W0 = nn.Parameter(torch.zeros(config.episodes.ways[0], self.backbone.embedding_size))
        elif head.start == "prototype":
            self.log_alpha = _scalars(math.log(head.initial_alpha))
            if (rho := head.initial_similarity) is not None:
                self.similarity_odds = _scalars(torch.tensor(rho, dtype=torch.float64).logit().item())
            if head.initial_shot_offset is not None:
                self.shot_offset = _scalars(head.initial_shot_offset)

    def mixed_precision(self) -> torch.autocast:
        """The context that runs the backbone in the configured precision."""
        mixed = self.config.precision == "bfloat16"
        return torch.autocast(self.log_T.device.type, torch.bfloat16, enabled=mixed)

    def embeddings(self, images: Tensor) -> Tensor:
        """Embeddings (n, d) float32 of uint8 images (n, S, S, 3)."""
        with self.mixed_precision():
            embeddings: Tensor = self.backbone(images)
        return embeddings

    def on_embeddings(self) -> Self:
        """The same model, sharing parameters and state, that takes embeddings in place of images."""
        if not isinstance(self.backbone, Backbone) or not self.backbone.frozen:
            raise ValueError("only a frozen backbone's embeddings can be computed in advance")
        model = copy.copy(self)
        model._modules = {**self._modules, "backbone": Precomputed(self.backbone)}
        return model

    def adapt(self, phi: Tensor, Y: Tensor) -> Tensor:
        """Adapted classifiers W(T) (B, N, d) for support phi (B, M, d), one-hot Y (B, M, N)."""
        per_class = Y.sum(dim=1)  # (B, N)
        if self.W0 is not None:
            W0 = self.W0
        elif self.log_alpha is not None:
            W0 = self._prototype_start(self.log_alpha.exp(), phi, Y)
        else:
            W0 = phi.new_zeros(Y.shape[-1], phi.shape[-1])
        weights = psi = None
        if self.config.head.weighting == "balanced":
            weights = (Y / (Y.shape[-1] * per_class[:, None, :])).sum(dim=2)
        if self.log_whitening is not None:
            uniform = phi.new_full(phi.shape[:2], 1.0 / phi.shape[1])
            psi = whitened(phi, uniform if weights is None else weights, self.log_whitening.exp())
        return gradient_flow(
            phi,
            W0,
            Y,
            self.horizon(phi, Y.shape[-1]),
            lam=self.config.head.regularisation,
            weights=weights,
            psi=psi,
            **self.config.flow.model_dump(),
        )

    def _prototype_start(self, alpha: Tensor, phi: Tensor, Y: Tensor) -> Tensor:
        """W(0) (B, N, d) as in `Head.initial_weights`, for support phi (B, M, d) and one-hot Y (B, M, N)."""
        per_class = Y.sum(dim=1)  # (B, N)
        means = Y.transpose(1, 2) @ phi / per_class[:, :, None]
        prototypes = means
        if self.similarity_odds is not None:
            rho = self.similarity_odds.sigmoid()
            lengths = (rho + (1 - rho) / per_class).sqrt().to(phi.dtype)
            prototypes = functional.normalize(means, dim=2) * lengths[:, :, None]
        W0 = alpha.to(phi.dtype) * prototypes
        if self.shot_offset is not None:
            fewer = per_class.log().mean(dim=1, keepdim=True) - per_class.log()
            common = functional.normalize(means.mean(dim=1), dim=1, eps=LEAST_COMMON)
            W0 = W0 + (self.shot_offset * fewer).to(phi.dtype)[:, :, None] * common[:, None, :]
        return W0

    def horizon(self, phi: Tensor, n_classes: int) -> Tensor:
        """T of each task (B,), or one scalar for all, for support phi (B, M, d)."""
        if self.exponents is None:
            return self.log_T.exp()
        norm = phi.double().square().sum(dim=2).mean(dim=1)
        examples, classes, length = self.exponents
        log_T = self.log_T + length * norm.clamp_min(1e-30).log()
        log_T = log_T + examples * math.log(phi.shape[1] / REFERENCE_EXAMPLES)
        log_T = log_T + classes * math.log(n_classes / REFERENCE_CLASSES)
        return log_T.exp()

    @property
    def shown_horizon(self) -> tuple[float, str]:
        """T for people, and of which task it is: that of the reference task where T depends on the task."""
        of = "" if self.exponents is None else f" for {REFERENCE_EXAMPLES} examples of {REFERENCE_CLASSES} classes"
        return math.exp(float(self.log_T.detach())), of

    def temperature(self, n_examples: int, n_classes: int) -> Tensor | float:
        """What the query logits of a task are divided by in the loss: a learned law of M and N, or 1.

        The flow's own loss has no temperature. Bundles do not contain the law: `calibrate` fits another on other
        classes.
        """
        if self.log_temperature is None:
            return 1.0
        constant, examples, classes = self.log_temperature
        law = constant + examples * math.log(n_examples / REFERENCE_EXAMPLES)
        return (law + classes * math.log(n_classes / REFERENCE_CLASSES)).exp()

    def head_parameters(self) -> list[nn.Parameter]:
        """The learned scalars: log T, its exponents, log alpha, similarity odds, beta, log r, the temperature's law."""
        found = (
            self.log_T,
            self.exponents,
            self.log_alpha,
            self.similarity_odds,
            self.shot_offset,
            self.log_whitening,
            self.log_temperature,
        )
        return [p for p in found if p is not None and p.requires_grad]

    def head(self) -> Head:
        """The head as stored in a bundle, with the current values."""
        W0 = None if self.W0 is None else self.W0.detach().cpu().numpy().astype(np.float32)
        alpha = None if self.log_alpha is None else float(self.log_alpha.detach().exp())
        odds, log_r = self.similarity_odds, self.log_whitening
        log_T, exponents = float(self.log_T.detach()), None
        if self.exponents is not None:
            exponents = HorizonLaw(*self.exponents.tolist())
            log_T -= exponents.examples * math.log(REFERENCE_EXAMPLES)
            log_T -= exponents.classes * math.log(REFERENCE_CLASSES)
        return Head(
            start=self.config.head.start,
            horizon=math.exp(log_T),
            regularisation=self.config.head.regularisation,
            weighting=self.config.head.weighting,
            solver=SERVED_SOLVER,
            W0=W0,
            alpha=alpha,
            similarity=None if odds is None else float(odds.detach().sigmoid()),
            shot_offset=0.0 if self.shot_offset is None else float(self.shot_offset.detach()),
            exponents=exponents,
            whitening=0.0 if log_r is None else float(log_r.detach().exp()),
            horizon_rule=self.config.head.horizon_rule,
        )

    @torch.no_grad()
    def embed(self, images: np.ndarray) -> np.ndarray:
        """Embeddings (n, d) float32 of uint8 images (n, S, S, 3), in evaluation mode."""
        # 512 images of 84 px, or fewer larger ones: the memory is used by activations.
        batch_size = max(1, min(512, _BATCH_PIXELS // math.prod(images.shape[1:3])))
        was_training = self.training
        self.eval()
        device = self.log_T.device
        parts = [
            self.embeddings(torch.from_numpy(images[i : i + batch_size]).to(device)).cpu().numpy()
            for i in range(0, len(images), batch_size)
        ]
        self.train(was_training)
        return np.concatenate(parts)


def _scalars(values: float | list[float], *, learn: bool = True) -> nn.Parameter:
    """Scalars of the head, in float64."""
    return nn.Parameter(torch.tensor(values, dtype=torch.float64), requires_grad=learn)
