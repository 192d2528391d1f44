"""The Python client of comln-serve. It needs the extra `client`, and nothing of what the server needs."""

from comln_serve.client.clients import AsyncClient, Client
from comln_serve.client.comparison import Comparison, compare
from comln_serve.client.errors import (
    BadImageError,
    ComlnError,
    IncompleteError,
    InputError,
    InterruptedPredicting,
    NoAnswerError,
    NotFoundError,
)
from comln_serve.client.evaluation import Evaluation
from comln_serve.client.results import (
    Adapted,
    Classifier,
    ClassifierDetail,
    Example,
    Health,
    Limits,
    Model,
    Prediction,
    Predictions,
    Report,
    Skipped,
)

__all__ = [
    "Adapted",
    "AsyncClient",
    "BadImageError",
    "Classifier",
    "ClassifierDetail",
    "Client",
    "ComlnError",
    "Comparison",
    "Evaluation",
    "Example",
    "Health",
    "IncompleteError",
    "InputError",
    "InterruptedPredicting",
    "Limits",
    "Model",
    "NoAnswerError",
    "NotFoundError",
    "Prediction",
    "Predictions",
    "Report",
    "Skipped",
    "compare",
]
