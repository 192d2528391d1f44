"""The optimiser's groups, and the schedule of its learning rate."""

import pytest
import torch

from training.config import Config
from training.model import MetaModel
from training.runs.optimiser import episode_sgd, half_cosine, steps


@pytest.mark.parametrize("decay_all", [False, True])
def test_weight_decay_acts_on_weights_or_on_all_but_log_T(decay_all: bool) -> None:
    """With gradients of 0 a step of SGD multiplies what decays by 1 - lr weight_decay, and nothing else."""
    config = Config.model_validate(
        {
            "data": {"kind": "image_folder", "preprocessing": {"image_size": 32}},
            "backbone": {"kind": "conv4", "channels": 4},
            "head": {"start": "learned"},
            "optimiser": {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.0, "decay_all": decay_all},
            "updates": 1,
        }
    )
    model = MetaModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    episode_sgd(model, config.optimiser).step()
    decayed = {name for name, x in model.named_parameters() if bool(((x - 0.95).abs() < 1e-6).all())}
    scalars = {id(parameter) for parameter in model.head_parameters()}
    all_but_scalars = {name for name, x in model.named_parameters() if id(x) not in scalars}
    weights = {name for name, x in model.backbone.named_parameters(prefix="backbone") if x.ndim > 1}
    assert weights < all_but_scalars
    assert decayed == (all_but_scalars if decay_all else weights)
    kept = (x for name, x in model.named_parameters() if name not in decayed)
    assert all(torch.equal(x, torch.ones_like(x)) for x in kept)


def test_half_cosine_rises_then_falls_to_zero() -> None:
    factor = half_cosine(100, warmup=10)
    assert [factor(0), factor(4), factor(9)] == pytest.approx([0.1, 0.5, 1.0])
    assert factor(50) == pytest.approx(0.5)
    assert factor(100) == pytest.approx(0.0, abs=1e-15)
    falling = [factor(update) for update in range(10, 101)]
    assert falling == sorted(falling, reverse=True)


def test_steps_are_metaoptnet_s() -> None:
    factor = steps(0.1, ((20_000, 0.006), (40_000, 0.0012), (50_000, 0.00024)))
    rates = [0.1 * factor(update) for update in (0, 19_999, 20_000, 40_000, 49_999, 59_999)]
    assert rates == pytest.approx([0.1, 0.1, 0.006, 0.0012, 0.0012, 0.00024])
