"""The benchmark's contenders compute the same gradients."""

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks import meta_gradient, meta_gradient_page, meta_gradient_rows
from benchmarks.checkpointed import checkpointed_maml_loss
from benchmarks.contenders import Case, build, embeddings, reference
from benchmarks.measure import relative_errors
from benchmarks.meta_gradient_rows import Row

pytestmark = pytest.mark.slow

SMALL = Case("embeddings", 3, 2, 200, d=12)


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed (make bench)"
    )


@pytest.mark.parametrize(
    ("contender", "tolerance"),
    [
        ("adjoint", 1e-5),
        ("forward", 1e-5),
        ("forward, torchdiffeq", 1e-5),
        ("naive forward", 5e-3),
        pytest.param("JAX forward", 1e-3, marks=needs("jax")),
    ],
)
def test_gradients_of_the_flow(contender: str, tolerance: float) -> None:
    errors = relative_errors(build(contender, SMALL)(), reference(SMALL))
    assert set(errors) == {"phi", "W0", "T"}
    assert max(errors.values()) <= tolerance, errors


@pytest.mark.parametrize("contender", ["adjoint, Euler", "forward, Euler"])
def test_euler_is_unrolled_anil(contender: str) -> None:
    expected = build("ANIL", SMALL)()
    errors = relative_errors(build(contender, SMALL)(), expected)
    assert set(errors) == {"phi", "W0"}
    assert max(errors.values()) <= 1e-5, errors


@pytest.mark.parametrize(("offset", "cosine"), [(0.0, 0.0), (1.0, 1 / 3)])
def test_embeddings_have_the_norm_and_the_shared_component_they_are_said_to_have(offset: float, cosine: float) -> None:
    phi = embeddings(Case("embeddings", 5, 2, 200, d=20_000, offset=offset))["phi"]
    assert (phi**2).sum(axis=1).mean() == pytest.approx(100.0)
    between = phi[0] @ phi[2:].T / np.linalg.norm(phi[0]) / np.linalg.norm(phi[2:], axis=1)
    np.testing.assert_allclose(between, cosine, atol=0.03)


def test_a_row_of_another_run_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table, and after it was stored; so is a ratio to it."""
    monkeypatch.setattr(meta_gradient_page, "RESULTS", tmp_path)
    monkeypatch.setattr(meta_gradient_rows, "CSV", tmp_path / "rows.csv")
    errors = {"phi": 1e-7, "W0": 3e-7, "T": 2e-6}
    rows = [
        Row("goals", "adjoint", SMALL, 1.0, 3, 0.1, errors, run="2026-02-02 00:00"),
        Row("goals", "forward", SMALL, 2.0, 3, 0.1, errors, run="2026-01-01 00:00"),
        Row("goals", "ANIL", SMALL, 4.0, 3, 0.1, {}, run="2026-01-01 00:00"),
        Row("offset", "adjoint", replace(SMALL, offset=1.0), 1.0, 3, 0.1, errors),
    ]
    meta_gradient_rows.store(rows)
    assert meta_gradient_rows.stored() == rows
    meta_gradient_page.write(rows, None)
    text = (tmp_path / "meta_gradient.md").read_text(encoding="utf-8")
    assert "| 0 | adjoint* | 1.00 |  | 0.1 | 3e-07 | 2e-06 |" in text
    assert "| 0 | forward | 2.00 | 2 x* | 0.1 | 3e-07 | 2e-06 |" in text
    assert "measured in another run than its panel's other rows (2026-02-02 00:00)" in text
    assert "| 1 | adjoint | 1.00 |" in text


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def task() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x, q = (torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (6, 9))
    return (x, torch.arange(6) % 3), (q, torch.arange(9) % 3)


def unrolled_gradients(model: nn.Module, steps: int, rate: float, pull: float) -> list[np.ndarray]:
    """Meta-gradient of gradient descent on all weights, unrolled by hand."""
    support, query = task()
    start = dict(model.named_parameters())
    current = start
    for _ in range(steps):
        loss = functional.cross_entropy(torch.func.functional_call(model, current, (support[0],)), support[1])
        loss = loss + 0.5 * pull * sum(((current[k] - start[k]) ** 2).sum() for k in start)
        gradients = torch.autograd.grad(loss, list(current.values()), create_graph=True)
        pairs = zip(current.items(), gradients, strict=True)
        current = {name: value - rate * gradient for (name, value), gradient in pairs}
    logits = torch.func.functional_call(model, current, (query[0],))
    return [g.numpy() for g in torch.autograd.grad(functional.cross_entropy(logits, query[1]), [*start.values()])]


@needs("torchopt")
@pytest.mark.parametrize(("method", "steps", "tolerance"), [("maml", 5, 1e-9), ("imaml", 300, 0.02)])
def test_maml_is_exact_and_imaml_near_the_unrolled_gradient(method: str, steps: int, tolerance: float) -> None:
    """IMAML's inner problem pulls to the start; its gradient is exact only at the optimum."""
    from benchmarks import unrolled  # noqa: PLC0415 (TorchOpt is optional)

    model, pull = network(), unrolled.IMAML_STRENGTH if method == "imaml" else 0.0
    expected = unrolled_gradients(model, steps, 0.1, pull)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchOpt uses functorch's old names
        loss = getattr(unrolled, f"{method}_loss")(model, *task(), steps, 0.1)
        loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        error = np.linalg.norm(parameter.grad.numpy() - gradient) / np.linalg.norm(gradient)
        assert error <= tolerance


@pytest.mark.parametrize("steps", [1, 5, 9, 10])
def test_checkpoints_change_nothing_but_memory(steps: int) -> None:
    model = network()
    checkpointed_maml_loss(model, *task(), steps, 0.1).backward()
    for parameter, gradient in zip(model.parameters(), unrolled_gradients(model, steps, 0.1, 0.0), strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.numpy(), gradient, rtol=1e-9, atol=1e-12)


def test_what_is_out_of_reach_is_told_by_the_part_of_the_cost_that_grows() -> None:
    """15 s of network do not become 150 s when the steps of the head become ten times as many."""
    images = Case("images", 5, 5, 1, d=16_000)

    def rows(*measured: tuple[int, float, float]) -> list[Row]:
        return [Row("steps", "ANIL", replace(images, steps=steps), ms, 1, mb) for steps, ms, mb in measured]

    def reason(*measured: tuple[int, float, float]) -> str:
        return meta_gradient._too_much("ANIL", rows(*measured), 10 * measured[-1][0])

    assert not meta_gradient._too_much("ANIL", [], 1)
    assert not reason((1, 15e3, 3800.0), (10, 14e3, 3800.0))
    assert not reason((1, 15e3, 3800.0), (10, 16e3, 3900.0))
    assert reason((1, 15e3, 3800.0), (10, 25e3, 3900.0)) == "would take about 115 s"
    assert reason((1, 15e3, 3800.0), (10, 15e3, 5800.0)) == "would need about 24 GB"
    failed = [*rows((1, 15e3, 3800.0)), replace(rows((10, 0.0, 0.0))[0], note="killed")]
    assert meta_gradient._too_much("ANIL", failed, 100) == "killed"
