"""How much of a Conv-4 meta-training step the adaptation and its meta-gradient take.

    python -m benchmarks.training_step ROUNDS

Whole steps, as `comln-train` takes them: 8 tasks of 5-way 5-shot with 15 queries at 84 px, forward,
backward and the optimiser's update. The adaptation is timed inside these steps.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from comln_serve.machine import usable_cpus
from training.config import Config
from training.gradient_flow import operation
from training.memory import keep_freed_memory
from training.model import MetaModel
from training.runs.episodes import MetaBatch, episode_loss

TASKS, WAYS, SHOTS, QUERIES, SIZE, HORIZON = 8, 5, 5, 15, 84, 100.0


def main() -> None:
    """Print medians over ROUNDS steps as JSON."""
    torch.set_num_threads(usable_cpus())
    keep_freed_memory()
    config = Config.model_validate(
        {
            "data": {"kind": "image_folder", "preprocessing": {"image_size": SIZE}},
            "backbone": {"scale": "sqrt_d"},
            "head": {"start": "learned", "initial_horizon": HORIZON},
            "episodes": {"ways": WAYS},
            "updates": 1,
        }
    )
    model = MetaModel(config)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    shape = (TASKS, WAYS * (SHOTS + QUERIES), SIZE, SIZE, 3)
    images = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
    batch = MetaBatch(images, (SHOTS,) * WAYS)

    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            spent.append(time.perf_counter() - began)
            return result

        return call

    flow: Any = operation.GradientFlow
    flow.forward, flow.backward = timed(flow.forward), timed(flow.backward)

    steps, flows = [], []
    for round_ in range(int(sys.argv[1]) + 1):
        spent.clear()
        began = time.perf_counter()
        optimiser.zero_grad()
        episode_loss(model, batch).backward()
        optimiser.step()
        if round_:  # the first one compiles
            steps.append(time.perf_counter() - began)
            flows.append(sum(spent))
    share = float(np.median(np.array(flows) / np.array(steps)))
    print(
        json.dumps(
            {
                "tasks": TASKS,
                "T": HORIZON,
                "step_ms": 1e3 * float(np.median(steps)),
                "flow_ms": 1e3 * float(np.median(flows)),
                "share": share,
            }
        )
    )


if __name__ == "__main__":
    main()
