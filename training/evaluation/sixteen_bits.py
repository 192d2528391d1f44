"""How far probabilities change if support embeddings are rounded to 16 bits, as servers may store them."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from comln_serve.bundle import Calibration, Head
from comln_serve.bundle.manifest import as_stored
from comln_serve.report import adapt
from training.evaluation.open_set import OpenSetEpisode, OpenSetEpisodes

ALLOWED_CHANGE = 1e-4


def largest_change(head: Head, calibration: Calibration, episodes: OpenSetEpisodes) -> float:
    """The largest change of a calibrated probability, over all classes, queries and episodes."""

    def run(episode: OpenSetEpisode, _: int) -> float:
        temperature = calibration.temperature_of(np.bincount(episode.classes))

        def probabilities(phi: NDArray[np.float32]) -> NDArray[np.float64]:
            solution = adapt(head, phi, episode.classes, episodes.task.ways, judge=False).solution
            W = solution.W.astype(np.float32).astype(np.float64)
            found: NDArray[np.float64] = softmax(episode.query.astype(np.float64) @ W.T / temperature, axis=1)
            return found

        stored = as_stored(episode.phi.reshape(len(episode.phi), -1), "int16").reshape(episode.phi.shape)
        return float(np.abs(probabilities(stored) - probabilities(episode.phi)).max())

    return max(episodes.map(run))
