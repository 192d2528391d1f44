"""The algorithms of `benchmarks.algorithms` against NumPy, finite differences, liblinear and SciPy."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.svm import LinearSVC
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rivals.anil import Anil
from benchmarks.rivals.batch_norm import PlainBatchNorm
from benchmarks.rivals.cavia import Cavia, Film, with_context
from benchmarks.rivals.comln import Comln, ComlnPrototypes
from benchmarks.rivals.embedding_rival import EmbeddingRival
from benchmarks.rivals.imaml import IMaml
from benchmarks.rivals.listing import RIVALS
from benchmarks.rivals.maml import Maml, MetaSgd
from benchmarks.rivals.network_rival import NetworkRival
from benchmarks.rivals.protonet import ProtoNet
from benchmarks.rivals.r2d2 import R2D2
from benchmarks.rivals.ridge import Ridge
from benchmarks.rivals.svm import Svm, dual_solution, free_entries
from benchmarks.rivals.tasks import PROBLEMS, Task
from benchmarks.rivals.training import episodes, train
from tests.support.characters import characters

pytestmark = pytest.mark.slow

PROBLEM = PROBLEMS["omniglot"]
WAYS, SHOTS, D = 3, 2, 64


def embedded(dtype: torch.dtype = torch.float64, ways: int = WAYS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """phi (M, d), Y (M, N), query (Q, d) and its labels, of clusters that overlap."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(ways, D, generator=generator, dtype=dtype)
    labels, targets = (torch.arange(ways).repeat_interleave(n) for n in (SHOTS, 4))
    phi, query = (
        0.2 * (centres[rows] + 2.0 * torch.randn(len(rows), D, generator=generator, dtype=dtype))
        for rows in (labels, targets)
    )
    return phi, functional.one_hot(labels).to(dtype), query, targets


