"""Section `head`: start, horizon and metric of adaptation."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from comln_serve.bundle.head import HorizonRule, Start, Weighting
from training.config.section import NonNegative, Positive, Section

REFERENCE_EXAMPLES, REFERENCE_CLASSES = 25, 5
"""Examples and classes of the task whose horizon is learned; the exponents say how far others are from it."""


class HeadConfig(Section):
    """Start, horizon and metric of adaptation; see `comln_serve.bundle.head.Head`.

    Attributes:
        initial_horizon: T before training (log T is learned unless `learn_horizon` is false).
        condition_horizon: log T is learned as an affine function of log M, log N and
            log mean ||phi||^2, and so depends on the task; before training it is
            `initial_horizon` for every task; with `initial_whitening` it is `initial_horizon` * M / 25.
        initial_alpha: scale of a prototype start before training (log alpha is learned).
        initial_similarity: rho of a levelled prototype start before training (its log odds are
            learned); null: prototypes keep their own norms.
        initial_shot_offset: beta of the start, for unequal shots, before training (beta is learned); null: the
            start has no such term.
        initial_whitening: strength r of the flow's metric before training (log r is learned); 0: the
            paper's flow, without a metric.
        learn_temperature: the loss divides the query logits by a temperature, whose logarithm is learned as an affine
            function of log M and log N. Otherwise the loss holds T back: a longer flow has larger logits, which raise
            the loss of wrong answers even if there are fewer of them. Bundles leave the temperature out;
            `comln-train calibrate` measures the scale of their logits.
        horizon_rule: how the bundle chooses T unless a request says otherwise: "learned", or "auto",
            by each task's own support images.
    """

    start: Start = "prototype"
    weighting: Weighting = "balanced"
    regularisation: NonNegative = 0.0
    initial_horizon: Positive = 1.0
    learn_horizon: bool = True
    condition_horizon: bool = False
    initial_alpha: Positive = 1.0
    initial_similarity: Annotated[float, Field(gt=0, lt=1)] | None = None
    initial_shot_offset: NonNegative | None = None
    initial_whitening: NonNegative = 0.0
    learn_temperature: bool = False
    horizon_rule: HorizonRule = "learned"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key in ("initial_similarity", "initial_shot_offset"):
            if getattr(self, key) is not None and self.start != "prototype":
                raise ValueError(f"{key} is for a prototype start, not a {self.start} one")
        if self.condition_horizon and not self.learn_horizon:
            raise ValueError("condition_horizon needs learn_horizon")
        return self
