"""How honest a report is: bursts in the support set, and a photo under the wrong label.

    python -m benchmarks.honest_report BUNDLE --groceries FOLDER --signs FOLDER [--tasks 100] [--seed 0]

The folders hold a folder of photos for each class; the first five digits of a sign's file name are
its track, whose frames show one sign. The first table has the accuracy by leaving out near-duplicates
together, as reported, by leaving out every image by itself, and on up to 15 other photos of each
class (of a sign: of other tracks). The second table has tasks in which one more photo of the second
class is given as the first. Prints both with 95 % intervals over tasks.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle, load_bundle
from comln_serve.domain.report import Report
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.imaging import difference_hash, prepare_views
from comln_serve.report import adapt, make_report
from training.results.accuracy import mean_and_interval
from training.results.tables import markdown

QUERIES = 15
# Ways, scenes of each class (of signs: tracks), and photos of each scene.
TASKS = (
    ("signs", 5, 1, 5),
    ("signs", 5, 1, 3),
    ("signs", 5, 2, 5),
    ("signs", 5, 4, 4),
    ("signs", 5, 5, 1),
    ("signs", 5, 20, 1),
    ("groceries", 5, 5, 1),
    ("groceries", 5, 20, 1),
)
_NUMBERS = {1: "one track", 2: "two tracks", 4: "four tracks"}
PLANTED = (("groceries", 3, 4), ("groceries", 5, 4), ("signs", 3, 4))

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Photos:
    """Embedded photos (n, V, d), and the hash, class and scene of each."""

    phi: NDArray[np.float32]
    hashes: list[int | None]
    classes: NDArray[np.str_]
    scenes: NDArray[np.str_]

    def adapt_to(
        self, bundle: Bundle, support: Indices, classes: Indices, *, grouped: bool = True
    ) -> tuple[Report, NDArray[np.float64]]:
        """The report on a support set, and the classifier (N, d)."""
        ways = int(classes.max()) + 1
        hashes = [self.hashes[i] for i in support] if grouped else None
        adaptation = adapt(bundle.head, self.phi[support], classes, ways, hashes=hashes)
        calibration = bundle.manifest.calibration
        names = [str(c) for c in range(ways)]
        report = make_report(adaptation, classes, names, own_horizon=True, calibration=calibration)
        return report, adaptation.solution.W


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--groceries", type=Path, required=True)
    parser.add_argument("--signs", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bundle = load_bundle(args.bundle)
    sets = {"signs": read(bundle, args.signs, tracks=True), "groceries": read(bundle, args.groceries, tracks=False)}
    head = ["task", "repeats, %", "accuracy given, % of tasks", "reported, %", "each by itself, %", "other photos, %"]
    seeds = [(args.seed, task) for task in range(args.tasks)]
    rows = [bursts(bundle, name, sets[name], ways, scenes, each, seeds) for name, ways, scenes, each in TASKS]
    print(markdown(head, rows), end="\n\n")
    head = ["task", "wrong photo listed, % of tasks", "others listed a task", "listed a task without it"]
    print(markdown(head, [planted(bundle, name, sets[name], ways, shots, seeds) for name, ways, shots in PLANTED]))


def read(bundle: Bundle, folder: Path, *, tracks: bool) -> Photos:
    """Embed and hash every photo."""
    paths = sorted(path for path in folder.glob("*/*") if path.suffix in {".png", ".jpg"})
    backbone = OnnxBackbone(bundle, "cpu", max_batch_size=1)

    def work(path: Path) -> tuple[NDArray[np.float32], int | None]:
        views = prepare_views(path.read_bytes(), bundle.manifest.preprocessing)
        return backbone.embed(views, Cancellation(), alone=False), difference_hash(views[0])

    with ThreadPoolExecutor(backbone.threads) as pool:
        found = list(pool.map(work, paths))
    scenes = [f"{path.parent.name} {path.name[:5] if tracks else path.name}" for path in paths]
    phi, hashes = np.stack([phi for phi, _ in found]), [bits for _, bits in found]
    return Photos(phi, hashes, np.array([path.parent.name for path in paths]), np.array(scenes))


def bursts(
    bundle: Bundle, name: str, photos: Photos, ways: int, scenes: int, each: int, seeds: Sequence[tuple[int, int]]
) -> list[str]:
    """A line of the first table."""
    repeats, reported, plain, others = [], [], [], []
    for seed in seeds:
        support, queries = draw(np.random.default_rng(seed), photos, ways, scenes, each)
        classes = np.repeat(np.arange(ways), scenes * each)
        report, W = photos.adapt_to(bundle, support, classes)
        repeats.append(sum(len(group) - 1 for group in report.near_duplicates) / len(support))
        if report.held_out is not None:
            reported.append(report.held_out.accuracy)
        ungrouped = photos.adapt_to(bundle, support, classes, grouped=False)[0].held_out
        plain.append(0.0 if ungrouped is None else ungrouped.accuracy)
        right = [(photos.phi[of_one, 0] @ W.T).argmax(axis=1) == c for c, of_one in enumerate(queries)]
        others.append(float(np.concatenate(right).mean()))
    images = "photos" if name == "groceries" else "tracks" if each == 1 else f"frames of {_NUMBERS[scenes]}"
    given = f"{100 * len(reported) / len(seeds):.0f}"
    columns = [percent(values) for values in (repeats, reported, plain, others)]
    return [f"{name}, {ways} x {scenes * each} {images}", columns[0], given, *columns[1:]]


def planted(
    bundle: Bundle, name: str, photos: Photos, ways: int, shots: int, seeds: Sequence[tuple[int, int]]
) -> list[str]:
    """A line of the second table."""
    found, others, clean = [], [], []
    for seed in seeds:
        drawn, more = draw(np.random.default_rng(seed), photos, ways, shots, 1)
        if not len(more[1]):  # every scene of the class is in the support set
            continue
        classes = np.repeat(np.arange(ways), shots)
        for support, given in ((drawn, classes), (np.append(drawn, more[1][0]), np.append(classes, 0))):
            report, _ = photos.adapt_to(bundle, support, given)
            listed = [] if report.held_out is None else [one.number for one in report.held_out.suspects]
            if support is drawn:
                clean.append(float(len(listed)))
            else:
                found.append(float(len(support) in listed))
                others.append(float(sum(number < len(support) for number in listed)))
    task = f"{name}, {ways} x {shots} and 1 wrong"
    return [
        task,
        percent(found),
        *("{:.2f} +- {:.2f}".format(*mean_and_interval(np.array(v))) for v in (others, clean)),
    ]


def draw(rng: np.random.Generator, photos: Photos, ways: int, scenes: int, each: int) -> tuple[Indices, list[Indices]]:
    """A support set (ways x scenes x each,) of so many photos of so many scenes a class, and photos of other scenes."""
    support: list[Indices] = []
    queries: list[Indices] = []
    for c in rng.permutation(np.unique(photos.classes)):
        members = np.flatnonzero(photos.classes == c)
        names, counts = np.unique(photos.scenes[members], return_counts=True)
        usable = rng.permutation(names[counts >= each])[:scenes]
        if len(support) == ways or len(usable) < scenes or len(names) == scenes:
            continue
        inside = [rng.permutation(members[photos.scenes[members] == name])[:each] for name in usable]
        support.append(np.concatenate(inside))
        queries.append(rng.permutation(members[~np.isin(photos.scenes[members], usable)])[:QUERIES])
    return np.concatenate(support), queries


def percent(values: Sequence[float]) -> str:
    """Mean of shares and its 95 % interval over tasks, in percent."""
    if len(values) < 2:
        return "-"
    mean, interval = mean_and_interval(100 * np.array(values))
    return f"{mean:.0f} +- {interval:.0f}"


if __name__ == "__main__":
    main()
