"""The paper's tables and figures beside this repository's, as docs/paper.md.

    python -m benchmarks.paper > docs/paper.md     (make paper)

Measures nothing: ours are read from the model cards' manifests and benchmarks/results. The paper's numbers are cited
from it (arXiv 2203.01443).
"""

import json
from itertools import product
from typing import Any

from benchmarks import backward_path, meta_gradient_rows, paper_figures, variants
from benchmarks.contenders import Case
from benchmarks.publishing import ROOT
from benchmarks.variants import Variant
from training.results.accuracy import Estimate
from training.results.tables import markdown

NOT_RUN = "not run"
RESULTS = "../benchmarks/results/meta_gradient"
ADJOINT = "derivation.md#methodadjoint-the-adjoint-of-the-reduced-flow-default"
SMALLER = "With a smaller Conv-4 run: [below](#figure-5-t-learned-and-t-fixed)"

# Table 2, accuracy in percent: miniImageNet 5-way 1-shot, 5-shot, tieredImageNet 5-way 1-shot, 5-shot.
TABLE_2 = """
MAML | Conv-4 | 48.70 +- 1.84 | 63.11 +- 0.92 | 51.67 +- 1.81 | 70.30 +- 1.75
ANIL | Conv-4 | 46.30 +- 0.40 | 61.00 +- 0.60 | 49.35 +- 0.26 | 65.82 +- 0.12
Meta-SGD | Conv-4 | 50.47 +- 1.87 | 64.03 +- 0.94 | 52.80 +- 0.44 | 62.35 +- 0.26
CAVIA | Conv-4 | 51.82 +- 0.65 | 65.85 +- 0.55 | 52.41 +- 2.64 | 67.55 +- 2.05
iMAML | Conv-4 | 49.30 +- 1.88 | 59.77 +- 0.73 | 38.54 +- 1.37 | 60.24 +- 0.76
MetaOptNet-RR | Conv-4 | 53.23 +- 0.59 | 69.51 +- 0.48 | 54.63 +- 0.67 | 72.11 +- 0.59
MetaOptNet-SVM | Conv-4 | 52.87 +- 0.57 | 68.76 +- 0.48 | 54.71 +- 0.67 | 71.79 +- 0.59
COMLN | Conv-4 | 53.01 +- 0.62 | 70.54 +- 0.54 | 54.30 +- 0.69 | 71.35 +- 0.57
MAML | ResNet-12 | 49.92 +- 0.65 | 63.93 +- 0.59 | 55.37 +- 0.74 | 72.93 +- 0.60
ANIL | ResNet-12 | 49.65 +- 0.65 | 59.51 +- 0.56 | 54.77 +- 0.76 | 69.28 +- 0.67
MetaOptNet-RR | ResNet-12 | 61.41 +- 0.61 | 77.88 +- 0.46 | 65.36 +- 0.71 | 81.34 +- 0.52
MetaOptNet-SVM | ResNet-12 | 62.64 +- 0.61 | 78.63 +- 0.46 | 65.99 +- 0.72 | 81.56 +- 0.53
COMLN | ResNet-12 | 59.26 +- 0.65 | 77.26 +- 0.49 | 62.93 +- 0.71 | 81.13 +- 0.53
"""
# Table 5: LEO's embeddings of miniImageNet, one linear layer.
TABLE_5 = """
MAML | 50.35 +- 0.63 | 65.28 +- 0.54
Meta-SGD, by Rusu et al. | 54.24 +- 0.03 | 70.86 +- 0.04
Meta-SGD | 50.57 +- 0.64 | 69.09 +- 0.53
iMAML | 50.26 +- 0.61 | 69.52 +- 0.51
R2D2 | 50.33 +- 0.62 | 70.38 +- 0.52
LRD2 | 50.41 +- 0.62 | 70.29 +- 0.52
LEAP | 50.95 +- 0.62 | 66.72 +- 0.55
MetaOptNet | 40.60 +- 0.60 | 50.94 +- 0.62
LEO, by Rusu et al., more than one layer | 61.76 +- 0.08 | 77.59 +- 0.12
COMLN | 50.39 +- 0.63 | 70.06 +- 0.52
"""
DATA_SETS = {"miniImageNet": "", "tieredImageNet": " --set data.kind=tieredimagenet"}
BACKBONES = {"Conv-4": "", "ResNet-12": " --set backbone.kind=resnet12"}
SHOTS = {1: ' --set episodes.shots=1 --set "validation.tasks=[[5, 1]]"', 5: ""}
LEO = (
    ' --set "data={kind: embeddings}" --set "augmentation={}" --set "backbone={kind: identity, embedding_size: 640}"'
    " --set episodes.tasks=16 --set optimiser.steps=[] --set updates=2000 --set validation.every=100"
)
EULER = ' --set "flow={solver: euler, step_size: 0.01}"'
# The bundle that comes nearest to a cell: its weights are not those of the cell's command.
NEAREST = {
    ("miniImageNet", "Conv-4", 1): "miniimagenet-conv4-paper-1shot",
    ("miniImageNet", "Conv-4", 5): "miniimagenet-conv4-paper",
    ("miniImageNet", "ResNet-12", 1): "miniimagenet-resnet12",
    ("miniImageNet", "ResNet-12", 5): "miniimagenet-resnet12",
}


