"""Meta-training: the loop of Algorithm 1, over batches of episodes."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from training.augmentation import augment, draw
from training.checkpoint import BEST, LAST, Checkpoint, append_log, resume_from
from training.config import Config, OptimiserConfig
from training.data import ImageSet, sample_episode
from training.model import MetaModel
from training.optimiser import half_cosine, sgd
from training.pretrain import pretrain
from training.validate import validate

# Separates what is drawn for the augmentation from what is drawn for the episodes.
_AUGMENTATION = 1


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
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, half_cosine(config.updates, config.optimiser.warmup)
    )
    start, best, spent = 0, -1.0, 0.0
    last = resume_from(out / LAST, config, resume=resume)
    if last is not None:
        last.restore(model, optimiser, schedule)
        start, best, spent = last.update, last.best, last.seconds
    elif config.pretraining is not None:
        spent = pretrain(model, train, val, out, resume=resume)

    began = time.monotonic()
    bar = tqdm(range(start, config.updates), initial=start, total=config.updates, disable=None)
    for update in bar:
        images, ways, shots = _draw(config, train, update, device)
        model.train()
        loss = episode_loss(model, images, ways, shots)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.amounts(), config.optimiser.clip_head)
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
        head = model.head()
        append_log(
            out,
            phase="episodes", update=done, seconds=round(checkpoint.seconds, 1),
            loss=float(loss.detach()), horizon=head.horizon, alpha=head.alpha,
            validation=checkpoint.validation,
        )  # fmt: skip
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
    embeddings = model.features(images.flatten(0, 2)).unflatten(0, (tasks, ways, per_class))
    phi = embeddings[:, :, :shots].flatten(1, 2)  # (B, N k, d)
    query = embeddings[:, :, shots:].flatten(1, 2)  # (B, N q, d)
    labels = torch.arange(ways, device=images.device)
    Y = functional.one_hot(labels.repeat_interleave(shots), ways).to(phi.dtype)
    W = model.adapt(phi, Y.expand(tasks, -1, -1))
    logits = query @ W.transpose(1, 2)
    targets = labels.repeat_interleave(per_class - shots).repeat(tasks)
    return functional.cross_entropy(logits.flatten(0, 1), targets)


def _draw(
    config: Config, data: ImageSet, update: int, device: torch.device
) -> tuple[Tensor, int, int]:
    """An update's augmented images (B, N, k + q, S, S, 3) on `device`, with N and k.

    Depends on the seed and the update alone; the episodes do not depend on the augmentation.
    """
    settings = config.episodes
    rng = np.random.default_rng((config.seed, update))
    noise = np.random.default_rng((config.seed, update, _AUGMENTATION))
    torch.manual_seed(int(noise.integers(2**63)))  # for what the network itself draws
    shots = int(rng.integers(settings.shots[0], settings.shots[1] + 1))
    per_class = shots + settings.queries
    tasks = []
    for _ in range(settings.tasks):
        episode = sample_episode(rng, data, settings.ways, shots, settings.queries)
        indices = np.concatenate([episode.support, episode.query], axis=1)
        tasks.append(data.gather(np.repeat(episode.classes, per_class), indices.ravel()))
    images = torch.from_numpy(np.concatenate(tasks)).to(device)
    images = augment(images, draw(noise, len(images), config.augmentation), config.augmentation)
    return images.unflatten(0, (settings.tasks, settings.ways, per_class)), settings.ways, shots


def _optimiser(model: MetaModel, config: OptimiserConfig) -> torch.optim.SGD:
    convolutions = [p for p in model.backbone.parameters() if p.ndim > 1]
    others = [p for p in model.backbone.parameters() if p.ndim <= 1]
    if model.W0 is not None:
        others.append(model.W0)
    groups = [
        {"params": convolutions, "weight_decay": config.weight_decay},
        {"params": others},
        {"params": model.amounts(), "lr": config.head_lr},
    ]
    return sgd(groups, config.lr, config.momentum)
