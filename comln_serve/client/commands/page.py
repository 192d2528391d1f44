"""`comln open`."""

import sys

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import JSON, URL, OnceCommand, Output


@click.command("open", cls=OnceCommand)
@URL
@click.option("--print", "only_print", is_flag=True, help="Print the address; open no browser.")
@JSON
def open_page(*, url: str | None, only_print: bool, as_json: bool) -> None:
    """Open the server's page in a browser, and print its address."""
    with Output(as_json=as_json) as output, Client(url) as client:
        client.live()
        page = f"{client.url}/"
        output.show({"page": page}, lambda: page)
    if not (only_print or as_json) and sys.stdout is not None and sys.stdout.isatty():
        click.launch(page)
