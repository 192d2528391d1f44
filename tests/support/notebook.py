"""Runs the documentation's notebook against a server of this checkout.

`make notebook` writes its outputs into docs/notebook.ipynb: `python -m tests.support.notebook docs/notebook.ipynb`.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.live import live_server
from tests.support.paths import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"
CELL_SECONDS = 120


def main() -> None:
    """Run the notebook and write it with its outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder, live_server(REPOSITORY / "models", Path(folder)) as server:
        _run(notebook, server.url)
    nbformat.write(notebook, output)


def _run(notebook: NotebookNode, url: str) -> None:
    """Replace all outputs; the first cell that fails ends it with an error."""
    metadata = dict(notebook.metadata)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    )
    paths = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    client.execute(env=os.environ | {"COMLN_URL": url, "PYTHONPATH": paths})
    notebook.metadata = metadata  # without the version of the Python that ran it


if __name__ == "__main__":
    main()
