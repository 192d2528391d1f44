"""Which of two classifiers is better on the same labelled images, and whether that may be chance."""

from dataclasses import dataclass, field
from unicodedata import normalize

from comln_serve.client.errors import InputError
from comln_serve.client.evaluation import Evaluation, Judged


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two classifiers on the same images, of classes that both have, which neither was adapted to.

    Attributes:
        reference, other: name@version of both, or their ids.
        judged: number of the images.
        examples: number of images of classes that both have that are left out because one of the two was adapted to
            them, as a later version often was to images that are new to an earlier one.
        accuracy, other_accuracy: share of the images that each gets right.
        gained: images that only the first gets right.
        lost: images that only the other gets right.
        chance: probability that two classifiers that are equally good differ by as much on as many images as these
            two do (the exact sign test, McNemar's). Below 0.05 the difference is rarely chance.
    """

    reference: str
    other: str
    judged: int
    examples: int
    accuracy: float
    other_accuracy: float
    gained: tuple[str, ...] = field(repr=False)
    lost: tuple[str, ...] = field(repr=False)
    chance: float


def compare(one: Evaluation, other: Evaluation) -> Comparison:
    """Compare two evaluations of the same images.

    Raises:
        InputError: they are of one classifier that has not changed between them; an image has another label in the
            other; or no image is of a class that both have, or one of the two was adapted to all of these.
    """
    if (one.classifier, one.revision) == (other.classifier, other.revision):
        raise InputError(f"both are {one.reference}; give two classifiers, or two versions of one")
    pairs = _pairs(one, other)
    if not pairs:
        raise InputError(f"no image is of a class that both {one.reference} and {other.reference} have")
    judged = [(now, was) for now, was in pairs if now.example is None and was.example is None]
    if not judged:
        raise InputError(
            f"{one.reference} or {other.reference} was adapted to each of the {len(pairs)} images of classes that both "
            "have; compare them on other images"
        )
    gained = tuple(now.image for now, was in judged if now.right and not was.right)
    lost = tuple(now.image for now, was in judged if was.right and not now.right)
    return Comparison(
        reference=one.reference,
        other=other.reference,
        judged=len(judged),
        examples=len(pairs) - len(judged),
        accuracy=sum(now.right is True for now, _ in judged) / len(judged),
        other_accuracy=sum(was.right is True for _, was in judged) / len(judged),
        gained=gained,
        lost=lost,
        chance=_sign_test(len(gained), len(lost)),
    )


def _pairs(one: Evaluation, other: Evaluation) -> list[tuple[Judged, Judged]]:
    """The images of both evaluations that are of a class that both classifiers have. Raises InputError if an image has
    two labels.
    """
    before = {item.image: item for item in other.images}
    pairs = [(now, before[now.image]) for now in one.images if now.image in before]
    for now, was in pairs:
        # Labels of one folder are written as each of the classifiers writes its classes.
        if normalize("NFC", now.label) != normalize("NFC", was.label):
            raise InputError(
                f"{now.image} was evaluated as {now.label!r} and as {was.label!r}; evaluate both classifiers on the "
                "same images with the same labels"
            )
    return [(now, was) for now, was in pairs if now.right is not None and was.right is not None]


def _sign_test(ups: int, downs: int) -> float:
    """Probability that `ups` + `downs` tosses of a coin are divided at least as unevenly, in favour of either side."""
    tosses = ups + downs
    ways = tail = 1  # exact integers: in how many ways `count` tosses fall on one side, and at most so many
    for count in range(1, min(ups, downs) + 1):
        ways = ways * (tosses - count + 1) // count
        tail += ways
    return min(1.0, 2 * tail / 2**tosses)
