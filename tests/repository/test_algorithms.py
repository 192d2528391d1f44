"""`python -m benchmarks.algorithms`: cells that are kept, and the page that is made of them."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import algorithms, algorithms_page
from benchmarks.rivals import record
from benchmarks.rivals.listing import RIVALS
from benchmarks.rivals.record import Cell, Measured, Result
from tests.support.characters import characters
from tests.support.paths import REPOSITORY


def result(algorithm: str, mean: float, seed: int = 0, budget: float = 240.0, alone: float | None = None) -> Result:
    other = mean if alone is None else alone
    return Result(
        Cell("miniimagenet", 5, 5, algorithm, seed, budget),
        (Measured(30.0, 10, 60, 0.25, 0.01, 0.25, 0.01), Measured(budget, 100, 300, mean, 0.01, other, 0.01)),
        gradient_ms=100.0,
        gradient_mb=30.0,
        yardstick_ms=50.0,
        machine="a processor",
        torch="2",
        date="2026-01-01 00:00",
        learned={"T": 2.0} if algorithm == "COMLN" else {},
    )


def test_the_page_is_up_to_date() -> None:
    expected = algorithms_page.page(record.load())
    assert algorithms_page.PAGE.read_text(encoding="utf-8") == expected, "python -m benchmarks.algorithms --table"


def test_a_result_is_kept_and_its_cell_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    cells = algorithms.missing(["miniimagenet"], [5], 2, 240.0, list(RIVALS))
    assert len(cells) == 2 * len(RIVALS) == len({cell.path for cell in cells})
    done = result("COMLN", 0.5)
    done.save()
    assert record.load() == [done]
    assert [cell for cell in cells if cell.path.exists()] == [done.cell]
    assert set(algorithms.missing(["miniimagenet"], [5], 2, 240.0, list(RIVALS))) == set(cells) - {done.cell}
    assert algorithms.missing(["miniimagenet"], [5], 1, 60.0, ["COMLN"]) != []  # another budget


def test_tables_compare_one_budget_and_say_what_was_not_run() -> None:
    results = [
        result("COMLN", 0.5),
        result("ProtoNet", 0.53, seed=0),
        result("ProtoNet", 0.55, seed=1),
        result("MAML", 0.505, alone=0.4),
        result("ANIL", 0.4),
        result("ANIL", 0.7, budget=1200.0),
    ]
    text = algorithms_page.page(results)
    short, long = text.split("## miniImageNet, 5-way 5-shot, ")[1:]
    assert short.startswith("240 CPU seconds")
    assert long.startswith("1200 CPU seconds")
    assert "| COMLN | 50.00 +- 1.00 | 1 | the same | 100 | 100 | 30 | 50 | T 2 |" in short
    assert "| ProtoNet | 54.00 +- 1.00 | 2: 53.00 to 55.00 | the same |" in short
    assert "| MAML | 50.50 +- 1.00 | 1 | 40.00 +- 1.00 |" in short
    assert "Not run: COMLN, prototype start; MetaOptNet, ridge; " in short
    assert "| iMAML |" not in short
    assert "| LEO | cited: 77.59 +- 0.12 |" in short
    assert "more than the interval of the difference: ProtoNet (+4.0)." in short
    assert "Level with it: MAML (+0.5)." in short
    assert "Behind it: ANIL (-10.0)." in short
    assert "COMLN has not been run here." in long


def test_the_figure_has_a_panel_for_each_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms_page, "FIGURE", tmp_path / "images" / "figure.png")
    algorithms_page.plot([result("COMLN", 0.5), result("MAML", 0.4), result("ANIL", 0.7, budget=1200.0)])
    assert (tmp_path / "images" / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--data NAME=PATH is needed"),
        (["--data", "elsewhere"], "NAME one of miniimagenet, omniglot, got 'elsewhere'"),
        (["--data", "omniglot=/nowhere", "--seeds", "0"], "must be positive"),
        (["--data", "omniglot=/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["algorithms", *options])
    with pytest.raises(SystemExit):
        algorithms.main()
    assert words in capsys.readouterr().err


def test_a_cell_is_run_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    images = characters()
    cell = Cell("omniglot", 5, 1, "ProtoNet", 0, 0.2)
    found = algorithms.run(cell, images, images, 4, 2)
    found.save()
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["cell"]["algorithm"] == "ProtoNet"
    assert record.load() == [found]
    assert found.final.seconds >= 0.2
    assert found.final.episodes == 4
    assert found.gradient_ms > 0
    assert found.gradient_mb > 0


def test_results_hold_no_images() -> None:
    assert {path.suffix for path in (REPOSITORY / "benchmarks" / "results" / "algorithms").iterdir()} <= {".json"}
