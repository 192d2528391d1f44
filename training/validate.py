"""Validation during training."""

from training.data import ImageSet
from training.evaluation.evaluate import Accuracy, evaluate
from training.model import MetaModel


def validate(model: MetaModel, data: ImageSet) -> list[Accuracy]:
    """Accuracy on the configured validation tasks, on the same episodes every time."""
    settings = model.config.validation
    embeddings, head = model.embed(data.images), model.head()
    return [
        evaluate(
            embeddings, head, data, ways=ways, shots=shots,
            queries=settings.queries, episodes=settings.episodes,
        )
        for ways, shots in settings.tasks
    ]  # fmt: skip
