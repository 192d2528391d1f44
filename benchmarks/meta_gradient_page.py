"""The report of the comparison of meta-gradients: Markdown tables and a figure."""

import platform
from collections import Counter

import matplotlib

from benchmarks.contenders import RATE
from benchmarks.meta_gradient_rows import Row
from benchmarks.publishing import RESULTS
from comln_serve.machine import usable_cpus
from training.runs.hardware import processor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Of the figure, by on, d and offset.
TITLES = {
    ("images", 1600, 0.0): "Conv-4, whole meta-gradient",
    ("images", 16_000, 0.0): "ResNet-12, whole meta-gradient",
    ("embeddings", 1600, 0.0): "embeddings, d = 1600",
    ("embeddings", 16_000, 0.0): "embeddings, d = 16000",
}


def write(rows: list[Row], share: dict[str, float] | None) -> None:
    """Write the Markdown tables and the figure."""
    lines = [
        (
            f"Measured on {usable_cpus()} CPU cores ({processor()}), Python "
            f"{platform.python_version()}, each row in a process of its own; medians. Memory is "
            f"the peak above that before the run. T = {RATE:g} x steps. Errors are relative, against float64 at 1e-11: "
            "the larger of dphi and dW0, and dT."
        ),
        "",
        (
            "The embeddings are Gaussian clusters, one a class, of mean squared norm 100. Without an offset those of "
            "different classes are nearly orthogonal; the offset is a component that all share, as embeddings of real "
            "images do (their mean cosine between classes is about 1/3, as with offset 1). On images the network is "
            "Conv-4 (d = 1600) or the paper's ResNet-12 (d = 16000) with random weights, its embeddings scaled to the "
            "same norm."
        ),
        "",
    ]
    for part, title in (
        ("goals", "In turns with JAX's forward sensitivity"),
        ("offset", "The same on embeddings that share an offset"),
        ("steps", "By gradient steps, 5-way 5-shot"),
        ("sizes", "By ways x shots"),
    ):
        chosen = [row for row in rows if row.part == part]
        if chosen:
            lines += [f"## {title}", "", *_table(chosen), ""]
    if share:
        lines += [
            "## Share of a training step",
            "",
            (
                f"Conv-4, 84 px, {share['tasks']:.0f} tasks of 5-way 5-shot and 15 queries, T = "
                f"{share['T']:g}: a step takes {share['step_ms']:.0f} ms, of which the adaptation "
                f"and its meta-gradient {share['flow_ms']:.1f} ms: {100 * share['share']:.2f} %."
            ),
            "",
        ]
    (RESULTS / "meta_gradient.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    if any(row.part == "steps" for row in rows):
        plot([row for row in rows if row.part == "steps"])


def _table(rows: list[Row]) -> list[str]:
    """A Markdown table; "*" marks what was measured in another run than most rows of its panel."""
    lines = [
        "| on | ways x shots | d | steps | offset | method | ms | adjoint is faster by | extra MB | error | of dT |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ours = {row.case: row for row in rows if row.contender == "adjoint"}
    usual = {
        panel: Counter(row.run for row in rows if row.panel == panel).most_common(1)[0][0]
        for panel in {row.panel for row in rows}
    }
    other = sorted({row.run for row in rows if row.runs and row.run != usual[row.panel]})
    for row in rows:
        case = row.case
        start = f"| {case.on} | {case.ways} x {case.shots} | {case.d} | {case.steps:g} | {case.offset:g} |"
        if row.note:
            lines.append(f"{start} {row.contender} | {row.note} | | | | |")
            continue
        mark = "" if row.run == usual[row.panel] else "*"
        ratio = ""
        if row.contender != "adjoint" and case in ours:
            ratio = f"{row.median / ours[case].median:.3g} x{'' if row.run == ours[case].run else '*'}"
        error = max((row.errors[key] for key in ("phi", "W0") if key in row.errors), default=None)
        cells = [f"{row.contender}{mark}", f"{row.median:.2f}", ratio, f"{row.extra_mb:.1f}"]
        cells += ["" if x is None else f"{x:.0e}" for x in (error, row.errors.get("T"))]
        lines.append(f"{start} {' | '.join(cells)} |")
    if other:
        runs = ", ".join(other)
        lines += ["", f"\\* measured in another run than its panel's other rows ({runs}); a ratio with *: across runs."]
    return lines


def plot(rows: list[Row]) -> None:
    """Time and memory by gradient steps: the paper's Figures 3 and 4 on this machine."""
    panels = [panel for panel in TITLES if any(row.panel == panel for row in rows)]
    names = list(dict.fromkeys(row.contender for row in rows))
    figure, axes = plt.subplots(2, len(panels), figsize=(4.2 * len(panels), 7), sharex=True, squeeze=False)
    for column, panel in enumerate(panels):
        for index, name in enumerate(names):
            mine = [row for row in rows if row.panel == panel and row.contender == name and row.runs]
            x = [row.case.steps for row in mine]
            for axis, values in (
                (axes[0][column], [row.median for row in mine]),
                (axes[1][column], [max(row.extra_mb, 0.1) for row in mine]),
            ):
                axis.loglog(x, values, "o-", ms=3, color=f"C{index}", label=name)
        axes[0][column].set_title(TITLES[panel])
        axes[1][column].set_xlabel(f"gradient steps (T = {RATE:g} x steps)")
    axes[0][0].set_ylabel("time of a meta-gradient, ms")
    axes[1][0].set_ylabel("peak extra memory, MB")
    for axis in axes.flat:
        axis.grid(visible=True, alpha=0.3)
    handles = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncol=len(handles))
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(RESULTS / "meta_gradient.png", dpi=110)