def fit(options: str) -> str:
    """The command that trains a cell."""
    return f"`comln-train fit training/recipes/paper.yaml --data DATA --out RUN{options}`"


def rows(text: str) -> list[list[str]]:
    """A cited table's cells."""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def nearest(data: str, backbone: str, shots: int) -> str:
    """The accuracy of the bundle nearest to a cell of Table 2, from its manifest."""
    name = NEAREST.get((data, backbone, shots))
    if name is None:
        return NOT_RUN
    manifest: dict[str, Any] = json.loads((ROOT / "models" / name / "bundle.json").read_text(encoding="utf-8"))
    found = [
        f"{Estimate(entry['mean'], entry['interval'])} on the {entry['split']} classes"
        for entry in manifest["accuracy"]
        if (entry["ways"], entry["shots"]) == (5, shots)
    ]
    return f"{NOT_RUN}; nearest: [{name}](../models/{name}/README.md), {'; '.join(found)}"


def table_1() -> list[list[str]]:
    """Memory as measured, from the stored rows: 5-way 5-shot."""
    measured = {(row.part, row.contender, row.case): row for row in meta_gradient_rows.stored()}

    def megabytes(part: str, on: Any, contender: str, steps: int) -> str:
        row = measured.get((part, contender, Case(on, 5, 5, steps)))
        if row is None:
            return NOT_RUN
        return row.note.replace("would", "not run: would") or f"{row.extra_mb:.0f} MB"

    table = [
        ("MAML", "yes", "yes", "θ T", "images", "MAML"),
        ("ANIL", "yes", "no", "N d T", "embeddings", "ANIL"),
        ("Checkpointing every √T steps", "yes", "yes", "θ √T", "images", "MAML, checkpoints"),
        ("iMAML", "no", "yes", "θ", "images", "iMAML"),
        ("COMLN, forward sensitivity", "yes", "no", "M² N² + M³ N", "embeddings", "forward"),
        ("our adjoint, not in the paper", "yes", "no", "-", "embeddings", "adjoint"),
    ]
    found = [
        [*cited, on, *(megabytes("steps", on, contender, steps) for steps in (10, 100, 10_000))]
        for *cited, on, contender in table
    ]
    naive = megabytes("sizes", "embeddings", "naive forward", 1000)
    order = "N² d² + M N d²"
    found.insert(4, ["Forward sensitivity, naive", "yes", "no", order, "embeddings", "", "", f"{naive} (1000 steps)"])
    return found


def table_2() -> list[list[str]]:
    """The cells of COMLN beside ours, with their commands."""
    cited = {(row[0], row[1]): row[2:] for row in rows(TABLE_2)}
    found: list[list[str]] = []
    for backbone, (column, (data, shots)) in product(BACKBONES, enumerate(product(DATA_SETS, SHOTS))):
        options = DATA_SETS[data] + BACKBONES[backbone] + SHOTS[shots]
        paper = cited["COMLN", backbone][column]
        found.append([data, backbone, f"5-way {shots}-shot", paper, nearest(data, backbone, shots), fit(options)])
    return found


def distances() -> str:
    """Of Figure 2, as measured."""
    found: dict[str, float] = json.loads(backward_path.RESULT.read_text(encoding="utf-8"))
    return f"{found['quadratic']:.2g} with the quadratic loss, {found['task']:.3g} on the task"


