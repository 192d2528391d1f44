"""The computations that `meta_gradient.py` compares, each ready to run again and again.

A case is one task: `ways` x `shots` support examples, `steps` gradient steps of RATE, which is the
flow up to T = RATE steps. On embeddings the task is given as phi, and the meta-gradient is that of
<V, W(T)>. On images it is that of the query loss in all weights of the network.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchdiffeq import odeint

from benchmarks.anil import anil_head
from benchmarks.checkpointed import checkpointed_maml_loss
from training.backbones.backbone import Backbone
from training.config import BackboneConfig
from training.gradient_flow import gradient_flow

RATE = 0.01
IMAGE_SIZE, QUERIES = 84, 15
NORM2 = 100.0  # mean squared norm of the embeddings

Run = Callable[[], dict[str, np.ndarray]]

# The networks of the cases on images, by the size of their embeddings.
NETWORKS = {1600: BackboneConfig(), 16_000: BackboneConfig(kind="resnet12")}

# method and solver of gradient_flow by name
FLOWS: dict[str, dict[str, Any]] = {
    "adjoint": {"method": "adjoint"},
    "forward": {"method": "forward"},
    "adjoint, Euler": {"method": "adjoint", "solver": "euler", "step_size": RATE},
    "forward, Euler": {"method": "forward", "solver": "euler", "step_size": RATE},
    "forward, torchdiffeq": {"method": "forward", "solver": "torchdiffeq.dopri5"},
}

# Contenders that compute several tasks at once; their time is given per task.
TASKS = {"adjoint, 8 tasks": 8}


@dataclass(frozen=True)
class Case:
    """What is computed.

    Attributes:
        on: "embeddings" of size d, or "images" through a network of random weights whose embeddings have size d: Conv-4
            for 1600, the paper's ResNet-12 for 16000.
        ways, shots: of the support set. steps: gradient steps of RATE.
        offset: on embeddings, added to every feature before scaling, in standard deviations of the class centres. 0:
            embeddings of different classes are nearly orthogonal. With 1 their mean cosine is 1/3, as it is on
            embeddings of real images (0.27 for a Conv-4 trained as in the paper, whose features come after a ReLU,
            on miniImageNet's validation classes; 0.34 for `photos-efficientnet-lite0` on groceries).
    """

    on: Literal["embeddings", "images"]
    ways: int
    shots: int
    steps: int
    d: int = 1600
    offset: float = 0.0

    @property
    def T(self) -> float:
        """Horizon."""
        return RATE * self.steps


def build(name: str, case: Case) -> Run:
    """The contender `name` on a case: a function that computes its meta-gradient once."""
    return _on_images(name, case) if case.on == "images" else _on_embeddings(name, case)


def embeddings(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """phi (M, d) in one Gaussian cluster a class, shifted by the offset, W0 and V (N, d), Y (M, N)."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(case.ways), case.shots)
    phi = rng.standard_normal((case.ways, case.d))[y] + rng.standard_normal((len(y), case.d)) + case.offset
    phi *= np.sqrt(NORM2 / (phi**2).sum(axis=1).mean())
    return {
        "phi": phi,
        "W0": rng.standard_normal((case.ways, case.d)) / np.sqrt(case.d),
        "V": rng.standard_normal((case.ways, case.d)),
        "Y": np.eye(case.ways)[y],
    }


def reference(case: Case) -> dict[str, np.ndarray]:
    """The gradients to compare with: float64, solved to 1e-11."""
    return _flow_run(embeddings(case), case.T, torch.float64, rtol=1e-11, atol=1e-11)()


def _on_embeddings(name: str, case: Case) -> Run:
    if name in TASKS:
        seeds = [embeddings(case, seed) for seed in range(TASKS[name])]
        batch = {key: np.stack([task[key] for task in seeds]) for key in seeds[0]}
        run = _flow_run(batch, case.T, torch.float32)
        return lambda: {key: x[0] if x.ndim else x for key, x in run().items() if key != "T"}
    task = embeddings(case)
    if name in FLOWS:
        return _flow_run(task, case.T, torch.float32, max_steps=10**9, **FLOWS[name])
    if name == "ANIL":
        return _anil_run(task, case.steps)
    if name == "naive forward":
        return _naive_run(task, case.T)
    if name == "JAX forward":
        return _jax_run(task, case.T)
    raise ValueError(f"no contender {name!r} on embeddings")


def _flow_run(task: dict[str, np.ndarray], T: float, dtype: torch.dtype, **options: Any) -> Run:
    phi, W0, V = (torch.tensor(task[key], dtype=dtype) for key in ("phi", "W0", "V"))
    Y, horizon = torch.from_numpy(task["Y"]), torch.tensor(T, dtype=dtype, requires_grad=True)
    phi.requires_grad_()
    W0.requires_grad_()

    def run() -> dict[str, np.ndarray]:
        W = gradient_flow(phi, W0, Y, horizon, **options)
        return _named(("phi", "W0", "T"), torch.autograd.grad(W, (phi, W0, horizon), V))

    return run


def _anil_run(task: dict[str, np.ndarray], steps: int) -> Run:
    phi, V = (torch.tensor(task[key], dtype=torch.float32) for key in ("phi", "V"))
    W0 = torch.tensor(task["W0"], dtype=torch.float32, requires_grad=True)
    Y = torch.tensor(task["Y"], dtype=torch.float32)
    phi.requires_grad_()

    def run() -> dict[str, np.ndarray]:
        W = anil_head(W0, phi, Y, steps, RATE)
        return _named(("phi", "W0"), torch.autograd.grad(W, (phi, W0), V))

    return run


def naive_bytes(case: Case) -> float:
    """Memory of dW/d(W0, phi), (N d, (N + M) d) float32: about 40 copies in a dopri5 step."""
    M = case.ways * case.shots
    return 4.0 * 40 * case.ways * case.d * (case.ways + M) * case.d


def _naive_run(task: dict[str, np.ndarray], T: float) -> Run:
    """Forward sensitivity of W itself: dS/dt = J_W S + J_theta for theta = (W0, phi)."""
    phi, W0, V = (torch.tensor(task[key], dtype=torch.float32) for key in ("phi", "W0", "V"))
    Y = torch.tensor(task["Y"], dtype=torch.float32)
    (M, d), N = phi.shape, len(W0)

    # Directions of theta one by one: the change of phi that each makes, (N + M) d of (M, d).
    dphi = torch.eye((N + M) * d).reshape(-1, N + M, d)[:, N:]

    def field(_t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        W, S = state  # (N, d), ((N + M) d, N, d)
        p = torch.softmax(phi @ W.T, dim=1)
        dlogits = phi @ S.mT + dphi @ W.T
        dp = p * (dlogits - (p * dlogits).sum(dim=2, keepdim=True))
        return (Y - p).T @ phi / M, ((Y - p).T @ dphi - dp.mT @ phi) / M

    def run() -> dict[str, np.ndarray]:
        S0 = torch.eye((N + M) * d)[:, : N * d].reshape(-1, N, d)
        times = torch.tensor([0.0, T])
        path: Any = odeint(field, (W0, S0), times, method="dopri5", rtol=1e-5, atol=1e-5)
        gradient = (path[1][-1].reshape(len(S0), -1) @ V.reshape(-1)).reshape(N + M, d)
        dT = (V * field(times, (path[0][-1], S0))[0]).sum()
        return _named(("phi", "W0", "T"), (gradient[N:], gradient[:N], dT))

    return run


def _jax_run(task: dict[str, np.ndarray], T: float) -> Run:
    from benchmarks.jax_reference import ForwardSensitivity  # noqa: PLC0415 (JAX is optional)

    (M, N), d = task["Y"].shape, task["phi"].shape[1]
    gradient = ForwardSensitivity(M, N, d)

    def run() -> dict[str, np.ndarray]:
        parts = gradient(task["phi"], task["W0"], task["Y"], T, task["V"])
        return dict(zip(("phi", "W0", "T"), parts, strict=True))

    return run


class Network(nn.Module):
    """A backbone and a linear head. Batch norm uses the batch alone, as in MAML."""

    def __init__(self, ways: int, d: int) -> None:
        super().__init__()
        self.backbone = Backbone(NETWORKS[d], IMAGE_SIZE)
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        self.head = nn.Linear(self.backbone.embedding_size, ways, bias=False)
        self.scale = 1.0

    def embed(self, images: Tensor) -> Tensor:
        """(B, d) embeddings of mean squared norm NORM2."""
        return self.backbone(images) * self.scale

    def forward(self, images: Tensor) -> Tensor:
        """(B, N) logits."""
        return self.head(self.embed(images))


def episode(case: Case, seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Support and query images (uint8) and labels: a coarse pattern for each class, and noise."""
    rng = np.random.default_rng(seed)
    pattern = rng.normal(128, 50, (case.ways, 7, 7, 3)).repeat(12, axis=1).repeat(12, axis=2)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = np.repeat(np.arange(case.ways), count)
        images = pattern[y] + rng.normal(0, 60, (len(y), IMAGE_SIZE, IMAGE_SIZE, 3))
        return torch.from_numpy(images.clip(0, 255).astype(np.uint8)), torch.from_numpy(y)

    return draw(case.shots), draw(QUERIES)


def _on_images(name: str, case: Case) -> Run:
    torch.manual_seed(0)
    network = Network(case.ways, case.d)
    support, query = episode(case)
    with torch.no_grad():
        norm2 = network.embed(support[0]).square().sum(dim=1).mean()
        network.scale = math.sqrt(NORM2 / float(norm2))
    Y = functional.one_hot(support[1], case.ways)
    horizon = torch.tensor(case.T, requires_grad=True)

    def query_loss() -> Tensor:
        if name == "MAML, checkpoints":
            return checkpointed_maml_loss(network, support, query, case.steps, RATE)
        if name in {"MAML", "iMAML"}:
            from benchmarks import unrolled  # noqa: PLC0415 (TorchOpt is optional)

            loss = unrolled.maml_loss if name == "MAML" else unrolled.imaml_loss
            return loss(network, support, query, case.steps, RATE)
        phi, phi_query = network.embed(support[0]), network.embed(query[0])
        if name == "ANIL":
            W = anil_head(network.head.weight, phi, Y, case.steps, RATE)
        else:
            W = gradient_flow(phi, network.head.weight, Y, horizon, max_steps=10**9, **FLOWS[name])
        return functional.cross_entropy(phi_query @ W.T, query[1])

    def run() -> dict[str, np.ndarray]:
        network.zero_grad()
        query_loss().backward()
        return {key: p.grad.numpy() for key, p in network.named_parameters() if p.grad is not None}

    return run


def _named(names: tuple[str, ...], tensors: Any) -> dict[str, np.ndarray]:
    return {name: x.detach().numpy() for name, x in zip(names, tensors, strict=True)}
