"""Training of any algorithm within a budget of CPU time, measured as it goes on."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.rivals.rival import Rival
from benchmarks.rivals.tasks import QUERIES, draw
from training.data import Episode, sample_episode
from training.data.resident import ResidentImages
from training.memory import trim_freed_memory

TASKS = 2
"""Tasks of an update, as in MAML's code for five shots."""

RATE, CLIP = 1e-3, 10.0
"""Adam's learning rate at the start, from which it falls to 0 along a cosine; largest norm of a gradient."""

POINTS = (0.125, 0.25, 0.5, 0.75)
"""Shares of the budget after which the accuracy is measured, besides its end."""

_TRIM_EVERY = 4  # updates


@dataclass(frozen=True)
class Point:
    """State of a run: CPU seconds spent, and updates done."""

    seconds: float
    updates: int
    last: bool


def train(rival: Rival, images: ResidentImages, *, ways: int, shots: int, budget: float, seed: int) -> Iterator[Point]:
    """Train for `budget` seconds of CPU time of this process, and pause at POINTS and at the end.

    Only updates count: drawing the tasks, the meta-gradient and the optimiser's step. What the caller does at a pause
    does not, nor does a first meta-gradient of a copy, which compiles and allocates what stays.
    """
    warm(rival, images, ways, shots)
    groups = rival.parameter_groups()
    optimiser = torch.optim.Adam([{**group, "lr": RATE * group["rate"]} for group in groups], lr=RATE)
    parameters = [parameter for group in groups for parameter in group["params"]]
    rng = np.random.default_rng((seed, ways, shots))
    spent, updates, pauses = 0.0, 0, [share * budget for share in POINTS]
    while spent < budget:
        began = time.process_time()
        optimiser.zero_grad()
        rival.accumulate(draw(images, rng, TASKS, ways, shots))
        nn.utils.clip_grad_norm_(parameters, CLIP)
        for group in optimiser.param_groups:
            group["lr"] = RATE * group["rate"] * (1.0 + math.cos(math.pi * spent / budget)) / 2.0
        optimiser.step()
        updates += 1
        if updates % _TRIM_EVERY == 0:
            trim_freed_memory()
        spent += time.process_time() - began
        if pauses and pauses[0] <= spent < budget:
            while pauses and pauses[0] <= spent:
                pauses.pop(0)
            yield Point(spent, updates, last=False)
    yield Point(spent, updates, last=True)


def warm(rival: Rival, images: ResidentImages, ways: int, shots: int) -> None:
    """One meta-gradient of a copy."""
    copy.deepcopy(rival).accumulate(draw(images, np.random.default_rng(0), 1, ways, shots))


def episodes(images: ResidentImages, count: int, *, ways: int, shots: int) -> Sequence[Episode]:
    """The same for every algorithm and seed."""
    rng = np.random.default_rng((ways, shots))
    return [sample_episode(rng, images.data, ways, shots, QUERIES) for _ in range(count)]


def yardstick() -> float:
    """CPU seconds of a fixed piece of work, such as training does: two convolutions there and back."""
    layers = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.zeros(50, 64, 21, 21).to(memory_format=torch.channels_last)
    return seconds_of(lambda: layers(x).sum().backward(), 5)


def seconds_of(function: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of a call."""
    found: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return float(np.median(found))
