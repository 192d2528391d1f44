"""Times of contenders that take turns, so that a noisy machine disturbs all alike."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_Name = TypeVar("_Name")


def milliseconds_in_turns(
    contenders: Mapping[_Name, Callable[..., object]],
    rounds: Iterable[tuple[Any, ...]],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[_Name, float]:
    """Median time of each contender.

    Args:
        rounds: the arguments of each round, for all contenders. The first round warms up, and is not counted.
    """
    times: dict[_Name, list[float]] = {name: [] for name in contenders}
    for number, arguments in enumerate(rounds):
        for name, run in contenders.items():
            began = clock()
            run(*arguments)
            if number:
                times[name].append(1e3 * (clock() - began))
    return {name: statistics.median(values) for name, values in times.items()}