def check_gradient(value: Callable[[Tensor], Tensor], at: Tensor, gradient: Tensor, tolerance: float = 1e-6) -> None:
    """`gradient` is that of `value` at `at`, by central differences along random directions."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        direction = torch.randn(at.shape, generator=generator, dtype=at.dtype)
        with torch.no_grad():
            expected = (value(at + 1e-5 * direction) - value(at - 1e-5 * direction)) / 2e-5
        found = (gradient * direction).sum()
        torch.testing.assert_close(found, expected.to(found), rtol=tolerance, atol=tolerance)


HEADS: dict[str, Callable[[], EmbeddingRival]] = {
    "COMLN": lambda: Comln(PROBLEM, WAYS),
    "COMLN, prototype start": lambda: ComlnPrototypes(PROBLEM, WAYS),
    "ProtoNet": lambda: ProtoNet(PROBLEM),
    "ANIL": lambda: Anil(PROBLEM, WAYS, steps=5, rate=0.5),
    "ridge": lambda: Ridge(PROBLEM, strength=2.0),
    "SVM": lambda: Svm(PROBLEM, C=0.1),
    "R2D2": lambda: R2D2(PROBLEM, strength=0.5),
}


@pytest.mark.parametrize("name", HEADS)
def test_gradients_of_heads_are_those_of_finite_differences(name: str) -> None:
    """In the support embeddings, and in every parameter of the head."""
    rival = HEADS[name]().double()
    phi, Y, query, targets = embedded()
    head = {key: value for key, value in rival.named_parameters() if not key.startswith("backbone.")}
    if "W0" in head:
        torch.nn.init.normal_(head["W0"], generator=torch.Generator().manual_seed(2))

    def loss(phi: Tensor) -> Tensor:
        return functional.cross_entropy(rival.logits(phi, Y, query), targets)

    phi.requires_grad_()
    loss(phi).backward()
    assert phi.grad is not None
    check_gradient(loss, phi.detach(), phi.grad)
    for parameter in head.values():
        assert parameter.grad is not None

        def changed(value: Tensor, parameter: nn.Parameter = parameter) -> Tensor:
            before = parameter.data
            parameter.data = value
            found = loss(phi)
            parameter.data = before
            return found

        check_gradient(changed, parameter.detach().clone(), parameter.grad)


def test_protonet_is_the_distance_to_class_means() -> None:
    phi, Y, query, _ = embedded()
    found = ProtoNet(PROBLEM).logits(phi, Y, query).numpy()
    for c in range(WAYS):
        mean = phi.numpy()[Y[:, c].numpy() == 1].mean(axis=0)
        np.testing.assert_allclose(found[:, c], -((query.numpy() - mean) ** 2).sum(axis=1), rtol=1e-10)


def test_metaoptnet_ridge_is_ridge_regression() -> None:
    """By the normal equations in the primal, (d, d)."""
    phi, Y, query, _ = (x.numpy() for x in embedded())
    W = np.linalg.solve(phi.T @ phi + 2.0 * np.eye(D), phi.T @ (2.0 * Y))
    found = Ridge(PROBLEM, strength=2.0).double().logits(*embedded()[:3]).detach().numpy()
    np.testing.assert_allclose(found, query @ W, rtol=1e-8)


def test_r2d2_is_ridge_regression_with_a_bias_column() -> None:
    phi, Y, query, _ = (x.numpy() for x in embedded())
    x, q = (np.hstack([rows, np.ones((len(rows), 1))]) for rows in (phi, query))
    M = len(x)
    W = np.linalg.solve(x.T @ x / M + 0.5 * np.eye(D + 1), x.T @ Y / M)
    rival = R2D2(PROBLEM, strength=0.5).double()
    np.testing.assert_allclose(rival.logits(*embedded()[:3]).detach().numpy(), q @ W, rtol=1e-6)


@pytest.mark.parametrize("C", [0.01, 0.1, 1.0])
def test_the_svm_solves_its_quadratic_programme(C: float) -> None:
    """SciPy's SLSQP on the dual problem finds the same; all constraints hold."""
    phi, Y, _, _ = embedded()
    K = phi @ phi.T
    found = dual_solution(K, Y, C).numpy()
    gram, labels = K.numpy(), Y.numpy()
    assert (found <= C * labels + 1e-6).all()
    np.testing.assert_allclose(found.sum(axis=1), 0.0, atol=1e-9)

    def objective(a: np.ndarray) -> tuple[float, np.ndarray]:
        a = a.reshape(labels.shape)
        return 0.5 * np.sum(a * (gram @ a)) - np.sum(labels * a), (gram @ a - labels).ravel()

    solved = minimize(
        objective,
        np.zeros(labels.size),
        jac=True,
        method="SLSQP",
        bounds=[(None, bound) for bound in (C * labels).ravel()],
        constraints={"type": "eq", "fun": lambda a: a.reshape(labels.shape).sum(axis=1)},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert objective(found.ravel())[0] <= solved.fun + 1e-9
    np.testing.assert_allclose(phi.numpy().T @ found, phi.numpy().T @ solved.x.reshape(found.shape), atol=1e-4)


@pytest.mark.parametrize("ways", [2, 5])
def test_the_svm_is_that_of_crammer_and_singer(ways: int) -> None:
    """Weights as liblinear has them from the embeddings themselves; two classes, too."""
    phi, Y, _, _ = embedded(ways=ways)
    W = dual_solution(phi @ phi.T, Y, 0.1).numpy().T @ phi.numpy()
    machine = LinearSVC(C=0.1, multi_class="crammer_singer", fit_intercept=False, tol=1e-9, max_iter=100_000)
    machine.fit(phi.numpy(), Y.argmax(dim=1).numpy())
    expected = np.vstack([-machine.coef_, machine.coef_]) / 2 if ways == 2 else machine.coef_
    np.testing.assert_allclose(W, expected, atol=1e-5)
    assert free_entries((phi @ phi.T).numpy(), Y.numpy(), 0.1).any()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, WAYS)).double()


def task() -> Task:
    generator = torch.Generator().manual_seed(1)
    support, query = (torch.randn(WAYS * n, 8, generator=generator, dtype=torch.float64) for n in (SHOTS, 4))
    return Task(support, query, WAYS)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def gradients(rival: NetworkRival | IMaml) -> Tensor:
    rival.zero_grad()
    rival.accumulate([task()])
    parameters = [parameter for group in rival.parameter_groups() for parameter in group["params"]]
    return flat([parameter.grad for parameter in parameters])


@pytest.mark.parametrize("name", ["MAML", "Meta-SGD", "CAVIA"])
def test_meta_gradients_of_networks_are_those_of_finite_differences(name: str) -> None:
    """The loss after an inner loop that is run anew, without autograd's graph of it."""
    net = network()
    rival: NetworkRival = Maml(net, steps=3, rate=0.5)
    if name == "Meta-SGD":
        rival = MetaSgd(net, steps=2, rate=0.5)
    if name == "CAVIA":
        net = nn.Sequential(nn.Unflatten(1, (8, 1, 1)), Film(4, 8), nn.Flatten(), network()).double()
        rival = Cavia(net, steps=2, rate=1.0)
    parameters = [parameter for group in rival.parameter_groups() for parameter in group["params"]]
    found, at = gradients(rival), flat(parameters)
    sizes = [parameter.numel() for parameter in parameters]

    def loss(values: Tensor) -> Tensor:
        for parameter, part in zip(parameters, values.split(sizes), strict=True):
            parameter.data = part.view_as(parameter).clone()
        with torch.enable_grad():
            weights = rival.adapt(task(), graph=False)
        return rival.query_loss(weights, task()).detach()

    check_gradient(loss, at, found)


