"""Meta-training: the loop of Algorithm 1, over batches of episodes."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from training.backbones.backbone import Backbone
from training.backbones.warm_start import warm_start
from training.checkpoint import Checkpoint, resume_from
from training.checkpoint_names import BEST, LAST, PRETRAINING
from training.config import Config
from training.data import ImageSet
from training.data.resident import ResidentImages
from training.data.several import Data, Sets, by_name
from training.memory import trim_freed_memory
from training.model import MetaModel
from training.runs.checks import check_run
from training.runs.distributed import Group, average_gradients, join, leave, share_batch_norm, wait
from training.runs.embedded import embed_once
from training.runs.episodes import draw_batch, episode_loss
from training.runs.log import RunLog
from training.runs.pretrain import pretrain
from training.runs.report import write_report
from training.runs.run import Run
from training.runs.same_data import check_same_data

# With a warm start: how many images batch norm is measured on, and the stream of random numbers
# that chooses them.
_STATISTICS_IMAGES, _STATISTICS_STREAM = 256, 3
_TRIM_EVERY, _SHOW_EVERY = 2, 20  # updates


def fit(config: Config, train: Data, val: Data, out: Path, *, resume: bool, command: str = "") -> Checkpoint:
    """Train to `config.updates` updates and return the best checkpoint by validation accuracy.

    `out` receives `last.pt`, `best.pt`, the log, `report.html`, a hash of the data, and `pretraining.pt` if there is
    pre-training. All random numbers of an update depend on the seed and the update's number alone, so a run that was
    killed and resumed gives the same result as one that never stopped. Under `torchrun` the processes share each
    update's tasks. With a frozen backbone every image is embedded once, and training runs on the embeddings.

    Args:
        train, val: one data set, or several by their names. With several, every training task is drawn from one of
            them, and the best checkpoint is the one with the best mean over the validation sets and tasks.
        command: what the user typed, for the model card.

    Raises:
        ConfigError: no updates, or tasks that the processes cannot share evenly.
        CheckpointError: `out` holds a run and `resume` is false, or one of another configuration or on other data.
        DataError: too few classes, or images of a class, for the configured episodes.
        DivergedError: losses or embeddings are no longer finite.
    """
    group, device = join()
    try:
        _fit(config, by_name(train), by_name(val), out, resume, command, group, device)
        if group.leads:
            write_report(out)
        wait(group)  # for the files that the leader writes
        return Checkpoint.load(out / BEST)
    finally:
        leave(group)


def _fit(
    config: Config, train: Sets, val: Sets, out: Path, resume: bool, command: str, group: Group, device: torch.device
) -> None:
    check_run(config, train, val, group.size)
    out.mkdir(parents=True, exist_ok=True)
    last = resume_from(out / LAST, config, resume=resume)
    check_same_data(out, train, val, leads=group.leads)
    if group.leads:
        if resume:
            print(_continued(config, last, out), flush=True)
        print(_read(train, val), flush=True)
    torch.manual_seed(config.seed)
    # Channels-last halves the time of a step on CPU, and the images are stored in that order.
    model = MetaModel(config).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    share_batch_norm(model, group)
    if config.backbone.warm_start is not None and isinstance(model.backbone, Backbone):
        if last is None:
            some = _statistics_images(config, list(train.values())).to(device)
            warm_start(model.backbone, Path(config.backbone.warm_start), some)
        else:  # the bundle may be another by now
            model.load_state_dict(last.model)
    if model.backbone.frozen:
        train, val = ({name: embed_once(model, data) for name, data in sets.items()} for sets in (train, val))
        model = model.on_embeddings()
    images = [ResidentImages(data, device) for data in train.values()]
    spent = 0.0
    if last is None and config.pretraining is not None:
        spent = pretrain(model, images[0], val, out, resume=resume, command=command, group=group)
    run = Run(model, val, out, command=command, group=group, spent=spent)
    if last is not None:
        run.restore(last)
    _train(run, images)


def _train(run: Run, images: list[ResidentImages]) -> None:
    """Algorithm 1, from the run's last update to its end."""
    model, config, group = run.model, run.config, run.group
    log = RunLog(run.out, "episodes", run.done) if group.leads else None
    bar = tqdm(
        range(run.done, config.updates), initial=run.done, total=config.updates, disable=None if group.leads else True
    )
    for update in bar:
        model.train()
        loss = episode_loss(model, draw_batch(config, images, update, group))
        run.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(model.parameters(), group)
        nn.utils.clip_grad_norm_(model.head_parameters(), config.optimiser.clip_head)
        run.step()

        done = update + 1
        if done % _TRIM_EVERY == 0:
            trim_freed_memory()
        if done % config.validation.every == 0 or done == config.updates:
            if log is not None:
                run.measure(done, loss, log)
        elif done % _SHOW_EVERY == 0 and not bar.disable:
            bar.set_postfix(loss=f"{loss.item():.3f}", T=f"{model.log_T.exp().item():.3g}")
    if log is not None:
        log.close()


def _continued(config: Config, last: Checkpoint | None, out: Path) -> str:
    """Where a run with `--resume` goes on: a misspelt folder would start another one unnoticed."""
    if last is not None:
        return f"{out}: continued after update {last.update} of {last.config.updates}"
    if config.pretraining is not None and (out / PRETRAINING).exists():
        return f"{out}: no update was saved yet; continued from what was saved of pre-training"
    return f"{out}: nothing was saved there yet, so a new run is started"


def _read(train: Sets, val: Sets) -> str:
    """The classes and images of a run, in words."""

    def counted(sets: Sets) -> str:
        return "; ".join(
            f"{f'{name}: ' if name is not None else ''}{data.n_classes} classes, {len(data.images)} images"
            for name, data in sets.items()
        )

    return f"training on {counted(train)}; validation on {counted(val)}"


def _statistics_images(config: Config, sets: list[ImageSet]) -> Tensor:
    """Images that batch norm is measured on, equally many of each data set."""
    rng, count = np.random.default_rng((config.seed, _STATISTICS_STREAM)), _STATISTICS_IMAGES // len(sets)
    parts: list[Tensor] = []
    for data in sets:
        some = np.sort(rng.permutation(len(data.images))[:count])
        parts.append(torch.from_numpy(data.first_views[some]))
    return torch.cat(parts)
