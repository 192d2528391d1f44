"""The comparison of backbones in 8-bit integers."""

import numpy as np

from benchmarks.int8 import compared


def test_a_difference_has_the_interval_of_a_sample_mean() -> None:
    """1.96 sd / sqrt(n), with the standard deviation of a sample."""
    assert compared(np.array([3.0, 7.0]), np.array([2.0, 4.0])) == "+2.00 +- 1.96"
