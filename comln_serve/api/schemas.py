"""What is answered: the wire types of responses."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from comln_serve import classifier as domain
from comln_serve.bundle.calibration import CalibrationTask
from comln_serve.bundle.head import HorizonRule
from comln_serve.errors import ErrorCode
from comln_serve.report import Report, report_of
from comln_serve.support import SupportSet


class ClassCount(BaseModel):
    label: str
    examples: int


class ClassifierInfo(BaseModel):
    """A stored classifier."""

    id: str
    name: str | None
    version: int | None = Field(description="Of its name; null where it has none.")
    promoted: bool = Field(description="Whether its name stands for it.")
    revision: int = Field(description="One more with every change in place.")
    model: str
    classes: list[ClassCount]
    horizon: float = Field(description="T that was used, in flow time.")
    horizon_rule: domain.HorizonOrigin = Field(
        description="Whether T was given, is the model's learned one, or was chosen from the "
        "support images (auto); the report has the curve."
    )
    support_loss: float = Field(description="Cross-entropy of the support set after adaptation.")
    support_accuracy: float = Field(description="Share of the support set classified right.")
    metadata: dict[str, str]
    created_at: datetime
    expires_at: datetime | None

    @classmethod
    def of(cls, stored: domain.ClassifierInfo, **more: Any) -> Self:
        """What is stored, and the fields that a subclass has beside."""
        classes = [
            ClassCount(label=label, examples=examples)
            for label, examples in zip(stored.labels, stored.examples, strict=True)
        ]
        return cls(
            id=stored.id,
            name=stored.name,
            version=stored.version,
            promoted=stored.promoted,
            revision=stored.revision,
            model=stored.model,
            classes=classes,
            horizon=stored.horizon,
            horizon_rule=stored.horizon_rule,
            support_loss=stored.support_loss,
            support_accuracy=stored.support_accuracy,
            metadata=dict(stored.metadata),
            created_at=stored.created_at,
            expires_at=stored.expires_at,
            **more,
        )


class ClassifierDetail(ClassifierInfo):
    """A stored classifier with its report."""

    report: Report | None = Field(description="Null for classifiers made before there were any.")

    @classmethod
    def of(cls, stored: domain.ClassifierInfo, **more: Any) -> Self:
        return super().of(stored, report=report_of(stored), **more)


class AdaptResponse(ClassifierDetail):
    timings_ms: dict[str, float] = Field(description="Milliseconds by stage, and in total.")


class ClassProbability(BaseModel):
    label: str
    probability: float


class Prediction(BaseModel):
    """The likeliest class of one image, and the `top_k` likeliest, best first."""

    label: str
    probability: float
    top: list[ClassProbability]


class JudgedPrediction(Prediction):
    """A prediction of a request with `unknown`."""

    unknown: bool | None = Field(
        description="Whether the image is unlike every class; null where there is no threshold, as "
        "the classifier's images were too few and its model is not calibrated."
    )
    similarity: float = Field(
        description="How like the class it is most like the image is: its largest logit over the "
        "length of its embedding and the average length of the classes' weights."
    )


class PredictResponse(BaseModel):
    classifier: str = Field(description="Id of the classifier that answered.")
    predictions: list[JudgedPrediction | Prediction] = Field(
        description="One per image, in the request's order."
    )
    calibrated: bool = Field(
        description="Whether the probabilities are at a measured temperature; false where the "
        "model's bundle has none, and where the horizon does not follow the model's own rule."
    )
    unknown_threshold: float | None = Field(
        description="Similarity under which an image is unknown; null unless asked for."
    )
    timings_ms: dict[str, float]


class ClassifierPage(BaseModel):
    classifiers: list[ClassifierInfo] = Field(description="Newest first.")
    next: int | None = Field(description="`before` of the next page; null when this is the last.")


class Example(BaseModel):
    number: int = Field(description="Never given to another image.")
    label: str


class ExampleList(BaseModel):
    classifier: str = Field(description="Id of the classifier.")
    revision: int
    examples: list[Example] = Field(description="In the order in which they were sent.")

    @classmethod
    def of(cls, stored: domain.ClassifierInfo, support: SupportSet) -> "ExampleList":
        examples = [
            Example(number=number, label=label)
            for number, label in zip(support.numbers, support.labels, strict=True)
        ]
        return cls(classifier=stored.id, revision=stored.revision, examples=examples)


class AccuracyInfo(BaseModel):
    split: str
    data: str | None = Field(
        default=None, description="Name of the data set, where the model was measured on several."
    )
    ways: int
    shots: int | tuple[int, int] = Field(
        description="Labelled images of a class; [least, most] where each class's own number was "
        "drawn between the two."
    )
    episodes: int
    mean: float
    interval: float = Field(description="Half the width of the 95% interval of the mean.")


class CalibrationInfo(BaseModel):
    """What the temperature and the threshold of `unknown` were measured to do, by task."""

    split: str
    episodes: int
    tasks: list[CalibrationTask]


class HorizonLaw(BaseModel):
    """T = horizon M^examples N^classes (mean ||phi||^2)^norm, for M images of N classes."""

    examples: float
    classes: float
    norm: float


class ModelInfo(BaseModel):
    name: str
    default: bool
    description: str
    ways: int | None = Field(description="Number of classes it is tied to; null: any.")
    start: Literal["learned", "zero", "prototype"]
    horizon: float
    horizon_rule: HorizonRule = Field(
        description="What T follows unless a request says otherwise: the model's law (learned), or "
        "each task's own support images (auto)."
    )
    whitening: float = Field(
        description="Strength of the metric in which the flow descends; 0: the plain gradient flow."
    )
    horizon_exponents: HorizonLaw | None = Field(
        description="How the horizon follows the images sent; null: it is the same for all."
    )
    image_size: int
    embedding_size: int
    accuracy: list[AccuracyInfo]
    calibration: CalibrationInfo | None = Field(
        description="Null: probabilities are the plain softmax, which may be far too sure."
    )
    provider: Literal["cuda", "cpu"]


class ModelList(BaseModel):
    models: list[ModelInfo]


class Live(BaseModel):
    status: Literal["live"]


class Ready(BaseModel):
    status: Literal["ready"]
    version: str
    provider: dict[str, Literal["cuda", "cpu"]] = Field(description="What each model runs on.")
    classifiers: int | None = Field(
        None, description="How many are stored; not told where keys are required."
    )


class ErrorBody(BaseModel):
    code: ErrorCode
    message: str = Field(description="What was received, what is allowed, what to do.")
    detail: dict[str, Any]
    request_id: str = Field(
        description="As in the header X-Request-ID, and in the server's log. It is the one the "
        "request came with, or a new one."
    )


class ErrorResponse(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorBody
