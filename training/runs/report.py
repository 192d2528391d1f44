"""`report.html`: a run on one self-contained page.

It shows the loss, the validation accuracy with its 95% interval, and the horizon T over training (as
on the left of the paper's Figure 5).
"""

import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from training.checkpoint import Checkpoint
from training.checkpoint_names import BEST, LAST, LOG
from training.errors import writing
from training.runs.log import describe, read_log

REPORT = "report.html"

Records = list[dict[str, Any]]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem }}
table {{ border-collapse: collapse }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }}
svg {{ max-width: 100%; height: auto }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto }}
</style>
<h1>{title}</h1>
<table>{facts}</table>
<h2>Validation accuracy of the best checkpoint</h2>
<table><tr><th>task<th>accuracy, 95% interval<th>episodes</tr>{accuracy}</table>
{figures}
<h2>Recipe</h2>
<pre>{recipe}</pre>
</html>
"""


def write_report(out: Path) -> Path:
    """Write the report of the run in `out`; returns its path. Without the run's log it has no figures, and says so."""
    best, last = Checkpoint.load(out / BEST), Checkpoint.load(out / LAST)
    horizon, of = best.restore_model().shown_horizon
    log = read_log(out)
    phases = {phase: [r for r in log if r["phase"] == phase] for phase in ("pretraining", "episodes")}
    facts = {
        "command": last.command,
        "hardware": last.hardware,
        "time": f"{last.seconds / 60:.1f} minutes",
        "updates": f"{last.update} of {last.config.updates}; the best is that of {best.update}",
        "horizon": f"T = {horizon:.5g}{of}",
    }
    if not log:
        facts["figures"] = f"none: {LOG}, of which they are made, is missing or empty"
    figures = [
        _figure("Pre-training: loss by epoch", _loss, phases["pretraining"]),
        _figure("Pre-training: validation accuracy", _accuracy, phases["pretraining"]),
        _figure("Episodes: query loss by update", _loss, phases["episodes"]),
        _figure("Episodes: validation accuracy", _accuracy, phases["episodes"]),
        _figure("Horizon T by update", _horizon, phases["episodes"]),
    ]
    page = _PAGE.format(
        title=html.escape(f"Training run {out.resolve().name}"),
        facts="".join(f"<tr><th>{k}<td>{html.escape(v)}</tr>" for k, v in facts.items()),
        accuracy="".join(
            f"<tr><td>{html.escape(describe(a))}"
            f"<td>{100 * a['mean']:.2f} &plusmn; {100 * a['interval']:.2f} %"
            f"<td>{a['episodes']}</tr>"
            for a in best.validation
        ),
        figures="".join(figures),
        recipe=html.escape(yaml.safe_dump(last.config.model_dump(mode="json"), sort_keys=False)),
    )
    path = out / REPORT
    with writing(path):
        path.write_text(page, encoding="utf-8")
    return path


def _figure(title: str, draw: Callable[[Any, Records], bool], records: Records) -> str:
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import, and needed only here)

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot()
    if not draw(axes, records):
        return ""
    axes.set_xlabel("epoch" if records[0]["phase"] == "pretraining" else "update")
    axes.grid(alpha=0.3)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    drawing = buffer.getvalue()
    return f"<h2>{title}</h2>\n{drawing[drawing.index('<svg') :]}"


def _loss(axes: Any, records: Records) -> bool:
    axes.plot([r["step"] for r in records], [r["loss"] for r in records], marker=".")
    axes.set_ylabel("cross-entropy")
    return bool(records)


def _accuracy(axes: Any, records: Records) -> bool:
    tasks: dict[str, list[tuple[int, float, float]]] = {}
    for record in records:
        for a in record["validation"]:
            point = (record["step"], 100 * a["mean"], 100 * a["interval"])
            tasks.setdefault(describe(a), []).append(point)
    for name, points in tasks.items():
        steps, means, intervals = zip(*points, strict=True)
        axes.plot(steps, means, marker=".", label=name)
        low = [m - i for m, i in zip(means, intervals, strict=True)]
        high = [m + i for m, i in zip(means, intervals, strict=True)]
        axes.fill_between(steps, low, high, alpha=0.25)
    axes.set_ylabel("accuracy, %")
    if tasks:
        axes.legend()
    return bool(tasks)


def _horizon(axes: Any, records: Records) -> bool:
    axes.plot([r["step"] for r in records], [r["horizon"] for r in records], marker=".")
    axes.set_yscale("log")
    axes.set_ylabel("T, flow time")
    return bool(records)
