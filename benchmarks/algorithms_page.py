"""docs/algorithms.md and its figure, from the results of `benchmarks.algorithms`."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.rivals.listing import RIVALS
from benchmarks.rivals.record import Result, load
from benchmarks.rivals.rival import SCALAR_RATE
from benchmarks.rivals.tasks import PROBLEMS, QUERIES
from benchmarks.rivals.training import CLIP, RATE, TASKS
from training.results.accuracy import Estimate
from training.results.tables import markdown

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FIGURE = DOCS / "algorithms.md", DOCS / "images" / "algorithms.png"
OURS, NOT_RUN = "COMLN", "not run"
NAMES = {"miniimagenet": "miniImageNet", "omniglot": "Omniglot"}

_LEGEND = 2.1  # inches

Group = tuple[str, int, int, float]
"""Data, ways, shots and budget: what one table compares."""

# (ways, shots) -> from the paper's Table 5: on LEO's embeddings, test classes.
CITED = {
    "LEAP": {(5, 1): "50.95 +- 0.62", (5, 5): "66.72 +- 0.55"},
    "LEO": {(5, 1): "61.76 +- 0.08", (5, 5): "77.59 +- 0.12"},
}


def group_of(result: Result) -> Group:
    """The table a result belongs to."""
    cell = result.cell
    return cell.data, cell.ways, cell.shots, cell.budget


def grouped(results: Sequence[Result]) -> Mapping[Group, Mapping[str, list[Result]]]:
    """Results by table and algorithm, of all seeds; five shots before one."""
    ordered = sorted(results, key=lambda result: (*group_of(result)[:2], -result.cell.shots, result.cell.budget))
    tables: dict[Group, dict[str, list[Result]]] = {}
    for key, members in groupby(ordered, key=group_of):
        tables[key] = {}
        for result in members:
            tables[key].setdefault(result.cell.algorithm, []).append(result)
    return tables


def over_seeds(estimates: Sequence[Estimate]) -> Estimate:
    """Mean over seeds. All are measured on the same episodes, so that the interval stays that of one."""
    return Estimate(
        float(np.mean([found.mean for found in estimates])), float(np.mean([found.interval for found in estimates]))
    )


def rows(found: Mapping[str, Sequence[Result]], data: str, ways: int, shots: int) -> list[list[str]]:
    """A table's rows: the algorithms that were run, then the cited ones."""
    table: list[list[str]] = []
    for name in RIVALS:
        if name not in found:
            continue
        runs = found[name]
        final = [run.final for run in runs]
        usual, alone = over_seeds([point.usual for point in final]), over_seeds([point.alone for point in final])
        means = [100 * point.mean for point in final]
        learned = ", ".join(f"{key} {value:.3g}" for key, value in runs[0].learned.items())
        table.append(
            [
                name,
                str(usual),
                f"{len(runs)}" if len(runs) == 1 else f"{len(runs)}: {min(means):.2f} to {max(means):.2f}",
                "the same" if usual == alone else str(alone),
                f"{np.mean([point.updates for point in final]):.0f}",
                f"{np.median([run.gradient_ms for run in runs]):.0f}",
                f"{np.median([run.gradient_mb for run in runs]):.0f}",
                " to ".join(dict.fromkeys(f"{of([run.yardstick_ms for run in runs]):.0f}" for of in (min, max))),
                learned,
            ]
        )
    if data == "miniimagenet":
        table += [[name, f"cited: {CITED[name].get((ways, shots), NOT_RUN)}", *[""] * 7] for name in CITED]
    return table


