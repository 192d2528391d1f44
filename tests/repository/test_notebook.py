"""The documentation's notebook: it runs, its committed outputs are those of a fresh run, and it stays small."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.support.notebook import NOTEBOOK
from tests.support.programs import python

pytestmark = pytest.mark.slow

LARGEST_BYTES = 400_000
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def cells_of_code(path: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def printed(cell: NotebookNode) -> str:
    assert all(output.output_type in {"stream", "display_data"} for output in cell.outputs)
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def pictures(cell: NotebookNode) -> list[NotebookNode]:
    return [output for output in cell.outputs if output.output_type == "display_data"]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> list[NotebookNode]:
    output = tmp_path_factory.mktemp("notebook") / "fresh.ipynb"
    done = python("-m", "tests.support.notebook", output)
    assert done.returncode == 0, done.stdout + done.stderr
    return cells_of_code(output)


def test_committed_outputs_are_those_of_a_fresh_run(fresh: list[NotebookNode]) -> None:
    committed = cells_of_code(NOTEBOOK)
    assert [cell.source for cell in fresh] == [cell.source for cell in committed]
    for now, then in zip(fresh, committed, strict=True):
        assert NUMBER.sub("0", printed(now)) == NUMBER.sub("0", printed(then)), f"run `make notebook`:\n{now.source}"
        found, stated = (NUMBER.findall(printed(cell)) for cell in (now, then))
        for number, expected in zip(found, stated, strict=True):
            # Another processor rounds differently: a photo, a per cent, or two hundredths.
            tolerance = 0.02 if "." in expected and float(expected) < 2 else 1
            assert float(number) == pytest.approx(float(expected), abs=tolerance), f"run `make notebook`:\n{now.source}"
        assert len(pictures(now)) == len(pictures(then))


def test_the_committed_notebook_is_executed_in_order_and_small() -> None:
    counts = [cell.execution_count for cell in cells_of_code(NOTEBOOK)]
    assert counts == list(range(1, len(counts) + 1))
    assert NOTEBOOK.stat().st_size < LARGEST_BYTES


def test_pictures_are_described() -> None:
    shown = [picture for cell in cells_of_code(NOTEBOOK) for picture in pictures(cell)]
    assert len(shown) == 3
    for picture in shown:
        assert len(picture.metadata["image/jpeg"].alt) > 20
