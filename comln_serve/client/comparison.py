"""Which of two classifiers is better on the same labelled images, and whether that may be chance."""

from dataclasses import dataclass, field
from math import comb

from comln_serve.client.errors import InputError
from comln_serve.client.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two classifiers on the same images, of classes that both have.

    Attributes:
        reference, other: name@version of both, or their ids.
        judged: number of the images.
        accuracy, other_accuracy: share that each gets right.
        gained: images that only the first gets right.
        lost: images that only the other gets right.
        chance: probability that two classifiers that are equally good differ by as much on as many images as these
            two do (the exact sign test, McNemar's). Below 0.05 the difference is rarely chance.
    """

    reference: str
    other: str
    judged: int
    accuracy: float
    other_accuracy: float
    gained: tuple[str, ...] = field(repr=False)
    lost: tuple[str, ...] = field(repr=False)
    chance: float


def compare(one: Evaluation, other: Evaluation) -> Comparison:
    """Compare two evaluations of the same images.

    Raises:
        InputError: they are of one classifier, or no image is of a class that both have.
    """
    if one.classifier == other.classifier:
        raise InputError(f"both are {one.reference}; give two classifiers, or two versions of one")
    before = {item.image: item.right for item in other.images if item.right is not None}
    pairs = [(item.image, item.right, before[item.image]) for item in one.images if item.image in before]
    judged = [(image, right, was) for image, right, was in pairs if right is not None]
    if not judged:
        raise InputError(f"no image is of a class that both {one.reference} and {other.reference} have")
    gained = tuple(image for image, right, was in judged if right and not was)
    lost = tuple(image for image, right, was in judged if was and not right)
    return Comparison(
        reference=one.reference,
        other=other.reference,
        judged=len(judged),
        accuracy=sum(right for _, right, _ in judged) / len(judged),
        other_accuracy=sum(was for _, _, was in judged) / len(judged),
        gained=gained,
        lost=lost,
        chance=_sign_test(len(gained), len(lost)),
    )


def _sign_test(ups: int, downs: int) -> float:
    """Probability that of so many tosses of a coin at least as large a majority falls on one side, on either."""
    tosses = ups + downs
    tail = sum(comb(tosses, count) for count in range(min(ups, downs) + 1))
    return min(1.0, 2 * tail / 2**tosses)
