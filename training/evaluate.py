"""Accuracy on a fixed set of episodes, with its interval.

Images are embedded once, with running statistics; an episode then adapts `Head` exactly as the
server does.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import Head
from comln_serve.machine import usable_cpus
from training.data import ImageSet, sample_episode

Embed = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy over episodes and half the width of its 95% interval, 1.96 sd / sqrt(n)."""

    ways: int
    shots: int
    queries: int
    episodes: int
    seed: int
    mean: float
    interval: float

    def __str__(self) -> str:
        return (
            f"{self.ways}-way {self.shots}-shot: {100 * self.mean:.2f} +- "
            f"{100 * self.interval:.2f} % ({self.episodes} episodes, {self.queries} queries a "
            f"class, seed {self.seed})"
        )


def evaluate(
    embeddings: NDArray[np.float32],
    head: Head,
    data: ImageSet,
    *,
    ways: int,
    shots: int,
    queries: int = 15,
    episodes: int = 1000,
    seed: int = 0,
) -> Accuracy:
    """Accuracy of adapted classifiers on `episodes` episodes drawn with `seed`.

    Args:
        embeddings: (n, d) of `data.images`, in their order; `data.rotations` must be 1.
    """
    if data.rotations != 1:
        raise ValueError("evaluation uses the images as they are, without rotated classes")

    def run(episode_number: int) -> float:
        rng = np.random.default_rng((seed, episode_number))
        episode = sample_episode(rng, data, ways, shots, queries)
        classes = np.repeat(np.arange(ways), shots)
        W = head.adapt(embeddings[episode.support.ravel()], classes, ways).W
        logits = embeddings[episode.query.ravel()] @ W.T
        return float((logits.argmax(axis=1) == np.repeat(np.arange(ways), queries)).mean())

    with ThreadPoolExecutor(usable_cpus()) as pool:
        scores = np.array(list(pool.map(run, range(episodes))))
    spread = float(scores.std(ddof=1)) if episodes > 1 else math.inf
    return Accuracy(
        ways, shots, queries, episodes, seed, float(scores.mean()),
        1.96 * spread / math.sqrt(episodes),
    )  # fmt: skip
