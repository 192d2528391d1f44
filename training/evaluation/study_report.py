"""A study as files: `study.md`, `solvers.csv`, `horizons.csv`, `study.png`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import writing
from training.evaluation.study import HorizonResult, SolverResult
from training.results.tables import markdown, write_csv


@dataclass(frozen=True)
class Study:
    """Everything measured, and how.

    Attributes:
        varies: whether the learned T depends on the task.
        command: the command that measures it again. machine: that the times were measured on, in words.
    """

    bundle: str
    split: str
    episodes: int
    queries: int
    seed: int
    varies: bool
    command: str
    machine: str
    solvers: tuple[SolverResult, ...]
    horizons: tuple[HorizonResult, ...]

    def write(self, folder: Path) -> None:
        """All four files, into a folder that is made if need be."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "study.md").write_text(self.markdown() + "\n", encoding="utf-8")
            write_csv(folder / "solvers.csv", [_solver_values(row) for row in self.solvers])
            write_csv(folder / "horizons.csv", [_horizon_values(row) for row in self.horizons])
            _plot(self, folder / "study.png")

    def markdown(self) -> str:
        """Both tables, without a newline at the end."""
        note = " The learned T follows the task:\nT and steps are medians over the episodes." if self.varies else ""
        return f"""# Solver and horizon of {self.bundle}

Split {self.split}, {self.episodes} episodes a task, {self.queries} queries a class, seed {self.seed};
accuracy in percent with 95% intervals. "Behind" is the mean difference episode by episode, with
its own interval.{note}

    {self.command}

## Solver

The served Dormand-Prince (dopri5) beside explicit Euler, which is gradient descent with this step
size as learning rate. Times: median of an adaptation, from embeddings to classifier, on one thread
({self.machine}).

{
            markdown(
                ["task", "solver", "step size", "steps", "accuracy", "behind dopri5", "ms", "time over dopri5's"],
                [_solver_cells(row) for row in self.solvers],
            )
        }

## Horizon

Accuracy for a T other than the learned one; T = 0 is the start alone.

{
            markdown(
                ["task", "T", "T over the learned", "accuracy", "behind the learned T"],
                [_horizon_cells(row) for row in self.horizons],
            )
        }

![accuracy by horizon, and by solver and time](study.png)"""


def _solver_cells(row: SolverResult) -> list[str]:
    adaptive = row.step_size is None
    return [
        row.task.words,
        row.name,
        "adaptive" if adaptive else f"{row.step_size:g}",
        "" if adaptive else str(row.steps),
        str(row.measured.accuracy.estimate),
        "" if adaptive else str(row.behind),
        f"{row.milliseconds:.3g}",
        f"{row.ratio:.3g}",
    ]


def _horizon_cells(row: HorizonResult) -> list[str]:
    return [
        row.task.words,
        f"{row.horizon:.4g}" + (" (learned)" if row.learned else ""),
        f"{row.factor:.3g}",
        str(row.measured.accuracy.estimate),
        "" if row.learned else str(row.behind),
    ]


def _solver_values(row: SolverResult) -> dict[str, Any]:
    return {
        "task": str(row.task),
        "solver": row.name,
        "step_size": row.step_size,
        "steps": row.steps,
        **_figures(row),
        "milliseconds": row.milliseconds,
        "ratio": row.ratio,
    }


def _horizon_values(row: HorizonResult) -> dict[str, Any]:
    return {
        "task": str(row.task),
        "horizon": row.horizon,
        "factor": row.factor,
        "learned": row.learned,
        **_figures(row),
    }


def _figures(row: SolverResult | HorizonResult) -> dict[str, float]:
    return {
        "accuracy": row.measured.accuracy.mean,
        "interval": row.measured.accuracy.interval,
        "behind": row.behind.mean,
        "behind_interval": row.behind.interval,
    }


def _plot(study: Study, path: Path) -> None:
    # Imported here, so that no other command waits for it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    by_horizon, by_time = figure.subplots(1, 2)
    tasks = list(dict.fromkeys(row.task for row in study.solvers))
    for index, task in enumerate(tasks):
        colour = f"C{index}"
        curve = [row for row in study.horizons if row.task == task and row.horizon > 0.0]
        by_horizon.errorbar(
            [row.factor for row in curve],
            [100 * row.measured.accuracy.mean for row in curve],
            [100 * row.measured.accuracy.interval for row in curve],
            fmt="o-",
            ms=3,
            capsize=2,
            color=colour,
            label=task.words,
        )
        dopri5, *euler = [row for row in study.solvers if row.task == task]
        euler.sort(key=lambda row: row.ratio)
        by_time.plot(
            [row.ratio for row in euler],
            [100 * row.measured.accuracy.mean for row in euler],
            "o-",
            ms=4,
            color=colour,
            label=f"Euler, {task.words}",
        )
        by_time.plot(
            [1.0], [100 * dopri5.measured.accuracy.mean], "*", ms=12, color=colour, label=f"dopri5, {task.words}"
        )
    by_horizon.axvline(1.0, color="grey", linestyle="--", label="learned T")
    by_horizon.set_xlabel("horizon T over the learned one")
    by_time.set_xlabel("time of an adaptation over dopri5's")
    by_horizon.set_ylabel("accuracy, %")
    for axis in (by_horizon, by_time):
        axis.set_xscale("log")
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
