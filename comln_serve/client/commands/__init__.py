"""`comln`: the client on the command line."""

import click

from comln_serve import __version__
from comln_serve.client.commands.adapt import adapt
from comln_serve.client.commands.classifiers import classifiers
from comln_serve.client.commands.evaluate import evaluate
from comln_serve.client.commands.examples import examples
from comln_serve.client.commands.models import models
from comln_serve.client.commands.page import open_page
from comln_serve.client.commands.predict import predict


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(version)s")
def main() -> None:
    """Teach a server new classes from a few photos, and classify with them.

    The server is that of the variable COMLN_URL, or http://127.0.0.1:8000. Each command takes another as --url, after
    its own name (comln models ls --url ADDRESS), and most do without one with --local.

    Exit status: 0 done, 1 the server refused it or cannot be reached, 2 the command cannot be carried out as given,
    130 Ctrl-C.

    Shell completion: eval "$(_COMLN_COMPLETE=bash_source comln)", or zsh_source, fish_source.
    """


for command in (adapt, predict, evaluate, classifiers, examples, models, open_page):
    main.add_command(command)
