"""Whether the models that are served let a classifier predict as it did when it was adapted."""

from collections.abc import Iterable

from comln_serve.client.commands.changes import differ
from comln_serve.client.commands.hints import command_line
from comln_serve.client.results import Classifier, Model


def trouble_of(item: Classifier, models: Iterable[Model]) -> tuple[str, str] | None:
    """What is wrong between a classifier and its model: in two words, and with what to do. None: nothing.

    Args:
        models: that are served.
    """
    model = next((one for one in models if one.name == item.model), None)
    if model is None:
        return "not served", (
            f"its model {item.model} is not served here, so it cannot predict: serve that bundle again, or adapt its "
            "images to another model"
        )
    if differ(item.embedder_sha256, model.embedder_sha256):
        return "another network", (
            f"the network or the preprocessing of {item.model} was replaced since, so it cannot predict: adapt to its "
            "images again (comln adapt), or serve the bundle again that it was adapted on"
        )
    if differ(item.head_sha256, model.head_sha256):
        return "earlier head", (
            f"the head of {item.model} was replaced since: its probabilities are not calibrated any more; "
            f"{command_line('classifiers adapt', item.reference)} adapts it again, without images"
        )
    return None