def smaller_runs() -> str:
    """Figure 5 as it was run here."""
    runs = variants.load()
    usual = next(run for run in runs if run.variant == Variant())
    table = [
        [
            f"learned from {run.variant.T:g}" if run.variant.learned else f"fixed at {run.variant.T:g}",
            f"{float(f'{run.T:.3g}'):g}",
            str(run.accuracy),
            "" if run is usual else str(run.ahead_of(usual)),
            str(run.updates),
        ]
        for run in sorted(runs, key=lambda run: (not run.variant.learned, run.variant.T))
        if not run.variant.euler
    ]
    heads = ["T", "T after training", "accuracy, %", "minus that of T learned from 1", "updates"]
    return f"{described(runs)}\n\n{markdown(heads, table)}"


def full_size() -> str:
    """Figure 5, right, as the paper has it."""
    T, accuracy = paper_figures.LEARNED_T
    fixed = ", ".join(f"{accuracy:.2f} at {T:,g}" for T, accuracy in paper_figures.FIXED_T.items())
    return (
        f"The paper (cited; at 84 px, its whole training, test classes): {accuracy:.2f} % with a learned T of {T:.0f}; "
        f"with a fixed T {fixed}. Logits grow with T times the mean squared norm of the embeddings, so the T of one "
        "network means little for another. In the paper a long T costs nothing; in these short runs it costs three to "
        "four points."
    )


def solvers_here() -> str:
    """Table 4 as it was run here."""
    runs = {run.variant: run for run in variants.load()}
    usual, euler = runs[Variant()], runs[Variant(euler=True)]
    return (
        f"With the smaller runs of [Figure 5](#figure-5-t-learned-and-t-fixed): RK {usual.accuracy}, Euler "
        f"{euler.accuracy}; Euler minus RK on the same tasks {euler.ahead_of(usual)}."
    )


def described(runs: list[variants.Run]) -> str:
    """What was run, by the runs themselves."""
    seconds, episodes = round(max(run.seconds for run in runs), -1), len(runs[0].accuracies)
    machines = ", ".join(sorted({run.machine for run in runs}))
    return (
        f"Conv-4 on miniImageNet at 42 px instead of 84, 5-way 5-shot, {seconds:.0f} seconds of CPU time from random "
        f"weights, Adam, seed {variants.SEED} ({machines}), as in [algorithms.md](algorithms.md). Measured on the same "
        f"{episodes} tasks of the validation classes; differences are taken task by task."
    )


