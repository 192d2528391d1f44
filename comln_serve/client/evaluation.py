"""How good a classifier is on labelled images that it was not adapted to."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

from comln_serve.client.errors import InputError, listed
from comln_serve.client.images import Source
from comln_serve.client.results import ClassCount, Classifier, Predictions, Skipped, interval_of


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An image, its label and the prediction.

    Attributes:
        label: as given.
        right: whether the prediction is `label`; None if the classifier has no such class.
        unknown, similarity: as in `Prediction`.
        example: number of the example, if the classifier was adapted to this image: how it is classified says nothing
            about new images.
    """

    image: str
    label: str
    predicted: str
    probability: float
    right: bool | None
    unknown: bool | None = None
    similarity: float | None = None
    example: int | None = None


@dataclass(frozen=True, kw_only=True)
class Mistaken:
    """A label that was predicted by mistake, and for how many images of a class."""

    label: str
    images: int


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """A class of the classifier.

    Attributes:
        images: of the class.
        examples: that the classifier was adapted to.
        recall: share of `images` that is predicted right; None without images.
        precision: share right of the images predicted as this class, those of other classes than the classifier's left
            out; None without any.
        taken_for: what the images predicted wrong were taken for, most first.
    """

    label: str
    images: int
    examples: int
    recall: float | None
    precision: float | None
    taken_for: tuple[Mistaken, ...]


@dataclass(frozen=True, kw_only=True)
class UnknownScore:
    """Images that the classifier finds unlike every class.

    Attributes:
        known, known_refused: images of its classes, and how many of them it found unknown, by mistake.
        others, others_refused: images of other classes, and how many of them it found unknown, as it should.
    """

    known: int
    known_refused: int
    others: int
    others_refused: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Predictions for labelled images, compared with the labels.

    Attributes:
        classifier: id of the classifier that answered.
        reference: name@version of it, or its id again.
        revision: of it; a classifier without a name changes in place, and gets another.
        judged: number of images of its classes; the accuracies are of these.
        accuracy: share of them that is predicted right.
        interval: the accuracy's 95% interval (Wilson's).
        balanced_accuracy: mean recall of the classes that have images.
        confidence: mean probability of the predicted class. Near the accuracy where probabilities can be trusted.
        classes: in the order of the classifier.
        unknown: None if not asked for, or if there is no threshold.
        images: in the order given.
        skipped: images that were left out.
    """

    classifier: str
    reference: str
    revision: int
    judged: int
    accuracy: float
    interval: tuple[float, float]
    balanced_accuracy: float
    confidence: float
    classes: tuple[ClassScore, ...]
    unknown: UnknownScore | None
    images: tuple[Judged, ...]
    skipped: tuple[Skipped, ...] = ()

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"<Evaluation of {self.reference}: {self.accuracy:.1%} of {self.judged} images are right, 95% interval "
            f"{low:.1%} to {high:.1%}>"
        )


def labels_by_image(images: Sequence[Source]) -> dict[str, str]:
    """Label of each image, by its name. Raises InputError if an image is there twice, with different labels."""
    labels: dict[str, str] = {}
    for image in images:
        label = image.label or ""
        if labels.setdefault(image.name, label) != label:
            raise InputError(f"{image.name} is given as {labels[image.name]!r} and as {label!r}; give it once")
    return labels


def class_of(labels: Iterable[str], classes: Sequence[str]) -> dict[str, str | None]:
    """The class that each label stands for, as the classifier writes it; None: it has no such class. Names of folders
    may be composed otherwise.
    """
    composed = {normalize("NFC", label): label for label in classes}
    own = frozenset(classes)
    return {label: label if label in own else composed.get(normalize("NFC", label)) for label in dict.fromkeys(labels)}


def as_classes(labels: Mapping[str, str], classes: Sequence[str], *, unknown: bool, remedy: str) -> dict[str, str]:
    """The labels of images, each written as the classifier's class is. Raises InputError for labels of other classes.

    Args:
        unknown: these are allowed; but some images must be of the classifier's classes.
        remedy: what to do about them.
    """
    own = class_of(labels.values(), classes)
    others = [label for label, known in own.items() if known is None]
    if others and not (unknown and len(others) < len(own)):
        have = ", ".join(map(repr, classes[:20])) + (", ..." if len(classes) > 20 else "")
        if unknown:
            have += "; some images must be of these"
        else:
            remedy += ", or ask which images are unknown (unknown=True, or --unknown): some may be of others then"
        raise InputError(f"the classifier has no class {listed([*map(repr, others)], 5)}; it has {have}. {remedy}")
    return {image: own[label] or label for image, label in labels.items()}


def evaluation_of(found: Predictions, labels: Mapping[str, str], classifier: Classifier) -> Evaluation:
    """Compare the predictions of a classifier with the images' labels, by name. Raises InputError if no image of its
    classes could be used.
    """
    classes = frozenset(classifier.labels)
    images = tuple(
        Judged(
            image=one.image,
            label=labels[one.image],
            predicted=one.label,
            probability=one.probability,
            right=one.label == labels[one.image] if labels[one.image] in classes else None,
            unknown=one.unknown,
            similarity=one.similarity,
            example=one.example,
        )
        for one in found
    )
    known = [item for item in images if item.right is not None]
    others = [item for item in images if item.right is None]
    if not known:
        raise InputError("no image of the classifier's classes could be used")
    taken = {label: Counter[str]() for label in classifier.labels}  # by class, what its images were taken for
    for item in known:
        taken[item.label][item.predicted] += 1
    predicted = Counter(item.predicted for item in known)
    scores = tuple(_score(one, taken[one.label], predicted[one.label]) for one in classifier.classes)
    recalls = [score.recall for score in scores if score.recall is not None]
    accuracy = sum(item.right is True for item in known) / len(known)
    unknown = UnknownScore(
        known=len(known),
        known_refused=sum(item.unknown is True for item in known),
        others=len(others),
        others_refused=sum(item.unknown is True for item in others),
    )
    return Evaluation(
        classifier=classifier.id,
        reference=classifier.reference,
        revision=classifier.revision,
        judged=len(known),
        accuracy=accuracy,
        interval=interval_of(accuracy, len(known)),
        balanced_accuracy=sum(recalls) / len(recalls),
        confidence=sum(item.probability for item in known) / len(known),
        classes=scores,
        unknown=None if found.unknown_threshold is None else unknown,
        images=images,
        skipped=found.skipped,
    )


def _score(one: ClassCount, taken: Counter[str], predicted: int) -> ClassScore:
    """The score of a class whose images were taken for `taken`, and as which `predicted` images were predicted."""
    images, right = taken.total(), taken[one.label]
    return ClassScore(
        label=one.label,
        images=images,
        examples=one.examples,
        recall=right / images if images else None,
        precision=right / predicted if predicted else None,
        taken_for=tuple(
            Mistaken(label=other, images=count) for other, count in taken.most_common() if other != one.label
        ),
    )
