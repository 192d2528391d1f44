"""Meta-training: the loop of Algorithm 1, over batches of episodes."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from training.checkpoint import BEST, LAST, Checkpoint, resume_from
from training.config import Config, OptimiserConfig
from training.data import ImageSet, check_episodes
from training.data.resident import ResidentImages
from training.distributed import Group, average_gradients, join, leave, share_batch_norm, wait
from training.episodes import draw_batch, episode_loss
from training.hardware import describe_hardware
from training.model import MetaModel
from training.optimiser import half_cosine, sgd, steps
from training.pretrain import pretrain
from training.report import write_report
from training.run_log import RunLog
from training.validate import validate


def fit(
    config: Config, train: ImageSet, val: ImageSet, out: Path, *, resume: bool, command: str = ""
) -> Checkpoint:
    """Train to `config.updates` updates and return the best checkpoint by validation accuracy.

    `out` receives `last.pt`, `best.pt`, the log, `report.html`, and `pretraining.pt` where there is
    such a phase. What is random in an update depends on the seed and the update's number alone, so
    a run that was killed and resumed equals one never stopped. Under `torchrun` the processes share
    each update's tasks.

    Args:
        command: what the user typed, for the model card.

    Raises:
        CheckpointError: `out` holds a run and `resume` is false, or one of another configuration.
        DataError: too few classes, or images of a class, for the configured episodes.
    """
    group, device = join()
    try:
        _fit(config, train, val, out, resume, command, group, device)
        if group.leads:
            write_report(out)
        wait(group)  # for what the leader writes
        return Checkpoint.load(out / BEST)
    finally:
        leave(group)


def _fit(
    config: Config, train: ImageSet, val: ImageSet, out: Path, resume: bool, command: str,
    group: Group, device: torch.device,
) -> None:  # fmt: skip
    if config.episodes.tasks % group.size:
        raise ValueError(
            f"{group.size} processes cannot share {config.episodes.tasks} tasks an update evenly: "
            "set episodes.tasks to a multiple"
        )
    episodes = config.episodes
    check_episodes(train, episodes.ways[1], episodes.shots[1] + episodes.queries)
    for ways, shots in config.validation.tasks:
        check_episodes(val, ways, shots + config.validation.queries)
    out.mkdir(parents=True, exist_ok=True)
    last = resume_from(out / LAST, config, resume=resume)
    torch.manual_seed(config.seed)
    # Channels-last halves a step on CPU, and the images arrive in that order.
    model = MetaModel(config).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    share_batch_norm(model, group)
    images = ResidentImages(train, device)
    hardware = describe_hardware(group)
    start, best, spent = 0, -1.0, 0.0
    if last is None and config.pretraining is not None:
        spent = pretrain(
            model, images, val, out, resume=resume, command=command, hardware=hardware, group=group
        )
    optimiser = _optimiser(model, config.optimiser)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _course(config))
    if last is not None:
        last.restore(model, optimiser, schedule)
        start, best, spent = last.update, last.best, last.seconds

    log = RunLog(out, "episodes", start) if group.leads else None
    began, since, measured = time.monotonic(), time.monotonic(), start
    bar = tqdm(
        range(start, config.updates), initial=start, total=config.updates,
        disable=None if group.leads else True,
    )  # fmt: skip
    for update in bar:
        model.train()
        loss = episode_loss(model, draw_batch(config, images, update, group))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(model.parameters(), group)
        nn.utils.clip_grad_norm_(model.amounts(), config.optimiser.clip_head)
        optimiser.step()
        schedule.step()

        done = update + 1
        if done % config.validation.every and done < config.updates:
            if not bar.disable and done % 20 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}", T=f"{model.log_T.exp().item():.3g}")
            continue
        if log is None:
            continue
        mean_loss = loss.item()
        rate = (done - measured) * config.episodes.tasks / (time.monotonic() - since)
        results = validate(model, val)
        score = float(np.mean([result.mean for result in results]))
        head = model.head()
        checkpoint = Checkpoint(
            config, done, model.state_dict(), optimiser.state_dict(), schedule.state_dict(),
            max(best, score), spent + time.monotonic() - began, [vars(r) for r in results],
            command, hardware,
        )  # fmt: skip
        log.record(
            done, checkpoint.validation, loss=mean_loss, horizon=head.horizon, alpha=head.alpha,
            seconds=round(checkpoint.seconds, 1), episodes_per_second=round(rate, 3),
            lr=optimiser.param_groups[0]["lr"],
        )  # fmt: skip
        if score > best:
            best = score
            checkpoint.save(out / BEST)
        checkpoint.save(out / LAST)
        tqdm.write(
            f"update {done}: " + "; ".join(map(str, results)) + f"; T = {head.horizon:.4g}; "
            f"{rate:.2f} episodes a second"
        )
        since, measured = time.monotonic(), done
    if log is not None:
        log.close()


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


def _course(config: Config) -> Callable[[int], float]:
    settings = config.optimiser
    if settings.steps is not None:
        return steps(settings.lr, settings.steps)
    return half_cosine(config.updates, settings.warmup)
