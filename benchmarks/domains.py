"""A head on images of a kind it was not meta-trained on: each data set in turn is left out.

    python -m benchmarks.domains BUNDLE --data groceries=PATH --data signs=PATH ... \
        [--kind drawings=omniglot] [--group 'signs=^\\d{5}'] [--recipe RECIPE] [--episodes 600]

All images are embedded once with the bundle's backbone. For each data set a head is meta-trained
by the recipe on episodes of all the others, and measured on episodes of the one left out beside
simple heads, those with their setting chosen by cross-validation on the support set among them. All
classes of a data set count, of Omniglot those for validation. Then the time to choose T and adapt
is compared with that of scikit-learn's LogisticRegressionCV, in turns. Writes domains.md and
domains.csv to --out.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.linear_model import LogisticRegressionCV
from threadpoolctl import threadpool_limits

from comln_serve.bundle import Head
from comln_serve.bundle.views import as_examples, views_of
from comln_serve.report import adapt
from training.commands.domains import add_data_arguments, find_domains
from training.commands.subject import open_subject
from training.config import Config
from training.data import ImageSet
from training.evaluation.baselines import BASELINES
from training.evaluation.compare import Measured, difference, measure
from training.evaluation.evaluate import Classify, adapted, unadapted
from training.evaluation.tasks import Task, parse_task
from training.evaluation.timing import milliseconds_in_turns
from training.results.accuracy import Difference, mean_over
from training.results.tables import markdown, write_csv
from training.runs.fit import fit

RECIPE = Path("training/recipes/photos-efficientnet-lite0.yaml")
TASKS = ("5x1", "5x5", "5x1-10", "20x5")
RIVALS = ("cosine", "logistic", "ridge-l2", "svm-l2", "ridge-cv", "logistic-cv", "svm-cv")
# These fit dozens of classifiers an episode, and are measured on fewer of the same episodes.
SLOW = ("logistic-cv", "svm-cv")
TIMED = ("5x5", "20x5")
_TIMED_EPISODES = 9
_CS: Any = np.logspace(-2, 3, 6)


_ABOUT = """`python -m benchmarks.domains` on the embeddings of {bundle}: each data set in turn is
left out of meta-training. {episodes} episodes a task ({slow} of them for {heads}), 15 queries a
class, seed {seed}; accuracy in percent with its 95% interval. In brackets how far `auto`, the head
with T chosen for each task, is ahead on the same episodes."""
_TIMES = """Milliseconds on one thread, medians in turns; LogisticRegressionCV has six values of C
and five folds."""


@dataclass(frozen=True)
class Row:
    """One head on one task of one data set; `ahead` of it the head that chooses its horizon."""

    data: str
    task: Task
    head: str
    measured: Measured
    ahead: Difference

    def values(self) -> dict[str, object]:
        """For the CSV file."""
        accuracy = self.measured.accuracy
        return {
            "data": self.data,
            "task": self.task,
            "head": self.head,
            "episodes": accuracy.episodes,
            "accuracy": accuracy.mean,
            "interval": accuracy.interval,
            "auto_ahead": self.ahead.mean,
            "ahead_interval": self.ahead.interval,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    add_data_arguments(parser)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--slow-episodes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    subject = open_subject(args.bundle)
    sets: dict[str, ImageSet] = {}
    for domain in find_domains(args, subject):
        data = domain.load("val" if domain.config.kind == "omniglot" else "all")
        sets[domain.name] = data.embedded(subject.embed)
        print(f"{domain.name}: {data.n_classes} classes, {len(data.images)} images", flush=True)
    rows: list[Row] = []
    heads: dict[str, Head] = {}
    for name, data in sets.items():
        others = {other: part for other, part in sets.items() if other != name}
        heads[name] = meta_trained(args.recipe, others)
        print(f"without {name}: {heads[name]}", flush=True)
        for text in TASKS:
            task = parse_task(text)
            # Fewer ways or queries where a data set has no more classes, or images of a class.
            spare = min(len(members) for members in data.members) - task.range[1]
            task = replace(task, ways=min(task.ways, data.n_classes), queries=min(task.queries, spare))
            rows += measured(heads[name], data, name, task, args)
    lines = report(args, sets, rows, heads)
    lines += ["", *times(heads, sets)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "domains.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_csv(args.out / "domains.csv", [row.values() for row in rows])
    print("\n".join(lines))


def meta_trained(recipe: Path, sets: dict[str, ImageSet]) -> Head:
    """The recipe's head, learned on embeddings of these data sets."""
    tree: dict[str, Any] = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    width = next(iter(sets.values())).images.shape[-1]
    tree["data"] = {"kind": "embeddings"}
    tree["backbone"] = {"kind": "identity", "embedding_size": width, "normalise": "l2"}
    tree["validation"] = {"every": tree["updates"], "episodes": 2, "tasks": [[5, 1]]}
    with tempfile.TemporaryDirectory() as folder:
        best = fit(Config.model_validate(tree), sets, sets, Path(folder) / "run", resume=False)
    return best.restore_model().head()


