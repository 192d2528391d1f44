"""The benchmark of COMLN's variants, on a small data set."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import variants
from benchmarks.rivals.tasks import PROBLEMS
from benchmarks.variants import ComlnVariant, Variant
from tests.support.characters import characters


@pytest.mark.slow
@pytest.mark.parametrize("variant", [Variant(T=0.5), Variant(T=0.5, euler=True), Variant(T=0.5, learned=False)])
def test_a_variant_is_trained_as_it_says_and_stored_and_drawn(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "RESULTS", tmp_path / "variants.json")
    monkeypatch.setattr(variants, "FIGURE", tmp_path / "variants.png")
    images = characters()
    torch.manual_seed(0)
    comln = ComlnVariant(PROBLEMS["omniglot"], variants.WAYS, variant)
    run = variants.run(comln, images, images, budget=1.0, count=4)
    assert run.variant == variant
    assert run.updates >= 1
    assert len(run.accuracies) == 4
    assert len(run.path) == (run.updates if variant.learned else 0)
    assert (run.T == 0.5) != variant.learned
    assert run.ahead_of(run).mean == 0.0
    variants.save([run])
    assert variants.load() == [run]
    variants.plot([replace(run, variant=Variant()), replace(run, variant=Variant(learned=False))])
    assert (tmp_path / "variants.png").stat().st_size > 1000


def test_euler_is_near_runge_kutta() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    phi, query = torch.randn(10, 64, generator=generator), torch.randn(6, 64, generator=generator)
    Y = torch.eye(5).repeat_interleave(2, dim=0)
    euler, usual = (
        ComlnVariant(PROBLEMS["omniglot"], 5, Variant(euler=euler)).logits(phi, Y, query) for euler in (True, False)
    )
    torch.testing.assert_close(euler, usual, rtol=0.0, atol=0.05)
    assert not torch.equal(euler, usual)