def verdict(found: Mapping[str, Sequence[Result]]) -> str:
    """Who is ahead of COMLN, level with it and behind, by accuracy as each algorithm's authors measure it."""
    if OURS not in found:
        return f"{OURS} has not been run here."
    ours = over_seeds([run.final.usual for run in found[OURS]])
    places: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
    for name in RIVALS:
        if name == OURS or name not in found:
            continue
        other = over_seeds([run.final.usual for run in found[name]])
        far = abs(other.mean - ours.mean) > float(np.hypot(other.interval, ours.interval))
        place = "level" if not far else "ahead" if other.mean > ours.mean else "behind"
        places[place].append(f"{name} ({100 * (other.mean - ours.mean):+.1f})")
    lines = [
        f"- Ahead of {OURS} by more than the interval of the difference: {', '.join(places['ahead']) or 'none'}.",
        f"- Level with it: {', '.join(places['level']) or 'none'}.",
        f"- Behind it: {', '.join(places['behind']) or 'none'}.",
    ]
    left_out = [name for name in RIVALS if name not in found]
    return "\n".join([*lines, f"- Not run: {'; '.join(left_out)}."] if left_out else lines)


def section(key: Group, found: Mapping[str, Sequence[Result]]) -> str:
    """A table with its heading and verdict."""
    data, ways, shots, budget = key
    runs = [run for members in found.values() for run in members]
    header = [
        "algorithm",
        "accuracy, %",
        "seeds",
        "every query by itself",
        "updates",
        "ms a task",
        "MB a task",
        "yardstick, ms",
        "learned (seed 0)",
    ]
    tasks = " or ".join(map(str, sorted({run.final.episodes for run in runs})))
    machines = ", ".join(sorted({run.machine for run in runs}))
    dates = f"{min(run.date for run in runs)} to {max(run.date for run in runs)} UTC"
    return f"""## {NAMES[data]}, {ways}-way {shots}-shot, {budget:g} CPU seconds

{markdown(header, rows(found, data, ways, shots))}

Accuracy on {tasks} tasks of the validation classes ({machines}, {dates}).

{verdict(found)}
"""


def command(key: Group, found: Mapping[str, list[Result]]) -> str:
    """What runs a table's missing cells."""
    data, _, shots, budget = key
    ran = [result for results in found.values() for result in results]
    seeds = max(result.cell.seed for result in ran) + 1
    end, before = ran[0].final.episodes, ran[0].curve[0].episodes
    return (
        f"    python -m benchmarks.algorithms --data {data}=PATH --shots {shots} --budget {budget:g} --seeds {seeds} "
        f"--episodes {end} {before}"
    )


