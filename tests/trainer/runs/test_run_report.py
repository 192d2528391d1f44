"""The report page of a run."""

from pathlib import Path

from tests.support.commands import Command
from tests.support.html import Page
from tests.support.training import colour_classes, config
from training.runs.fit import fit
from training.runs.report import write_report


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def drawings(page: Page) -> int:
    return len(page.all("svg"))


def test_a_run_writes_a_self_contained_page(tmp_path: Path) -> None:
    data, section = colour_classes(), {"epochs": 2, "batch_size": 16, "validate_every": 1}
    best = fit(config("prototype", pretraining=section), data, data, tmp_path, resume=False, command="fit <it>")
    page = read(write_report(tmp_path))
    assert drawings(page) == 5
    assert [address for address in page.values("src", "href") if not address.startswith("#")] == []
    assert "Horizon T by update" in [heading.text.strip() for heading in page.all("h2")]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "fit &lt;it&gt;" in text
    assert f"{100 * best.validation[0]['mean']:.2f} &plusmn;" in text


def test_without_pretraining_it_has_no_such_figures(tmp_path: Path) -> None:
    data = colour_classes()
    fit(config(), data, data, tmp_path, resume=False)
    assert drawings(read(write_report(tmp_path))) == 3


def test_a_complete_run_whose_log_is_lost(tmp_path: Path) -> None:
    data = colour_classes()
    first = fit(config(), data, data, tmp_path, resume=False)
    (tmp_path / "log.jsonl").unlink()
    again = fit(config(), data, data, tmp_path, resume=True)
    assert (again.update, again.best) == (first.update, first.best)
    (tmp_path / "log.jsonl").unlink(missing_ok=True)
    page = read(write_report(tmp_path))
    assert drawings(page) == 0
    assert "none: log.jsonl, of which they are made, is missing" in (tmp_path / "report.html").read_text()


def test_a_folder_without_a_run_or_without_a_measurement_is_refused(tmp_path: Path, comln_train: Command) -> None:
    said = comln_train.refused("report", tmp_path)
    assert "no such checkpoint; name the folder that fit got as --out" in said
    (tmp_path / "log.jsonl").touch()
    for said in (comln_train.refused("report", tmp_path), comln_train.refused("evaluate", tmp_path, "--data", ".")):
        assert "this run has not come to its first measurement yet" in said
