"""Time to fit a classifier on support embeddings: the gradient flow next to the alternatives.

All in one run on the same embeddings, taken in turns so that a noisy machine disturbs all alike,
with BLAS on one thread, as in the server.
Prints a Markdown table and writes it with the raw figures to benchmarks/results/.

    python -m benchmarks.adaptation [--repeats 30]
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.publishing import RESULTS, machine, publish
from comln_serve.flow import solve_flow
from training.evaluation.timing import milliseconds_in_turns
from training.results.tables import markdown, write_csv

CASES = [(5, 1, 1600), (5, 5, 1600), (20, 5, 1600), (5, 5, 64), (20, 5, 64), (5, 100, 64)]
HORIZON, TOLERANCE = 4500.0, 1e-6
DATA = (
    "The embeddings are Gaussian clusters, one a class, of mean squared norm 100, without a component that all share; "
    "real ones share one, which makes the flow stiffer."
)


def clustered_embeddings(ways: int, shots: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian clusters (M, d) with mean squared norm 100, and class indices (M,)."""
    rng = np.random.default_rng(seed)
    classes = np.repeat(np.arange(ways), shots)
    phi = rng.standard_normal((ways, size))[classes] + rng.standard_normal((len(classes), size))
    return phi * np.sqrt(100.0 / (phi**2).sum(axis=1).mean()), classes


def scipy_flow(phi: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The same reduced flow by SciPy's RK45, as one would write it first."""
    K, (M, N) = phi @ phi.T, Y.shape

    def field(_t: float, flat: np.ndarray) -> np.ndarray:
        logits = -K @ flat.reshape(M, N)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return ((p / p.sum(axis=1, keepdims=True) - Y) / M).ravel()

    atol = TOLERANCE / np.abs(K).sum(axis=1).max()
    end = solve_ivp(field, (0, HORIZON), np.zeros(M * N), rtol=TOLERANCE, atol=atol).y[:, -1]
    return -end.reshape(M, N).T @ phi


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    rows = []
    for ways, shots, size in CASES:
        phi, classes = clustered_embeddings(ways, shots, size)
        Y, W0 = np.eye(ways)[classes], np.zeros((ways, size))
        contenders: dict[str, Callable[[], object]] = {
            "flow": lambda phi=phi, W0=W0, Y=Y: solve_flow(phi, W0, Y, HORIZON, rtol=TOLERANCE, atol=TOLERANCE),
            "scipy": lambda phi=phi, Y=Y: scipy_flow(phi, Y),
            "sklearn": lambda phi=phi, classes=classes: LogisticRegression().fit(phi, classes),
        }
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore", ConvergenceWarning)
            times = milliseconds_in_turns(contenders, [()] * (repeats + 1))
        rows.append({"ways": ways, "shots": shots, "d": size, **times})
    report(rows, repeats)


def report(rows: list[dict[str, float]], repeats: int) -> None:
    """Print and keep the medians (ms) and the ratios to the flow."""
    about = (
        f"Median ms of {repeats} interleaved runs on one thread of {machine()}; T = {HORIZON:g}, rtol = atol = "
        f"{TOLERANCE:g}. {DATA}"
    )
    table = markdown(
        ["ways x shots", "d", "gradient flow", "SciPy RK45, same flow", "scikit-learn", "flow vs it"],
        [
            [
                f"{row['ways']} x {row['shots']}",
                f"{row['d']}",
                f"{row['flow']:.2f}",
                f"{row['scipy']:.1f}",
                f"{row['sklearn']:.1f}",
                f"{row['sklearn'] / row['flow']:.1f} x",
            ]
            for row in rows
        ],
    )
    publish("adaptation", f"{about}\n\n{table}")
    write_csv(RESULTS / "adaptation.csv", rows)


if __name__ == "__main__":
    main()
