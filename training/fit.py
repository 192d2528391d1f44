"""Meta-training: the loop of Algorithm 1, over batches of episodes."""

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from training.checkpoint import BEST, LAST, Checkpoint, CheckpointError
from training.config import Config, EpisodeConfig, OptimiserConfig
from training.data import ImageSet, sample_episode
from training.evaluate import Accuracy, evaluate
from training.model import MetaModel


def fit(config: Config, train: ImageSet, val: ImageSet, out: Path, *, resume: bool) -> Checkpoint:
    """Train to `config.updates` updates and return the best checkpoint by validation accuracy.

    `out` receives `last.pt`, `best.pt` and `log.jsonl`. The episodes of an update depend on the
    seed and the update's number alone, so a resumed run sees those it would have seen.

    Raises:
        CheckpointError: `out` holds a run and `resume` is false, or one of another configuration.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Channels-last halves a step on CPU, and the images arrive in that order.
    model = MetaModel(config).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = _optimiser(model, config.optimiser)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _decay(config))
    start, best, spent = 0, -1.0, 0.0
    if (out / LAST).exists():
        if not resume:
            raise CheckpointError(f"{out} already holds a run: pass --resume, or another folder")
        last = Checkpoint.load(out / LAST)
        if last.config != config:
            raise CheckpointError(f"{out / LAST} belongs to another configuration")
        model.load_state_dict(last.model)
        optimiser.load_state_dict(last.optimiser)
        schedule.load_state_dict(last.schedule)
        start, best, spent = last.update, last.best, last.seconds

    began = time.monotonic()
    bar = tqdm(range(start, config.updates), initial=start, total=config.updates, disable=None)
    for update in bar:
        images, ways, shots = _draw(config.episodes, train, (config.seed, update))
        model.train()
        loss = episode_loss(model, torch.from_numpy(images).to(device), ways, shots)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        head = [p for p in (model.log_T, model.log_alpha) if p is not None and p.grad is not None]
        nn.utils.clip_grad_norm_(head, config.optimiser.clip_head)
        optimiser.step()
        schedule.step()

        done = update + 1
        if done % config.validation.every and done < config.updates:
            if done % 20 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}", T=f"{model.head().horizon:.3g}")
            continue
        results = validate(model, val)
        score = float(np.mean([result.mean for result in results]))
        checkpoint = Checkpoint(
            config, done, model.state_dict(), optimiser.state_dict(), schedule.state_dict(),
            max(best, score), spent + time.monotonic() - began, [vars(r) for r in results],
        )  # fmt: skip
        if score > best:
            best = score
            checkpoint.save(out / BEST)
        checkpoint.save(out / LAST)
        _log(out / "log.jsonl", checkpoint, model, float(loss.detach()))
        tqdm.write(
            f"update {done}: " + "; ".join(map(str, results)) + f"; T = {model.head().horizon:.4g}"
        )
    return Checkpoint.load(out / BEST)


def episode_loss(model: MetaModel, images: Tensor, ways: int, shots: int) -> Tensor:
    """Mean query cross-entropy after adaptation.

    Args:
        images: (B, N, k + q, S, S, 3) uint8, the k support images of each class first.
    """
    tasks, _, per_class = images.shape[:3]
    embeddings = model.backbone(images.flatten(0, 2)).unflatten(0, (tasks, ways, per_class))
    phi = embeddings[:, :, :shots].flatten(1, 2)  # (B, N k, d)
    query = embeddings[:, :, shots:].flatten(1, 2)  # (B, N q, d)
    labels = torch.arange(ways, device=images.device)
    Y = functional.one_hot(labels.repeat_interleave(shots), ways).to(phi.dtype)
    W = model.adapt(phi, Y.expand(tasks, -1, -1))
    logits = query @ W.transpose(1, 2)
    targets = labels.repeat_interleave(per_class - shots).repeat(tasks)
    return functional.cross_entropy(logits.flatten(0, 1), targets)


def validate(model: MetaModel, data: ImageSet) -> list[Accuracy]:
    """Accuracy on the configured validation tasks, on the same episodes every time."""
    settings = model.config.validation
    embeddings, head = model.embed(data.images), model.head()
    return [
        evaluate(
            embeddings, head, data, ways=ways, shots=shots,
            queries=settings.queries, episodes=settings.episodes,
        )
        for ways, shots in settings.tasks
    ]  # fmt: skip


def _draw(
    config: EpisodeConfig, data: ImageSet, seed: tuple[int, int]
) -> tuple[np.ndarray, int, int]:
    """A batch of episodes' images (B, N, k + q, S, S, 3), with N and k."""
    rng = np.random.default_rng(seed)
    shots = int(rng.integers(config.shots[0], config.shots[1] + 1))
    per_class = shots + config.queries
    tasks = []
    for _ in range(config.tasks):
        episode = sample_episode(rng, data, config.ways, shots, config.queries)
        indices = np.concatenate([episode.support, episode.query], axis=1)
        images = data.gather(np.repeat(episode.classes, per_class), indices.ravel())
        tasks.append(images.reshape(config.ways, per_class, *images.shape[1:]))
    return np.stack(tasks), config.ways, shots


def _optimiser(model: MetaModel, config: OptimiserConfig) -> torch.optim.SGD:
    convolutions = [p for p in model.backbone.parameters() if p.ndim > 1]
    others = [p for p in model.backbone.parameters() if p.ndim <= 1]
    if model.W0 is not None:
        others.append(model.W0)
    amounts = [p for p in (model.log_T, model.log_alpha) if p is not None]
    groups = [
        {"params": convolutions, "weight_decay": config.weight_decay},
        {"params": others},
        {"params": amounts, "lr": config.head_lr},
    ]
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=True)


def _decay(config: Config):  # type: ignore[no-untyped-def]
    def factor(update: int) -> float:
        if update < config.optimiser.warmup:
            return (update + 1) / config.optimiser.warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, update / config.updates)))

    return factor


def _log(path: Path, checkpoint: Checkpoint, model: MetaModel, loss: float) -> None:
    head = model.head()
    record = {
        "update": checkpoint.update,
        "seconds": round(checkpoint.seconds, 1),
        "loss": loss,
        "horizon": head.horizon,
        "alpha": head.alpha,
        "validation": checkpoint.validation,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
