"""`comln models ls | reload`, and whether a classifier fits the models that are served."""

from collections.abc import Iterable

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import OnceGroup, Output, command_line, connected
from comln_serve.client.commands.tables import shown, table
from comln_serve.client.results import Classifier, Model


@click.group(cls=OnceGroup)
def models() -> None:
    """The models that are served."""


@models.command("ls")
@connected
def list_all(client: Client, output: Output) -> None:
    """List the models, and which one is used by default."""
    found = client.models()
    columns = {
        "NAME": [item.name for item in found],
        "DEFAULT": ["yes" if item.default else "" for item in found],
        "PIXELS": [str(item.image_size) for item in found],
        "RUNS ON": [item.provider for item in found],
        "DESCRIPTION": [item.description for item in found],
    }
    output.show({"models": found}, lambda: table(columns))


@models.command(short_help="Serve the bundles that the server's folder holds now.")
@connected
def reload(client: Client, output: Output) -> None:
    """Let the server serve the bundles that its folder of models holds now. No request fails for it."""
    done = client.reload_models()
    kinds = {"added": done.added, "replaced": done.replaced, "removed": done.removed, "unchanged": done.unchanged}
    lines = [shown(f"{kind}: {', '.join(names) or 'none'}") for kind, names in kinds.items()]
    output.show(done, lambda: "\n".join([*lines, shown(f"default: {done.default}")]))


def trouble_of(item: Classifier, served: Iterable[Model]) -> tuple[str, str] | None:
    """Why a classifier does not fit its model: in two words, and in a sentence with what to do. None: it fits."""
    model = next((one for one in served if one.name == item.model), None)
    if model is None:
        return "not served", (
            f"its model {item.model} is not served here, so it cannot predict: serve that bundle again, or adapt its "
            "images to another model"
        )
    if item.embedder_sha256 != model.embedder_sha256:
        return "another network", (
            f"the network or the preprocessing of {item.model} was replaced since, so it cannot predict: adapt to its "
            "images again (comln adapt), or serve the bundle again that it was adapted on"
        )
    if item.head_sha256 not in (None, model.head_sha256):
        return "earlier head", (
            f"the head of {item.model} was replaced since, so the model's calibration does not apply to it any more; "
            f"{command_line('classifiers adapt', item.reference)} adapts it again, without images"
        )
    return None
