"""What the client returns. The fields are those of the server's answers; its OpenAPI document describes them.

Results of many parts are shown in a line, as notebooks show whatever a cell ends with; the fields have the rest.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import sqrt
from typing import Any, TypeAlias, overload

_MOST_SHOWN = 5  # classes of predictions that are shown in a line
_Z = 1.959964  # of a normal distribution, 95 % lie within so many standard deviations


def interval_of(accuracy: float, images: int) -> tuple[float, float]:
    """95% interval of an accuracy that was measured on so many images (Wilson's)."""
    margin = _Z**2 / images
    middle = (accuracy + margin / 2) / (1 + margin)
    half = sqrt(accuracy * (1 - accuracy) * margin + margin**2 / 4) / (1 + margin)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """A class, its number of support images, and the number of the one that the server keeps a thumbnail of."""

    label: str
    examples: int
    thumbnail: int | None


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A support image that may carry the wrong label; `number` as in `examples()`."""

    number: int
    label: str
    likelier: str
    score: float


@dataclass(frozen=True, kw_only=True)
class HeldOutAccuracy:
    """Share of the support images that classifiers adapted without them got right."""

    judged: int
    accuracy: float

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the accuracy that so many images can show, as on the page."""
        return interval_of(self.accuracy, self.judged)


@dataclass(frozen=True, kw_only=True)
class HeldOut(HeldOutAccuracy):
    """Support images, classified by classifiers that were adapted without them."""

    folds: int
    confusion: tuple[tuple[int, ...], ...] = field(repr=False)
    suspects: tuple[Suspect, ...]
    predicted: tuple[int | None, ...] | None = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HorizonCandidate:
    """One horizon, and its loss and accuracy on held-out support images."""

    horizon: float
    loss: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class HorizonChoice:
    """How the horizon was chosen from the support images."""

    learned: float
    least_loss: float
    level: tuple[float, ...]
    candidates: tuple[HorizonCandidate, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """How good a classifier is, judged by its own support images (docs/reports.md)."""

    held_out: HeldOut | None
    notes: tuple[str, ...]
    horizon_choice: HorizonChoice | None
    own_horizon: bool
    unknown_threshold: float | None
    nearest_other_class: float | None
    temperature: float | None
    near_duplicates: tuple[tuple[int, ...], ...]
    contradictory: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A stored classifier. As an argument it stands for exactly this one, by its id. The hashes are of what it was
    adapted with, as in `Model`; that of the head is None where it is not known.
    """

    id: str
    name: str | None
    version: int | None
    promoted: bool
    revision: int
    model: str
    classes: tuple[ClassCount, ...]
    horizon: float
    horizon_rule: str
    support_loss: float
    support_accuracy: float
    metadata: Mapping[str, str]
    created_at: datetime
    expires_at: datetime | None
    head_sha256: str | None
    embedder_sha256: str
    held_out: HeldOutAccuracy | None

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes' labels, in the server's order."""
        return tuple(item.label for item in self.classes)

    @property
    def reference(self) -> str:
        """What people call it: name@version, or the id of one without a name."""
        return self.id if self.name is None else f"{self.name}@{self.version}"

    def __repr__(self) -> str:
        known = "" if self.name is None else f"{self.reference} ({'' if self.promoted else 'not '}promoted), "
        images = sum(item.examples for item in self.classes)
        return f"<{type(self).__name__} {known}{self.id}: {len(self.classes)} classes, {images} images, {self.model}>"


Reference: TypeAlias = str | Classifier
"""How a call is given a classifier: id, name, name@version, or what a call returned."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierDetail(Classifier):
    """A stored classifier with its report."""

    report: Report | None


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """An image that was left out."""

    image: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """An image of a request that the server went on without; `index` is its position, from 0."""

    index: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Rejections:
    """What an answer, or the detail of an error, says of images that cannot be used."""

    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Adapted(ClassifierDetail):
    """A classifier that was just made.

    Attributes:
        timings_ms: milliseconds by stage on the server, of the last request.
        images: the images it was given by this call, in the order sent: paths, or "image N". After `adapt` and
            `adapt_folder`, example number n is images[n - 1].
        skipped: images that were left out.
        leftover: ids of partial versions of a call of several requests that could not be deleted afterwards.
    """

    timings_ms: Mapping[str, float]
    images: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    leftover: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClassProbability:
    label: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The likeliest class of one image.

    Attributes:
        top: the `top_k` likeliest classes, best first.
        unknown: whether the image is unlike every class; None if not asked for, or if there is no threshold.
        similarity: to the most similar class; None if `unknown` was not asked for.
        example: number of the example, if the classifier was adapted to this image, and `evaluate` asked for it.
        image: the file's path, or "image N" for data in memory, counted from 1.
    """

    label: str
    probability: float
    top: tuple[ClassProbability, ...] = field(repr=False)
    unknown: bool | None = None
    similarity: float | None = None
    example: int | None = field(default=None, repr=False)
    image: str = ""


@dataclass(frozen=True, kw_only=True)
class PredictAnswer:
    """The answer to one request of `predict`: one prediction for each image, None for those that cannot be used."""

    classifier: str
    revision: int
    predictions: tuple[Prediction | None, ...]
    calibrated: bool
    unknown_threshold: float | None
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Predictions(Sequence[Prediction]):
    """One prediction for each image that was not skipped, in the order given. Itself a sequence of them.

    Attributes:
        classifier: id of the classifier that answered.
        calibrated: whether the probabilities use a measured temperature.
        unknown_threshold: similarity below which an image is unknown; None unless asked for.
        timings_ms: milliseconds by stage on the server, summed over the requests.
    """

    classifier: str
    predictions: tuple[Prediction, ...]
    calibrated: bool
    unknown_threshold: float | None
    timings_ms: Mapping[str, float]
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        counts = Counter(item.label for item in self.predictions).most_common()
        shown = ", ".join(f"{label!r} {count}" for label, count in counts[:_MOST_SHOWN])
        more = f" and {len(counts) - _MOST_SHOWN} other classes" if len(counts) > _MOST_SHOWN else ""
        skipped = f"; {len(self.skipped)} skipped" if self.skipped else ""
        return f"<Predictions by {self.classifier}: {len(self)} images, {shown}{more}{skipped}>"

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Prediction, ...]: ...
    def __getitem__(self, index: int | slice) -> Prediction | tuple[Prediction, ...]:
        return self.predictions[index]


@dataclass(frozen=True, kw_only=True)
class ClassifierPage:
    classifiers: tuple[Classifier, ...]
    next: int | None


@dataclass(frozen=True, kw_only=True)
class Example:
    """A support image that the server knows: its number, never reused, and its label."""

    number: int
    label: str


@dataclass(frozen=True, kw_only=True)
class ExampleList:
    classifier: str
    examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """An accuracy that was measured for a model; `interval` is half the width of its 95% interval."""

    split: str
    ways: int
    shots: int | tuple[int, int]
    episodes: int
    mean: float
    interval: float
    data: str | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Model:
    """A model that is served.

    Attributes:
        head_sha256: hash of what new classifiers are adapted with; one adapted by another head still predicts.
        embedder_sha256: hash of the network and the preprocessing; a classifier of others cannot predict.
    """

    name: str
    default: bool
    description: str
    licence: str
    ways: int | None
    start: str
    horizon: float
    horizon_rule: str
    whitening: float
    horizon_exponents: Mapping[str, Any] | None
    image_size: int
    embedding_size: int
    accuracy: tuple[Accuracy, ...]
    calibration: Mapping[str, Any] | None
    provider: str
    head_sha256: str
    embedder_sha256: str

    def __repr__(self) -> str:
        default = " (default)" if self.default else ""
        return f"<Model {self.name}{default}: {self.ways or 'any'} classes, {self.image_size} pixels, {self.provider}>"


@dataclass(frozen=True, kw_only=True)
class ModelList:
    models: tuple[Model, ...]


@dataclass(frozen=True, kw_only=True)
class ModelsReloaded:
    """Names of models, by what reloading did to them (`replaced`: their bundle has changed), and of the default now."""

    default: str
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may have, and a tenant. The names are those of the server's settings.

    Attributes:
        image_formats: that the server can decode: "JPEG", "HEIC" and so on.
        keep_thumbnails: whether the server keeps a small JPEG of one image of each class.
        requests_per_minute: with the client's API key; None: any number.
    """

    max_images: int
    max_image_bytes: int
    max_image_pixels: int
    image_formats: tuple[str, ...]
    max_body_bytes: int
    max_json_bytes: int
    max_answer_bytes: int
    max_label_length: int
    max_top_k: int
    min_classes: int
    max_examples: int
    max_classifiers: int
    max_receive_seconds: float
    requests_per_minute: int | None
    keep_thumbnails: bool
    max_classes: int


@dataclass(frozen=True, kw_only=True)
class Health:
    """The answer of a health check; `live` has a `status` only. `classifiers` is None if the server requires keys."""

    status: str
    version: str | None = None
    provider: Mapping[str, str] = field(default_factory=dict[str, str])
    classifiers: int | None = None
