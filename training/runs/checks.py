"""Checks before a run, of what would otherwise fail in the middle of it."""

from training.config import Config, ConfigError
from training.data import DataError, ImageSet, check_episodes
from training.data.episodes import TooFewClassesError
from training.data.several import Sets

# What sets the number of classes of an episode, and that of a class's images.
_SET_BY = {
    "training": ("episodes.ways", "episodes.shots or episodes.queries"),
    "validation": ("the ways in validation.tasks", "the shots in validation.tasks, or validation.queries,"),
}
# Data whose classes the trainer divides, if nothing else does.
_DIVIDED = ("image_folder", "image_csv")


def check_run(config: Config, train: Sets, val: Sets, processes: int) -> None:
    """Refuse a run that cannot be trained or validated to its end."""
    if not config.updates:
        raise ConfigError(
            "updates is 0: nothing would be learned. Set updates to 1 or more, or make a bundle "
            "of an ONNX file without training: comln-train wrap"
        )
    episodes = config.episodes
    least, most = episodes.ways
    for name, data in train.items():
        ways = max(least, min(most, data.n_classes))  # of a range as many as there are classes; see draw_batch
        _check_set("training", name, data, config.data.kind, ways, episodes.shots[1], episodes.queries)
    for name, data in val.items():
        for ways, shots in config.validation.tasks:
            _check_set("validation", name, data, config.data.kind, ways, shots, config.validation.queries)
    if episodes.tasks % processes:
        raise ConfigError(
            f"{processes} processes cannot share {episodes.tasks} tasks an update evenly: set "
            "episodes.tasks to a multiple"
        )
    if config.pretraining is not None and config.pretraining.batch_size < processes:
        raise ConfigError(
            f"a batch of {config.pretraining.batch_size} images is too small for {processes} "
            "processes: raise pretraining.batch_size"
        )


def _check_set(use: str, name: str | None, data: ImageSet, kind: str, ways: int, shots: int, queries: int) -> None:
    where, (of_ways, of_images) = use if name is None else f"{use} on {name}", _SET_BY[use]
    try:
        check_episodes(data, ways, shots, queries)
    except TooFewClassesError as error:
        divided = " (without splits of their own, data.class_shares divides them)" if kind in _DIVIDED else ""
        raise DataError(
            f"{where}: {error}. Lower {of_ways} in the recipe or with --set, or add classes{divided}"
        ) from error
    except DataError as error:
        raise DataError(f"{where}: {error}. Lower {of_images} in the recipe or with --set, or add images") from error
