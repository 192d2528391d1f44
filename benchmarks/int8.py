"""Backbones in 8-bit integers beside the same network in float32: time, embeddings and accuracy on this CPU.

    python -m benchmarks.int8 FLOATS.onnx INT8.onnx [INT8.onnx ...] --photos DIR --photos DIR

FLOATS.onnx is the backbone of a run exported without --int8; each INT8.onnx is that of the same run exported with it,
for example with different --float-layers. DIR holds class folders. All run on the same images, as the server runs them.
--overflowing adds INT8 with the products that ONNX Runtime prefers, which overflow where the CPU has no VNNI. Prints
tables in Markdown.
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from comln_serve.engine.embedding.onnx_session import exact_products
from comln_serve.imaging import Preprocessing, prepare_views
from training.bundles.quantise import cosines
from training.evaluation.timing import milliseconds_in_turns
from training.results.accuracy import mean_and_interval
from training.results.tables import markdown
from training.runs.hardware import processor

_WAYS, _QUERIES, _MOST_IMAGES, _BATCH = 5, 15, 22, 8
Images = NDArray[np.uint8]
Embeddings = NDArray[np.float32]


class Network:
    """A graph on one thread."""

    def __init__(self, graph: Path, *, overflowing: bool = False) -> None:
        """overflowing: with ONNX Runtime's own products on every CPU, instead of those of the server."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        if not overflowing:
            exact_products(options)
        self._session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.size = int(self._session.get_inputs()[0].shape[1])

    def embed(self, images: Images) -> Embeddings:
        """(n, S, S, 3) -> (n, d)."""
        name = self._session.get_inputs()[0].name
        batches = [images[i : i + _BATCH] for i in range(0, len(images), _BATCH)]
        return np.concatenate([np.asarray(self._session.run(None, {name: batch})[0]) for batch in batches])


def milliseconds(networks: dict[str, Network], images: Images, rounds: int) -> dict[str, float]:
    """Median CPU time of one image."""
    shown = ((image[None],) for image in islice(cycle(images), rounds + 1))
    return milliseconds_in_turns({name: network.embed for name, network in networks.items()}, shown, time.process_time)


def photos(folder: Path, size: int) -> tuple[Images, NDArray[np.intp]]:
    """At most 22 images of each class folder with enough of them, spread evenly, and their classes."""
    policy = Preprocessing(image_size=size, resize="crop", interpolation="bilinear")
    images, classes = list[Images](), list[int]()
    for number, inner in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        files = sorted(path for path in inner.rglob("*") if path.suffix in {".jpg", ".png"})
        chosen = files[:: max(1, len(files) // _MOST_IMAGES)][:_MOST_IMAGES]
        if len(chosen) < 5 + _QUERIES:
            continue
        images += [prepare_views(file.read_bytes(), policy.of_predictions)[0] for file in chosen]
        classes += [number] * len(chosen)
    if len(set(classes)) < _WAYS:
        raise SystemExit(f"{folder}: {_WAYS} class folders of {5 + _QUERIES} images or more are needed")
    return np.stack(images), np.array(classes)


def accuracies(
    embeddings: dict[str, Embeddings], classes: NDArray[np.intp], shots: int, episodes: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Percent right in each episode (5 ways) by logistic regression (C = 10), the same episodes for all."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {name: [] for name in embeddings}
    for _ in range(episodes):
        drawn = rng.permutation(np.unique(classes))[:_WAYS]
        members = [rng.permutation(np.flatnonzero(classes == one)) for one in drawn]
        support = np.concatenate([some[:shots] for some in members])
        query = np.concatenate([some[shots : shots + _QUERIES] for some in members])
        for name, phi in embeddings.items():
            head = LogisticRegression(C=10, max_iter=300).fit(phi[support], classes[support])
            found[name].append(100 * float((head.predict(phi[query]) == classes[query]).mean()))
    return {name: np.array(values) for name, values in found.items()}


def compared(first: NDArray[np.float64], second: NDArray[np.float64]) -> str:
    """Their mean difference with its 95 % interval."""
    mean, interval = mean_and_interval(first - second)
    return f"{mean:+.2f} +- {interval:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("floats", type=Path)
    parser.add_argument("integers", type=Path, nargs="+")
    parser.add_argument("--overflowing", action="store_true")
    parser.add_argument("--photos", type=Path, action="append", required=True)
    parser.add_argument("--episodes", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=0)
    chosen: Any = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of logistic regressions that have not quite converged
    networks = {"float32": Network(chosen.floats)}
    for graph in chosen.integers:
        networks[str(graph)] = Network(graph)
        if chosen.overflowing:
            networks[f"{graph}, overflowing"] = Network(graph, overflowing=True)
    sets = {folder.name: photos(folder, networks["float32"].size) for folder in chosen.photos}
    spent = milliseconds(networks, next(iter(sets.values()))[0], chosen.rounds)
    print(f"{processor()}; {chosen.episodes} episodes, seed {chosen.seed}\n")
    times = [[name, f"{value:.2f}", f"{value / spent['float32']:.2f}"] for name, value in spent.items()]
    print(markdown(["network", "CPU ms an image", "of float32"], times), end="\n\n")
    rows: list[list[str]] = []
    for folder, (images, classes) in sets.items():
        found = {name: network.embed(images) for name, network in networks.items()}
        right = {shots: accuracies(found, classes, shots, chosen.episodes, chosen.seed) for shots in (1, 5)}
        for name in list(networks)[1:]:
            alike = cosines(found["float32"], found[name])
            less = [compared(right[shots][name], right[shots]["float32"]) for shots in (1, 5)]
            rows.append([f"{folder} ({len(images)})", name, f"{alike.mean():.3f}", f"{alike.min():.3f}", *less])
    print(markdown(["photos", "network", "mean cosine", "smallest", "1-shot", "5-shot"], rows))


if __name__ == "__main__":
    main()
