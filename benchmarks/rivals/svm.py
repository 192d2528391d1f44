"""MetaOptNet with a support vector machine (Lee et al. 2019).

The machine of Crammer and Singer has the dual problem

    minimise 1/2 <a, K a> - <Y, a>   subject to   a <= C Y, the rows of a sum to 0

with K = phi phi^T (M, M), a (M, N) and W = a^T phi. liblinear (through scikit-learn) finds which entries of a are at
their bound. With these fixed, the others solve linear equations, which are solved exactly here. Autograd differentiates
that: the derivative of a quadratic programme wherever the set of bounds does not change.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from benchmarks.rivals.embedding_rival import EmbeddingRival
from benchmarks.rivals.tasks import Problem

_TOLERANCE = 1e-7  # of liblinear
_TIE = 1e-4  # of margins, which are 1 apart


class Svm(EmbeddingRival):
    """The logits are a learned multiple of W phi."""

    def __init__(self, problem: Problem, *, C: float) -> None:
        super().__init__(problem)
        self.C = C
        self.scale = nn.Parameter(torch.tensor(1.0))

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        K = (phi @ phi.T).double()
        return self.scale * (query @ phi.T) @ dual_solution(K, Y.double(), self.C).to(phi.dtype)

    def learned(self) -> dict[str, float]:
        return {"scale": self.scale.item()}


def dual_solution(K: Tensor, Y: Tensor, C: float) -> Tensor:
    """a (M, N), differentiable in K (M, M); Y (M, N) one-hot, both float64."""
    free = torch.from_numpy(free_entries(K.detach().numpy(), Y.numpy(), C))
    bound = C * Y
    rows, columns = free.nonzero(as_tuple=True)
    count, M = len(rows), len(K)
    # K a + nu = Y at the free entries, with one nu an example; and the rows of a sum to 0.
    system = torch.zeros(count + M, count + M, dtype=K.dtype)
    system[:count, :count] = K[rows][:, rows] * (columns[:, None] == columns)
    of_example = (rows[:, None] == torch.arange(M)).to(K.dtype)
    system[:count, count:], system[count:, :count] = of_example, of_example.T
    fixed = bound * ~free
    wanted = torch.cat([(Y - K @ fixed)[rows, columns], -fixed.sum(dim=1)])
    # An example without a free entry has no equation of its own: its nu is set to 0.
    idle = (~free.any(dim=1)).to(K.dtype)
    system = system + torch.diag(torch.cat([torch.zeros(count, dtype=K.dtype), idle]))
    solved = torch.linalg.solve(system, wanted)
    return fixed.index_put((rows, columns), solved[:count])


def free_entries(K: NDArray[np.float64], Y: NDArray[np.float64], C: float) -> NDArray[np.bool_]:
    """(M, N) which entries of a are not at their bound: the classes of an example that share its smallest margin."""
    values, vectors = np.linalg.eigh(K)
    features = vectors * np.sqrt(np.maximum(values, 0.0))  # features features^T = K
    labels = Y.argmax(axis=1)
    machine = LinearSVC(
        C=C, multi_class="crammer_singer", fit_intercept=False, tol=_TOLERANCE, max_iter=20_000, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what is found is checked by the tests, and made exact
        machine.fit(features, labels)
    weights = np.vstack([-machine.coef_, machine.coef_]) / 2 if Y.shape[1] == 2 else machine.coef_
    excess = features @ weights.T + 1.0 - Y  # largest where the constraint binds
    return excess > excess.max(axis=1, keepdims=True) - _TIE
