"""Which simple heads `comln-train evaluate` measures, and with which settings."""

import argparse

from training.commands.domains import Domain
from training.commands.subject import Subject
from training.config import ConfigError
from training.data import DataError, ImageSet
from training.data.class_lists import ALL
from training.evaluation.baselines import BASELINES
from training.evaluation.choose import CHOSEN, choose, thinned
from training.evaluation.tasks import Task

CHOICE_SPLIT = "train"


def heads_to_measure(args: argparse.Namespace) -> tuple[tuple[str, ...], list[str], list[str]]:
    """The heads of `--baselines`, those whose setting is to be chosen, and notes on heads that are left out.

    A setting is chosen that is neither given nor the default.

    `--baselines all` leaves out a head whose setting has no default if the training classes, on
    which the setting would be chosen, are among those measured.
    """
    given: dict[str, float] = dict(args.settings)
    unmeasured = sorted(set(given) - set(args.baselines))
    if unmeasured:
        raise ConfigError(
            f"--set {unmeasured[0]}: not among the heads of --baselines, "
            f"{', '.join(args.baselines) or 'of which there are none'}"
        )
    chosen = [
        name
        for name in args.baselines
        if BASELINES[name].setting and name not in given and (args.choose or BASELINES[name].value is None)
    ]
    if args.choose and not chosen:
        raise ConfigError("--choose: no head of --baselines has a setting left to choose")
    everything = args.baselines == tuple(BASELINES)
    if not everything or args.choose or args.split not in {CHOICE_SPLIT, ALL}:
        return args.baselines, chosen, []
    notes = [
        f"{name} is left out: its {BASELINES[name].setting} would be chosen on the training "
        f"classes, which are among those measured. Give --set {name}=VALUE."
        for name in chosen
    ]
    return tuple(name for name in args.baselines if name not in chosen), [], notes


class HeadSettings:
    """Values of the simple heads' settings: given, the default, or chosen on the training classes.

    Args:
        chosen: heads whose setting is chosen, from `heads_to_measure`.
        domain: the data set on whose training classes settings are chosen.
    """

    def __init__(self, args: argparse.Namespace, chosen: list[str], subject: Subject, domain: Domain) -> None:
        self._given: dict[str, float] = dict(args.settings)
        self._seed, self._head = args.seed, subject.head
        self._domain, self._embed = domain, subject.embed
        self._embedded: dict[int, ImageSet] = {}  # by the number of images
        self._chosen = chosen
        self._training = self._load_training(args.split) if chosen else None

    def _load_training(self, measured: str) -> ImageSet:
        named = ", ".join(self._chosen)
        advice = f"give --set {self._chosen[0]}=VALUE, or leave it out of --baselines"
        if measured in {CHOICE_SPLIT, ALL}:
            raise ConfigError(
                f"the setting of {named} would be chosen on the {CHOICE_SPLIT} split, which is being measured: {advice}"
            )
        try:
            return self._domain.load(CHOICE_SPLIT)
        except DataError as error:
            raise DataError(
                f"the setting of {named} is chosen on the training classes, which "
                f"cannot be read: {error}. Otherwise {advice}"
            ) from error

    def of(self, name: str, task: Task) -> tuple[float, str]:
        """The value for a task, and the head with this value in words."""
        baseline = BASELINES[name]
        if self._training is None or name not in self._chosen:
            value = self._given.get(name, baseline.value)
            return (0.0 if value is None else value), baseline.describe(value)
        data = thinned(self._training, task)
        if len(data.images) not in self._embedded:
            self._embedded[len(data.images)] = data.embedded(self._embed)
        value, at_the_end = choose(baseline, self._head, self._embedded[len(data.images)], task, self._seed)
        words = f"{baseline.describe(value)}, {CHOSEN}"
        return value, words + (" (end of the grid)" if at_the_end else "")
