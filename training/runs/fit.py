"""Meta-training: the loop of Algorithm 1, over batches of episodes."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from training.backbones import Backbone
from training.backbones.warm_start import warm_start
from training.checkpoint import BEST, LAST, Checkpoint, resume_from
from training.config import Config, ConfigError, OptimiserConfig
from training.data import DataError, ImageSet, check_episodes
from training.data.resident import ResidentImages
from training.data.several import Data, by_name
from training.memory import trim_freed_memory
from training.model import MetaModel
from training.runs.distributed import Group, average_gradients, join, leave, share_batch_norm, wait
from training.runs.embedded import embed_once
from training.runs.episodes import draw_batch, episode_loss
from training.runs.hardware import describe_hardware
from training.runs.log import RunLog
from training.runs.optimiser import half_cosine, sgd, steps
from training.runs.pretrain import pretrain
from training.runs.report import write_report
from training.runs.validate import validate

# Of a bundle's network to start from: how many images batch norm is measured on, and which.
_STATISTICS_IMAGES, _STATISTICS = 256, 3
_TRIM_EVERY = 2  # updates

_Sets = dict[str | None, ImageSet]


def fit(config: Config, train: Data, val: Data, out: Path, *, resume: bool, command: str = "") -> Checkpoint:
    """Train to `config.updates` updates and return the best checkpoint by validation accuracy.

    `out` receives `last.pt`, `best.pt`, the log, `report.html`, and `pretraining.pt` where there is
    such a phase. What is random in an update depends on the seed and the update's number alone, so
    a run that was killed and resumed equals one never stopped. Under `torchrun` the processes share
    each update's tasks. Where the backbone is frozen every image is embedded once, and training
    runs on the embeddings.

    Args:
        train, val: one data set, or several by their names. With several, every training task is
            of one of them, and the best checkpoint is that of the best mean over the validation
            sets and tasks.
        command: what the user typed, for the model card.

    Raises:
        ConfigError: no updates, or tasks that the processes cannot share evenly.
        CheckpointError: `out` holds a run and `resume` is false, or one of another configuration.
        DataError: too few classes, or images of a class, for the configured episodes.
    """
    group, device = join()
    try:
        _fit(config, by_name(train), by_name(val), out, resume, command, group, device)
        if group.leads:
            write_report(out)
        wait(group)  # for what the leader writes
        return Checkpoint.load(out / BEST)
    finally:
        leave(group)


def _fit(
    config: Config, train: _Sets, val: _Sets, out: Path, resume: bool, command: str, group: Group, device: torch.device
) -> None:
    _check(config, train, val, group)
    out.mkdir(parents=True, exist_ok=True)
    last = resume_from(out / LAST, config, resume=resume)
    torch.manual_seed(config.seed)
    # Channels-last halves a step on CPU, and the images arrive in that order.
    model = MetaModel(config).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    share_batch_norm(model, group)
    if model.backbone.frozen:
        train, val = ({name: embed_once(model, data) for name, data in sets.items()} for sets in (train, val))
        model = model.on_embeddings()
    images = [ResidentImages(data, device) for data in train.values()]
    if config.backbone.warm_start is not None and isinstance(model.backbone, Backbone):
        warm_start(model.backbone, Path(config.backbone.warm_start), _some_images(config, images))
    hardware, spent = describe_hardware(group), 0.0
    if last is None and config.pretraining is not None:
        spent = pretrain(model, images[0], val, out, resume=resume, command=command, hardware=hardware, group=group)
    optimiser = _optimiser(model, config.optimiser)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _course(config))
    run = _Run(model, optimiser, schedule, val, out, command, hardware, spent)
    if last is not None:
        run.go_on_from(last)
    start = run.updates
    log = RunLog(out, "episodes", start) if group.leads else None
    bar = tqdm(range(start, config.updates), initial=start, total=config.updates, disable=None if group.leads else True)
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
        if done % _TRIM_EVERY == 0:
            trim_freed_memory()
        if done % config.validation.every == 0 or done == config.updates:
            if log is not None:
                run.measure(done, loss, log)
        elif done % 20 == 0 and not bar.disable:
            bar.set_postfix(loss=f"{loss.item():.3f}", T=f"{model.log_T.exp().item():.3g}")
    if log is not None:
        log.close()


def _some_images(config: Config, sets: list[ResidentImages]) -> Tensor:
    """Images that batch norm is measured on, as many of each data set."""
    rng, count = np.random.default_rng((config.seed, _STATISTICS)), _STATISTICS_IMAGES // len(sets)
    parts: list[Tensor] = []
    for images in sets:
        some = np.sort(rng.permutation(len(images.pixels))[:count])
        parts.append(images.pixels[torch.from_numpy(some).to(images.pixels.device)])
    return torch.cat(parts)


def _check(config: Config, train: _Sets, val: _Sets, group: Group) -> None:
    """Refuse now what would fail in the middle of the run."""
    if not config.updates:
        raise ConfigError(
            "updates is 0: nothing would be learned. Set updates to 1 or more, or make a bundle "
            "of an ONNX file without training: comln-train wrap"
        )
    episodes = config.episodes
    least, most = episodes.ways
    for name, data in train.items():
        # Of several data sets a small one is drawn for tasks of fewer ways; see draw_batch.
        ways = most if name is None else max(least, min(most, data.n_classes))
        _check_set(f"training on {name}", name, data, ways, episodes.shots[1], episodes.queries)
    for name, data in val.items():
        for ways, shots in config.validation.tasks:
            where = f"validation on {name}"
            _check_set(where, name, data, ways, shots, config.validation.queries)
    if episodes.tasks % group.size:
        raise ConfigError(
            f"{group.size} processes cannot share {episodes.tasks} tasks an update evenly: set "
            "episodes.tasks to a multiple"
        )
    if config.pretraining is not None and config.pretraining.batch_size < group.size:
        raise ConfigError(
            f"a batch of {config.pretraining.batch_size} images is too small for {group.size} "
            "processes: raise pretraining.batch_size"
        )


def _check_set(where: str, name: str | None, data: ImageSet, ways: int, shots: int, queries: int) -> None:
    try:
        check_episodes(data, ways, shots, queries)
    except DataError as error:
        if name is None:
            raise
        raise DataError(f"{where}: {error}") from error


class _Run:
    """What is measured and saved as the run goes on."""

    def __init__(
        self,
        model: MetaModel,
        optimiser: torch.optim.SGD,
        schedule: torch.optim.lr_scheduler.LambdaLR,
        val: _Sets,
        out: Path,
        command: str,
        hardware: str,
        spent: float,
    ) -> None:
        self.model, self.optimiser, self.schedule = model, optimiser, schedule
        self.val, self.out, self.command, self.hardware = val, out, command, hardware
        self.best, self.spent, self.updates = -1.0, spent, 0
        self.began = self.since = time.monotonic()

    def go_on_from(self, last: Checkpoint) -> None:
        last.restore(self.model, self.optimiser, self.schedule)
        self.best, self.spent, self.updates = last.best, last.seconds, last.update

    def measure(self, done: int, loss: Tensor, log: RunLog) -> None:
        """Validate after `done` updates; log, save, and say how it goes."""
        config, mean_loss = self.model.config, loss.item()
        seconds = time.monotonic() - self.since
        rate = (done - self.updates) * config.episodes.tasks / seconds
        results = validate(self.model, self.val)
        score = float(np.mean([result.mean for result in results]))
        improved, self.best = score > self.best, max(self.best, score)
        checkpoint = Checkpoint(
            config,
            done,
            self.model.state_dict(),
            self.optimiser.state_dict(),
            self.schedule.state_dict(),
            self.best,
            self.spent + time.monotonic() - self.began,
            [result.record() for result in results],
            self.command,
            self.hardware,
        )
        head = self.model.head()
        log.record(
            done,
            checkpoint.validation,
            loss=mean_loss,
            horizon=head.horizon,
            alpha=head.alpha,
            seconds=round(checkpoint.seconds, 1),
            episodes_per_second=round(rate, 3),
            lr=float(self.optimiser.param_groups[0]["lr"]),
        )
        if improved:
            checkpoint.save(self.out / BEST)
        checkpoint.save(self.out / LAST)
        tqdm.write(
            f"update {done}: "
            + "; ".join(map(str, results))
            + (f"; mean {100 * score:.2f} %" if len(self.val) > 1 else "")
            + f"; T = {head.horizon:.4g}; "
            f"{rate:.2f} episodes a second"
        )
        self.updates, self.since = done, time.monotonic()


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
