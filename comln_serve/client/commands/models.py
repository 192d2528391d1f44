"""`comln models ls | reload`."""

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import OnceGroup, Output, connected
from comln_serve.client.commands.tables import shown, table


@click.group(cls=OnceGroup)
def models() -> None:
    """The models that are served."""


@models.command("ls")
@connected
def list_all(client: Client, output: Output) -> None:
    """List the models, and which one is used by default."""
    found = client.models()
    rows = [
        [item.name, "yes" if item.default else "", str(item.image_size), item.provider, item.description]
        for item in found
    ]
    output.show({"models": found}, lambda: table(["NAME", "DEFAULT", "PIXELS", "RUNS ON", "DESCRIPTION"], rows))


@models.command(short_help="Serve the bundles that the server's folder holds now.")
@connected
def reload(client: Client, output: Output) -> None:
    """Let the server serve the bundles that its folder of models holds now. No request fails for it."""
    done = client.reload_models()
    kinds = {"added": done.added, "replaced": done.replaced, "removed": done.removed, "unchanged": done.unchanged}
    lines = [shown(f"{kind}: {', '.join(names) or 'none'}") for kind, names in kinds.items()]
    output.show(done, lambda: "\n".join([*lines, shown(f"default: {done.default}")]))
