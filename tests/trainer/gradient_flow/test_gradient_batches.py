"""Meta-gradients of batches of tasks, and the transfer of their tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.gradient_error import INPUTS, Task, clustered_task
from comln_serve.flow import FlowError
from tests.support.numerics import both_methods, close, small_task
from training.gradient_flow import Method, gradient_flow, transfers


def stacked(tasks: list[Task], name: str, batch: tuple[int, ...]) -> Tensor:
    values = torch.tensor(np.stack([getattr(task, name) for task in tasks]), dtype=torch.float64)
    return values.reshape(*batch, *values.shape[1:]).requires_grad_(name in INPUTS)


@both_methods
def test_a_batch_is_its_single_tasks(method: Method) -> None:
    """Two leading axes, a horizon and a lambda per task; the shared W0 sums its gradients."""
    tasks = [small_task(T=1.0 + 3 * i, lam=0.02 * i, seed=i) for i in range(6)]
    tasks = [replace(task, W0=tasks[0].W0) for task in tasks]
    batch = {name: stacked(tasks, name, (2, 3)) for name in ("phi", "Y", "T", "lam", "weights", "V")}
    V = batch.pop("V")
    W0 = torch.tensor(tasks[0].W0, requires_grad=True)
    W = gradient_flow(W0=W0, method=method, **batch)
    assert W.shape == (2, 3, 3, 8)
    (W * V).sum().backward()
    single = [task.gradients(method) for task in tasks]
    for name in ("phi", "T", "lam", "weights"):
        expected = np.stack([gradients[name] for gradients in single])
        grad = batch[name].grad
        assert grad is not None
        close(grad.reshape(expected.shape), expected, 1e-10)
    close(W0.grad, sum(gradients["W0"] for gradients in single), 1e-10)


@both_methods
def test_scalars_shared_by_a_batch_sum_their_gradients(method: Method) -> None:
    tasks = [small_task(T=4.0, lam=0.1, seed=i) for i in range(2)]
    T, lam = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (4.0, 0.1))
    W = gradient_flow(
        *(stacked(tasks, name, (2,)) for name in ("phi", "W0", "Y")),
        T,
        lam=lam,
        weights=stacked(tasks, "weights", (2,)),
        method=method,
    )
    (W * stacked(tasks, "V", (2,))).sum().backward()
    single = [task.gradients(method) for task in tasks]
    close(T.grad, sum(gradients["T"] for gradients in single), 1e-10)
    close(lam.grad, sum(gradients["lam"] for gradients in single), 1e-10)


@both_methods
def test_a_w0_shared_by_float32_tasks_gets_the_sum_in_float32(method: Method) -> None:
    tasks = [clustered_task(3, 2, 50.0, seed=seed) for seed in range(3)]
    W0 = torch.tensor(tasks[0].W0, dtype=torch.float32, requires_grad=True)
    phi, V = (stacked(tasks, name, (3,)).detach().float() for name in ("phi", "V"))
    W = gradient_flow(phi, W0, stacked(tasks, "Y", (3,)), 50.0, method=method)
    assert W.dtype == torch.float32
    (W * V).sum().backward()
    single = [
        replace(
            task, phi=np.float64(phi[i].numpy()), W0=np.float64(W0.detach().numpy()), V=np.float64(V[i].numpy())
        ).gradients(method)["W0"]
        for i, task in enumerate(tasks)
    ]
    assert W0.grad is not None
    assert W0.grad.dtype == torch.float32
    close(W0.grad.double(), sum(single), 1e-6)


@both_methods
def test_an_error_in_one_task_of_a_batch_is_raised_and_the_next_batch_works(method: Method) -> None:
    tasks = [small_task(seed=seed) for seed in range(4)]
    phi, W0, Y = (stacked(tasks, name, (4,)) for name in ("phi", "W0", "Y"))
    horizons = torch.tensor([1.0, 1.0, 1e4, 1.0])
    with pytest.raises(FlowError, match=r"of T = 10000 .*raise max_steps"):
        gradient_flow(phi, W0, Y, horizons, method=method, max_steps=30)
    gradient_flow(phi, W0, Y, 1.0, method=method, max_steps=30).sum().backward()


@both_methods
def test_packed_transfers_are_bit_equal(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are packed, as for a transfer from another device, give bit-equal results."""
    tasks = [small_task(T=1.0 + 3 * i, lam=0.02 * i, seed=i) for i in range(6)]

    def run() -> list[Tensor]:
        batch = {name: stacked(tasks, name, (2, 3)) for name in (*INPUTS, "Y")}
        W = gradient_flow(**batch, method=method)
        loss = (W * stacked(tasks, "V", (2, 3))).sum()
        return [W, *torch.autograd.grad(loss, [batch[name] for name in INPUTS])]

    to_cpu, moves = transfers.to_cpu, list[int]()

    def packed_to_cpu(*tables: Tensor | np.ndarray) -> list[np.ndarray]:
        tensors = [table for table in tables if isinstance(table, Tensor)]
        moves.append(len(tensors))
        moved = iter(transfers.unpack(transfers.pack(tensors), tensors))
        return to_cpu(*(next(moved) if isinstance(x, Tensor) else x for x in tables))

    expected = run()
    monkeypatch.setattr(transfers, "to_cpu", packed_to_cpu)
    for one, other in zip(run(), expected, strict=True):
        assert torch.equal(one, other)
    assert moves == [5, 1]


@pytest.mark.parametrize("batch", [1, 4])
def test_pack_and_unpack_are_inverse(batch: int) -> None:
    """Tables of any shape per task, including scalars and transposed ones, in one matrix."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (), (5,), (1, 1), (), (2, 3, 4)]
    tables = [torch.randn(batch, *shape, generator=generator).double() for shape in shapes]
    tables.append(tables[0].mT)
    packed = transfers.pack(tables)
    assert packed.shape == (batch, 3 * 5 + 1 + 5 + 1 + 1 + 2 * 3 * 4 + 3 * 5)
    for table, arrived in zip(tables, transfers.unpack(packed, tables), strict=True):
        assert arrived.shape == table.shape
        assert torch.equal(arrived, table)
