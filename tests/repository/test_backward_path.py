"""The picture of W(t) recomputed backward in time."""

import numpy as np
import torch

from benchmarks import backward_path


def test_forward_is_the_solution_and_backward_begins_on_it_and_leaves_it() -> None:
    """-H W has the solution exp(-H t) W(0)."""
    times = np.linspace(0.0, backward_path.END, 20)
    start = torch.tensor(backward_path.START, dtype=torch.float64)
    forward, backward = backward_path.there_and_back(backward_path.quadratic(), start, times, 1e-6)
    exact = np.exp(-np.outer(times, backward_path.CURVATURE)) * backward_path.START
    np.testing.assert_allclose(forward, exact, atol=1e-4)
    assert (backward[-1] == forward[-1]).all()
    assert np.linalg.norm(backward[0] - forward[0]) > 1.0
