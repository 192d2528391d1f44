"""Training episodes: shapes, shots, and that they depend only on seed and update."""

import math

import pytest
import torch

from tests.support.tiny import tiny_config
from tests.support.training import colour_classes
from training.data.resident import ResidentImages
from training.model import MetaModel
from training.runs.episodes import MetaBatch, draw_batch, episode_loss


def batches(unequal: float, updates: int = 40) -> list[MetaBatch]:
    section = {"ways": [2, 6], "shots": [1, 4], "queries": 3, "tasks": 2, "unequal": unequal}
    images = ResidentImages(colour_classes(), torch.device("cpu"))
    return [draw_batch(tiny_config("prototype", episodes=section), [images], update) for update in range(updates)]


def test_shots_are_equal_or_drawn_for_each_class() -> None:
    for unequal in (0.0, 0.5, 1.0):
        drawn = batches(unequal)
        for batch in drawn:
            assert set(batch.shots) <= {1, 2, 3, 4}
            assert batch.images.shape[:2] == (2, sum(batch.shots) + 3 * len(batch.shots))
        mixed = sum(len(set(batch.shots)) > 1 for batch in drawn)
        assert (mixed == 0, mixed > 30) == (unequal == 0, unequal == 1)
        assert {len(batch.shots) for batch in drawn} == {2, 3, 4, 5, 6}


def test_support_images_come_first_class_by_class() -> None:
    """Classes differ in colour, so an image shows its class."""
    for batch in batches(1.0, 10):
        ways, M = len(batch.shots), sum(batch.shots)
        colours = batch.images.double().mean(dim=(2, 3))  # (B, M + N q, 3)
        for task in colours:
            query = task[M:].reshape(ways, 3, 3).mean(dim=1)
            nearest = torch.cdist(task[:M], query).argmin(dim=1)
            expected = torch.arange(ways).repeat_interleave(torch.tensor(batch.shots))
            assert (nearest == expected).double().mean() > 0.9


def test_the_loss_of_unequal_shots_is_that_of_its_tasks_one_by_one() -> None:
    model = MetaModel(tiny_config("prototype")).eval()
    batch = batches(1.0, 3)[2]
    together = episode_loss(model, batch)
    alone = [episode_loss(model, MetaBatch(task[None], batch.shots)) for task in batch.images]
    torch.testing.assert_close(together, torch.stack(alone).mean())


def test_a_learned_temperature_divides_the_query_logits_by_its_law() -> None:
    model = MetaModel(tiny_config("prototype", head={"learn_temperature": True})).eval()
    assert model.log_temperature is not None
    batch = batches(1.0, 3)[2]
    M, ways = sum(batch.shots), len(batch.shots)
    embedded = model.embeddings(batch.images.flatten(0, 1)).unflatten(0, (2, -1)).detach()
    classes = torch.arange(ways).repeat_interleave(torch.tensor(batch.shots))
    Y = torch.eye(ways)[classes].expand(2, -1, -1)
    logits = (embedded[:, M:] @ model.adapt(embedded[:, :M], Y).mT).detach()

    def expected(temperature: float) -> float:
        targets = torch.arange(ways).repeat_interleave(3).repeat(2)
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1) / temperature, targets))

    assert episode_loss(model, batch).item() == pytest.approx(expected(1.0), rel=1e-5)
    with torch.no_grad():
        model.log_temperature.copy_(torch.tensor([-0.5, 0.25, -1.0]))
    law = math.exp(-0.5) * (M / 25) ** 0.25 * (ways / 5) ** -1.0
    loss = episode_loss(model, batch)
    assert loss.item() == pytest.approx(expected(law), rel=1e-5)
    loss.backward()
    step = 1e-4
    slope = (expected(law * math.exp(step)) - expected(law * math.exp(-step))) / (2 * step)
    factors = [1.0, math.log(M / 25), math.log(ways / 5)]
    assert model.log_temperature.grad is not None
    assert model.log_temperature.grad.tolist() == pytest.approx([slope * factor for factor in factors], rel=1e-2)