def page() -> str:
    """docs/paper.md."""
    beside = ["", "", "", "paper (cited)", "here", "command"]
    four = ["method", "network", *(f"{data} {shots}-shot" for data, shots in product(DATA_SETS, SHOTS))]
    solvers = [
        ["COMLN (RK)", "53.01 +- 0.62", "70.54 +- 0.54", NOT_RUN, f"{fit('')}, 1-shot with `{SHOTS[1].strip()}`"],
        ["COMLN (Euler)", "53.00 +- 0.83", "70.50 +- 0.72", NOT_RUN, f"{fit(EULER)}, 1-shot with `{SHOTS[1].strip()}`"],
    ]
    leo = [
        ["COMLN", f"5-way {shots}-shot", rows(TABLE_5)[-1][1 if shots == 1 else 2], NOT_RUN, fit(LEO + SHOTS[shots])]
        for shots in SHOTS
    ]
    figures = [
        ["1", "Adaptation in discrete and in continuous time", "An illustration.", ""],
        [
            "2",
            "The adjoint that recomputes W(t) backward diverges",
            f"[Below](#figure-2-the-path-recomputed-backward); the gradient is [off by 13 or 17 %]({ADJOINT}).",
            "`python -m benchmarks.backward_path`",
        ],
        [
            "3",
            "Memory and time of a meta-gradient, Conv-4",
            f"[Below](#figure-3-a-meta-gradient-of-conv-4); [all rows]({RESULTS}.md) and [figure]({RESULTS}.png).",
            "`python -m benchmarks.meta_gradient --only steps`",
        ],
        [
            "4",
            "The same, ResNet-12",
            f"[Below](#figure-4-a-meta-gradient-of-resnet-12); [all rows]({RESULTS}.md), also without the network.",
            "`python -m benchmarks.meta_gradient --only steps --panel resnet12 --panel 16000`",
        ],
        [
            "5, left",
            "T over meta-training, ResNet-12",
            f"{SMALLER}. Every run of `comln-train` has this curve in its `report.html`.",
            "`python -m benchmarks.variants --data DATA`",
        ],
        [
            "5, right",
            "Accuracy with a learned and with fixed T, Conv-4 5-shot",
            f"{SMALLER}. At the paper's size: not run.",
            "`python -m benchmarks.variants --data DATA`; at the paper's size "
            + fit(" --set head.learn_horizon=false --set head.initial_horizon=T"),
        ],
    ]
    return f"""# The paper's tables and figures

Each beside what this repository has measured, with the command that measures it. Figures of the paper (Deleu et al.,
[arXiv 2203.01443](https://arxiv.org/abs/2203.01443)) are cited. "{NOT_RUN}": nothing was measured here. `make paper`
writes this page from the manifests in `models` and from `benchmarks/results`; it measures nothing.

The paper measures on miniImageNet's and tieredImageNet's test classes, over 1000 tasks. `DATA` is the folder of the
data set ([where to get it](data.md#where-to-get-them)). The first lines of `training/recipes/paper.yaml` list what
differs from the paper. `comln-train evaluate RUN --data DATA --split test --task 5x5` measures a finished run, or 5x1.

## Table 1: memory of a meta-gradient

The paper gives orders of growth, with θ for the number of the network's parameters and T for the number of gradient
steps, and says which methods are exact and which adapt the whole network. Measured here: peak of memory above that
before the run, 5-way 5-shot, d = 1600, by the number of gradient steps of 0.01 (rows on images include Conv-4 itself):

{markdown(["method", "exact", "whole network", "paper (cited)", "measured on", "10 steps", "100", "10,000"], table_1())}

    python -m benchmarks.meta_gradient --only steps sizes

## Table 2: few-shot classification

COMLN, accuracy in percent:

{markdown(beside, table_2())}

The nearest Conv-4 bundles are of the paper's method, one for each number of shots, but had at most 60 updates of four
tasks on a CPU, from the weights of a bundle that was pre-trained on labels and by a larger network, instead of 60,000
of eight from random weights; their network has a [readout](backbones.md#conv-4s-readout) instead of the last ReLU and
embeds the mirror image, too, which the paper's does not. All were measured on the classes that chose their checkpoints.

What these commands take, scaled from one task (25 support and 75 query images, 10,000 gradient steps, of
[Figure 3](#figure-3-a-meta-gradient-of-conv-4) and [4](#figure-4-a-meta-gradient-of-resnet-12)) by the tasks of an
update, which `comln-train` has in memory together, and by the number of updates. Validation comes on top. A whole
update of Conv-4 on two cores, with its optimiser, took {paper_figures.whole_update()}.

{paper_figures.an_update()}

The other rows, all cited; [algorithms.md](algorithms.md) has these algorithms trained here, on equal terms:

{markdown(four, [row for row in rows(TABLE_2) if row[0] != "COMLN"])}

## Table 3: where the paper's baselines come from

No counterpart: the rows above are cited from the paper, which cites some of them from others.

## Table 4: solvers

miniImageNet, Conv-4, 5-way, accuracy in percent:

{markdown(["", "1-shot, paper (cited)", "5-shot, paper (cited)", "here", "command"], solvers)}

{solvers_here()}

`comln-train study BUNDLE` compares the solvers of an adaptation for any bundle, without training
([evaluation](evaluation.md#solver-and-horizon)).

## Table 5: LEO's embeddings of miniImageNet

{markdown(["", "", "paper (cited)", "here", "command"], leo)}

The other rows, all cited, none run here:

{markdown(["method", "5-way 1-shot", "5-way 5-shot"], rows(TABLE_5)[:-1])}

## Figures

{markdown(["figure", "of", "here", "command"], figures)}

### Figure 2: the path recomputed backward

![W(t) recomputed backward in time](images/backward-path.png)

Each flow is integrated forward from W(0) to W(T), then backward. Relative error of the W(0) that comes back:
{distances()}.

### Figure 3: a meta-gradient of Conv-4

Memory and time of one 5-way 5-shot task, 84 px, by the number of gradient steps of 0.01 (T = 0.01 x steps). The paper's
are of a V100 with 32 GB, and are the points that its source draws; ours are of two CPU cores, memory is the peak above
that before the run, and COMLN is the forward method. "-" and empty: not measured, most because it would have taken too
much memory or time.

{paper_figures.beside(1600)}

### Figure 4: a meta-gradient of ResNet-12

The same with the paper's ResNet-12 (random weights, d = 16,000). MAML's second row needs more than 18 GB here.

{paper_figures.beside(16_000)}

### Figure 5: T learned, and T fixed

![T over meta-training, and accuracy by T](images/variants.png)

{smaller_runs()}

{full_size()}
"""


if __name__ == "__main__":
    print(page(), end="")
