"""`comln models ls`."""

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import OnceGroup, Output, connected
from comln_serve.client.commands.tables import table


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
