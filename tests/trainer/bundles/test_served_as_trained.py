"""The server adapts an exported model as the trainer does: same embeddings, same weights, same horizon."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.flow import solve_flow
from tests.support.image_files import image_bytes, prepare_image
from tests.support.tiny import tiny_config, tiny_model

COLOURS = [(220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30), (30, 220, 220)]


def embeddings(M: int, d: int = 8) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(M, d)).astype(np.float32)


@pytest.mark.parametrize(
    ("start", "model"), [("zero", "tiny"), ("prototype", "tiny-prototype"), ("learned", "tiny-learned")]
)
def test_adaptation_is_the_flow_on_torch_embeddings(engine: Engine, start: str, model: str) -> None:
    """Unequal numbers of examples: 1 of class 0 up to 5 of class 4, in shuffled order."""
    support = [(image_bytes(COLOURS[i], seed=10 * i + n), f"class {i}") for n in range(5) for i in range(n, 5)]
    adapted = engine.adapt(support, NewClassifier(model=model, horizon=30.0)).classifier
    assert adapted.labels == tuple(f"class {i}" for i in range(5))
    assert adapted.examples == (1, 2, 3, 4, 5)

    config = tiny_config(start)
    torch_model = tiny_model(config)
    policy = config.data.preprocessing
    images = np.stack([prepare_image(data, policy) for data, _ in support])
    phi = torch_model.embed(images).astype(np.float64)
    classes = np.array([int(label[-1]) for _, label in support])
    Y = np.eye(5)[classes]
    W0 = np.zeros((5, phi.shape[1]))
    if start == "prototype":
        W0 = 2.0 * np.stack([phi[classes == i].mean(axis=0) for i in range(5)])
    if torch_model.W0 is not None:
        W0 = torch_model.W0.detach().numpy().astype(np.float64)
    weights = None
    if engine.models[model].bundle.head.weighting == "balanced":
        weights = 1.0 / (5 * np.bincount(classes)[classes])
    W = solve_flow(phi, W0, Y, 30.0, weights=weights, rtol=1e-9, atol=1e-9).W
    np.testing.assert_allclose(adapted.W, W, rtol=0, atol=1e-3 * np.abs(W).max())

    probabilities = softmax(phi @ W.T, axis=1)
    of_truth = probabilities[np.arange(len(classes)), classes]
    share = np.full(len(classes), 1 / len(classes)) if weights is None else weights
    assert adapted.support_loss == pytest.approx(-(share * np.log(of_truth)).sum(), rel=1e-3)
    assert adapted.support_accuracy == (probabilities.argmax(axis=1) == classes).mean()


@pytest.mark.parametrize(
    ("start", "head"),
    [
        *(
            (start, {"weighting": weighting, "regularisation": lam})
            for start in ("learned", "zero", "prototype")
            for weighting in ("uniform", "balanced")
            for lam in (0.0, 0.05)
        ),
        ("prototype", {"initial_similarity": 0.4}),
        ("prototype", {"initial_similarity": 0.4, "initial_shot_offset": 1.5}),
    ],
)
def test_the_trainer_adapts_as_the_server_does(start: str, head: dict[str, object]) -> None:
    """`MetaModel.adapt` in torch and its exported `Head.adapt` in NumPy, one set of embeddings."""
    model = tiny_model(tiny_config(start, head=head, episodes={"unequal": 1.0}))
    classes = np.array([0, 1, 1, 2, 2, 2, 3, 4])
    phi = embeddings(8, model.backbone.embedding_size)
    with torch.no_grad():
        Y = torch.eye(5)[torch.from_numpy(classes)]
        trained = model.adapt(torch.from_numpy(phi)[None], Y[None])[0].numpy()
    served = model.head().adapt(phi, classes, 5).W
    assert np.abs(served - trained).max() <= 1e-5 * np.abs(trained).max()


def test_a_horizon_that_follows_the_task_is_the_trainer_s_and_has_its_gradient() -> None:
    model = tiny_model(tiny_config("prototype", head={"condition_horizon": True}))
    assert model.exponents is not None
    with torch.no_grad():
        model.exponents.copy_(torch.tensor([0.5, -1.0, 0.25]))
    phi = torch.from_numpy(np.stack([embeddings(10), 3 * embeddings(10)])).double()
    T = model.horizon(phi, 5)
    assert T.shape == (2,)
    served = [model.head().horizon_of(task.numpy(), 5) for task in phi]
    assert T.tolist() == pytest.approx(served, rel=1e-12)
    Y = torch.eye(5, dtype=torch.float64).repeat(2, 1).expand(2, 10, 5)

    def adapted(exponents: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
        model.exponents = exponents  # type: ignore[assignment]
        return model.adapt(phi, Y)

    del model.exponents  # the place of a parameter takes no other tensor
    exponents = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(adapted, (exponents, phi.requires_grad_()), eps=1e-5, atol=1e-4, rtol=1e-3)