def measured(head: Head, data: ImageSet, name: str, task: Task, args: argparse.Namespace) -> list[Row]:
    """The head by both rules of its horizon, its start alone, and the simple heads."""

    def run(classify: Classify, episodes: int) -> Measured:
        return measure(data, classify, task, episodes, args.seed)

    own = run(adapted(head, "auto"), args.episodes)
    short = run(adapted(head, "auto"), args.slow_episodes)
    others: list[tuple[str, Classify]] = [
        ("learned T", adapted(head, "learned")),
        ("start alone", unadapted(head)),
        *((rival, BASELINES[rival].make(head, BASELINES[rival].value or 0.0)) for rival in RIVALS),
    ]
    rows = [Row(name, task, "auto", own, Difference(0.0, 0.0))]
    for rival, classify in others:
        base = short if rival in SLOW else own
        found = run(classify, args.slow_episodes if rival in SLOW else args.episodes)
        rows.append(Row(name, task, rival, found, difference(base, found)))
    for row in rows:
        print(f"  {task} {row.head}: {row.measured.accuracy.estimate}, auto ahead by {row.ahead}", flush=True)
    return rows


def report(
    args: argparse.Namespace, sets: dict[str, ImageSet], rows: Sequence[Row], heads: dict[str, Head]
) -> list[str]:
    """Tables by data set and task, and the mean over data sets."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    names = list(dict.fromkeys(row.head for row in rows))
    cells = {(row.data, row.task, row.head): row for row in rows}
    lines = [
        "# Heads on images of a kind they were not meta-trained on",
        "",
        _ABOUT.format(
            bundle=args.bundle.name,
            episodes=args.episodes,
            slow=args.slow_episodes,
            heads=" and ".join(SLOW),
            seed=args.seed,
        ),
        "",
    ]
    for name in sets:
        own = [task for task in tasks if (name, task, "auto") in cells]
        lines += [
            f"## {name} left out",
            "",
            markdown(
                ["head", *(task.words for task in own)],
                [[head, *(_cell(cells[name, task, head]) for task in own)] for head in names],
            ),
            "",
        ]
    lines += ["## Mean over data sets: how far `auto` is ahead", ""]
    ahead = {(row.data, str(row.task), row.head): row.ahead for row in rows}
    shared = [text for text in TASKS if all((name, text, "auto") in ahead for name in sets)]
    table = [
        [head, *(str(mean_over([ahead[name, text, head] for name in sets])) for text in shared)] for head in names[1:]
    ]
    lines += [markdown(["head", *shared], table), "", "## What was learned", ""]
    lines += [
        markdown(
            [
                "left out",
                "alpha",
                "similarity",
                "shot offset",
                "whitening r",
                "T at 5-way 1-shot",
                "5-way 5-shot",
                "20-way 5-shot",
            ],
            [
                [
                    name,
                    f"{head.alpha:.3g}",
                    f"{head.similarity:.3g}",
                    f"{head.shot_offset:.3g}",
                    f"{head.whitening:.3g}",
                    *(
                        f"{head.horizon_for(views_of(sets[name].images) * m, n, 1.0):.3g}"
                        for m, n in ((5, 5), (25, 5), (100, 20))
                    ),
                ]
                for name, head in heads.items()
            ],
        )
    ]
    return lines


def _cell(row: Row) -> str:
    found = str(row.measured.accuracy.estimate)
    return found if row.head == "auto" else f"{found} ({row.ahead})"


def times(heads: dict[str, Head], sets: dict[str, ImageSet]) -> list[str]:
    """Choosing T and adapting against LogisticRegressionCV on the same embeddings, one thread."""
    rows: list[list[str]] = []
    for text in TIMED:
        task = parse_task(text)
        name = next(name for name, data in sets.items() if data.n_classes >= task.ways)
        head, data = heads[name], sets[name]
        contenders: dict[str, Callable[[Any, Any], object]] = {
            "T chosen and adapted": lambda phi, c, h=head, n=task.ways: adapt(h, phi, c, n, horizon="auto"),
            "adapted to the learned T": lambda phi, c, h=head, n=task.ways: h.adapt(phi, c, n),
            "LogisticRegressionCV": lambda phi, c: LogisticRegressionCV(
                Cs=_CS, cv=5, max_iter=5000, scoring="neg_log_loss"
            ).fit(*as_examples(phi, c)),
        }
        drawn = (task.draw(data, 0, number) for number in (0, *range(_TIMED_EPISODES)))
        rounds = ((data.images[one.support], one.support_classes) for one in drawn)
        with threadpool_limits(1):
            medians = milliseconds_in_turns(contenders, rounds)
        whole = medians["T chosen and adapted"]
        rows.append(
            [
                f"{task.words} ({name})",
                *(f"{value:.3g}" for value in medians.values()),
                f"1/{medians['LogisticRegressionCV'] / whole:.0f}",
            ]
        )
    return [
        "## Time",
        "",
        _TIMES,
        "",
        markdown(
            ["task", "T chosen and adapted", "adapted to the learned T", "LogisticRegressionCV", "first over last"],
            rows,
        ),
    ]


if __name__ == "__main__":
    main()