def test_first_order_is_the_query_gradient_at_the_adapted_weights() -> None:
    rival = Maml(network(), steps=3, rate=0.5, first_order=True)
    weights = rival.adapt(task(), graph=False)
    expected = flat([*torch.autograd.grad(rival.query_loss(weights, task()), [*weights.values()])])
    torch.testing.assert_close(gradients(rival), expected)
    second = gradients(Maml(network(), steps=3, rate=0.5))
    assert (second - expected).norm() > 1e-3 * expected.norm()


def test_imaml_solves_the_implicit_equation() -> None:
    """(1 + H / strength) g = query gradient, with a dense Hessian at the inner optimum."""
    strength = 2.0
    rival = IMaml(network(), steps=400, rate=0.1, strength=strength, cg_steps=200)
    weights = rival.adapt(task(), graph=False)
    names, sizes = [*weights], [weight.numel() for weight in weights.values()]

    def support(values: Tensor) -> Tensor:
        parts = zip(names, values.split(sizes), strict=True)
        return rival.support_loss({name: part.view_as(weights[name]) for name, part in parts}, task())

    at = flat([*weights.values()])
    hessian = torch.autograd.functional.hessian(support, at)
    assert isinstance(hessian, Tensor)
    start = flat([*rival.start().values()])
    slope = torch.func.grad(support)(at) + strength * (at - start)
    assert slope.norm() < 1e-8  # the inner loop has reached its optimum
    wanted = flat([*torch.autograd.grad(rival.query_loss(weights, task()), [*weights.values()])])
    expected = torch.linalg.solve(torch.eye(len(at), dtype=at.dtype) + hessian / strength, wanted)
    torch.testing.assert_close(gradients(rival), expected, rtol=1e-6, atol=1e-9)


def test_plain_batch_norm_is_batch_norm() -> None:
    """Values and gradients, in training and with the last batch's statistics."""
    torch.manual_seed(0)
    plain, usual = PlainBatchNorm(4).double(), nn.BatchNorm2d(4).double()
    nn.init.normal_(plain.weight)
    usual.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    up = torch.randn_like(x)
    torch.testing.assert_close(plain(x), usual(x))
    torch.testing.assert_close(torch.autograd.grad(plain(x), x, up), torch.autograd.grad(usual(x), x, up))
    plain.eval()
    torch.testing.assert_close(plain(x[:1]), usual(x)[:1])


@pytest.mark.parametrize("name", RIVALS)
def test_every_algorithm_trains_and_is_measured(name: str) -> None:
    """All parameters move within an update, and measuring changes none of them."""
    torch.manual_seed(0)
    rival = RIVALS[name].build(PROBLEM, WAYS)
    assert isinstance(rival, EmbeddingRival | NetworkRival)
    start = copy.deepcopy(rival.state_dict())
    images = characters()
    points = list(train(rival, images, ways=WAYS, shots=1, budget=1e-6, seed=0))
    assert [(point.updates, point.last) for point in points] == [(1, True)]
    state = copy.deepcopy(dict(rival.named_parameters()))
    moved = {key for key, value in state.items() if not torch.equal(value, start[key])}
    assert set(state) - moved <= {"bias"}  # R2D2's one bias for all classes changes no probability
    found = rival.accuracies(images, episodes(images, 3, ways=WAYS, shots=1))
    for values in (found.usual, found.alone):
        assert values.shape == (3,)
        assert ((values >= 0) & (values <= 1)).all()
    for key, value in rival.named_parameters():
        assert torch.equal(value, state[key])


def test_what_is_alone_does_not_depend_on_the_other_queries() -> None:
    """CAVIA's second kind of accuracy: the query's statistics have no part in it."""
    torch.manual_seed(0)
    rival = Cavia(with_context(PROBLEM, WAYS, 10), steps=2, rate=1.0)
    images = characters()
    rival.train()
    support = images.pixels[:6]
    with torch.no_grad():
        rival.network(support)
        rival.eval()
        together = rival.network(images.pixels[20:50])
        torch.testing.assert_close(rival.network(images.pixels[20:21]), together[:1])
        rival.train()
        assert not torch.allclose(rival.network(images.pixels[20:50])[:1], together[:1])
