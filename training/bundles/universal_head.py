"""The head of bundles made without training data by `comln-train wrap`."""

from comln_serve.bundle import Head
from comln_serve.bundle.head import HorizonLaw
from training.config import HeadConfig
from training.config.flow import SERVED_SOLVER
from training.config.head import REFERENCE_EXAMPLES

# Meta-learned and rounded: on embeddings of length 1 of three kinds of photos, with
# training/recipes/photos-efficientnet-lite0.yaml without inner layers, pooling and views.
# training/recipes/frozen-onnx.yaml starts from the same values; a test compares the two.
ALPHA, SIMILARITY, SHOT_OFFSET, WHITENING = 11.0, 0.7, 1.6, 22.0
# T = HORIZON M for M support examples, which is about the learned T at 20-way 5-shot and somewhat more
# than at 5-way. T is then chosen for each task around this value.
HORIZON = 200.0

UNIVERSAL_HEAD = Head(
    start="prototype",
    horizon=HORIZON,
    regularisation=0.0,
    weighting="balanced",
    solver=SERVED_SOLVER,
    alpha=ALPHA,
    similarity=SIMILARITY,
    shot_offset=SHOT_OFFSET,
    exponents=HorizonLaw(examples=1.0, classes=0.0, norm=0.0),
    whitening=WHITENING,
    horizon_rule="auto",
)

UNIVERSAL_HEAD_CONFIG = HeadConfig(
    start="prototype",
    weighting="balanced",
    initial_horizon=HORIZON * REFERENCE_EXAMPLES,
    condition_horizon=True,
    initial_alpha=ALPHA,
    initial_similarity=SIMILARITY,
    initial_shot_offset=SHOT_OFFSET,
    initial_whitening=WHITENING,
    learn_temperature=True,
    horizon_rule="auto",
)
"""The section `head` of a recipe that starts training from `UNIVERSAL_HEAD`."""