def page(results: Sequence[Result]) -> str:
    """docs/algorithms.md."""
    tables = grouped(results)
    settings = [[name, entry.settings] for name, entry in RIVALS.items()]
    shown = {data for data, *_ in tables} or set(PROBLEMS)
    sizes = " and ".join(f"{NAMES[name]} at {PROBLEMS[name].image_size} px" for name in PROBLEMS if name in shown)
    turned = "\n  Quarter turns of Omniglot's training characters are classes of their own."
    turns = turned if "omniglot" in shown else ""
    body = "\n".join(section(key, found) for key, found in tables.items()) or f"{NOT_RUN.capitalize()}.\n"
    figure = "![Accuracy over CPU time](images/algorithms.png)\n\n" if tables else ""
    commands = "\n".join(command(key, found) for key, found in tables.items())
    return f"""# Algorithms on equal terms

Meta-learning algorithms trained from random weights with one network (Conv-4 of 64 channels), on one data set, for one
budget of CPU time. The numbers are low because the budgets are: they show what an algorithm makes of a little
computation, not what it reaches in the end ([results.md](results.md), [paper.md](paper.md)). Written from
`benchmarks/results/algorithms` by `python -m benchmarks.algorithms --table`; this runs what is missing of the tables
below:

{commands}

{figure}{body}
"MB a task" is the peak of memory during one meta-gradient above that before it, "ms a task" its CPU time after
training, one task at a time. The yardstick is a fixed piece of work, in CPU time while the cell ran. Where it is
larger, the processor was slower or other programs slowed it down, and the algorithm did less in the same seconds:
compare accuracies only between rows of similar yardsticks.
[Table 1 of the paper](paper.md#table-1-memory-of-a-meta-gradient) has memory by number of gradient steps, which shows
whether COMLN's depends on T.

## What is equal

- **Data**: {sizes}, {TASKS} tasks an update, {QUERIES} queries a class, no augmentation.{turns}
- **Budget**: CPU time of one process with one thread, spent on drawing tasks, meta-gradients and the optimiser.
  Measuring does not count. Wall-clock time would have depended on what else the machine did.
- **Optimiser**: Adam, {RATE:g}, falling to 0 along a cosine over the budget; {SCALAR_RATE:g} times that for parameters
  that are single numbers; gradients clipped at norm {CLIP:g}; no weight decay. COMLN's and MetaOptNet's authors use SGD
  instead, the others Adam.
- **Settings**: none was searched for; those below are the authors', or the text says what differs.
- **Queries**: algorithms that adapt the network (MAML, iMAML, Meta-SGD, CAVIA) normalise all queries of a task
  together, as their authors do: a query is classified with the help of the others. The other algorithms classify each
  query by itself. In the column "every query by itself" the former take the statistics of the support images, which
  they were not trained with.

## Settings

{markdown(["algorithm", "settings"], settings)}

- MAML: 5 steps when measured, too, not 10. Meta-SGD: every weight's rate starts at 0.01. ANIL: rate of learn2learn's
  example.
- iMAML: settings of its authors' Omniglot code; the pull to the start is part of every inner step, as in the paper.
  On miniImageNet at five shots more training made it worse: 1200 seconds end at 26.3 %, 240 at 33.2 to 35.2, and in the
  long run its accuracy falls from 29.5 % after 300 seconds to 25.9 after 600. Other settings were not tried.
- MetaOptNet and R2D2: trained on as many ways and shots as are measured; their authors train on more.
- R2D2: lambda starts at 1 and is learned, as in the paper; the code fixes 50.
- LEAP and LEO are cited from the paper's Table 5: on LEO's embeddings (a wide residual network) of miniImageNet's test
  classes. LEO generates a head's weights from such embeddings, trained beforehand; it has no form that trains Conv-4
  from random weights. LEAP shortens the paths of long adaptations of whole networks, hundreds of steps for a task:
  within these budgets it would see a few dozen tasks.

The code is `benchmarks/rivals`, an algorithm a file, and tests compare each with its definition. No library has them
all: learn2learn 0.2.0 does not build with Python 3.11, the last release of `higher` is of 2020, and MetaOptNet's
solver, qpth, needs NumPy 1. The SVM is solved by scikit-learn; COMLN is this project's own (`training.gradient_flow`).
"""


def plot(results: Sequence[Result]) -> None:
    """Accuracy over CPU time, a line for each seed; a panel for each table."""
    tables = grouped(results)
    width = 6.2 * len(tables) + _LEGEND
    figure, axes = plt.subplots(1, len(tables), figsize=(width, 4.6), squeeze=False)
    colours = matplotlib.colormaps["tab20"]
    for axis, ((data, ways, shots, budget), found) in zip(axes[0], tables.items(), strict=True):
        for index, name in enumerate(RIVALS):
            if name not in found:
                continue
            ours = name.startswith(OURS)
            for number, run in enumerate(found[name]):
                axis.plot(
                    [point.seconds for point in run.curve],
                    [100 * point.mean for point in run.curve],
                    "o-" if ours else ".--",
                    ms=5 if ours else 4,
                    lw=2 if ours else 1,
                    color=colours(index),
                    label=name if number == 0 else None,
                )
        axis.set_title(f"{NAMES[data]}, {ways}-way {shots}-shot, {budget:g} CPU seconds")
        axis.set_xlabel("CPU time, s")
        axis.set_ylabel("accuracy on validation classes, %")
        axis.grid(visible=True, alpha=0.3)
    lines = [line for axis in axes[0] for line in axis.get_lines()]
    handles = {str(line.get_label()): line for line in lines if not str(line.get_label()).startswith("_")}
    figure.legend(handles.values(), handles.keys(), loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 1 - _LEGEND / width, 1))
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=100, metadata={"Software": None})
    plt.close(figure)


def write_page() -> None:
    """Write both from the stored results."""
    results = load()
    PAGE.write_text(page(results), encoding="utf-8")
    if results:
        plot(results)
