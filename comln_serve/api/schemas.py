"""Wire types: what requests and responses look like. No logic beyond their own validation."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, model_validator

from comln_serve import classifier
from comln_serve.bundle.calibration import CalibrationTask
from comln_serve.bundle.head import MAX_HORIZON
from comln_serve.classifier import ID_PREFIX
from comln_serve.errors import ErrorCode
from comln_serve.report import Report, report_of

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_MAX_FIELDS = 32


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode (it holds a lone surrogate)") from None
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty or blank")
    return text


def _not_an_id(name: str) -> str:
    if name.startswith(ID_PREFIX):
        raise ValueError(f"must not start with {ID_PREFIX!r}, as ids do")
    return name


Text = Annotated[str, AfterValidator(_encodable)]
Label = Annotated[Text, AfterValidator(_not_blank)]
Base64 = Annotated[
    str,
    Field(description="An image file, base64.", json_schema_extra={"contentEncoding": "base64"}),
]
ClassifierName = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        description="1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit and "
        f"not with '{ID_PREFIX}'. A later classifier of the same name takes the name over.",
    ),
    AfterValidator(_not_an_id),
]
Horizon = Annotated[
    float,
    Field(
        gt=0,
        le=MAX_HORIZON,
        allow_inf_nan=False,
        description="Amount of adaptation T, in flow time; default: the model's own.",
    ),
]
TopK = Annotated[int, Field(ge=1, description="How many of the likeliest classes to list.")]


class _Request(BaseModel):
    """What is received. A body of a million mistakes must not become a million reports: lists are
    `FailFast`, and an object with far more fields than any request has is refused as a whole.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MAX_FIELDS:
            raise ValueError(
                f"holds {len(value)} fields; the fields are {', '.join(cls.model_fields)}"
            )
        return value


class SupportImage(_Request):
    image: Base64
    label: Label


class AdaptOptions(_Request):
    """What an adapt request may say beside its images, in either encoding."""

    model: Text | None = Field(None, description="A model of GET /models.")
    name: ClassifierName | None = None
    horizon: Horizon | None = None


class AdaptRequest(AdaptOptions):
    support: Annotated[list[SupportImage], FailFast()]


class PredictOptions(_Request):
    """What a predict request says beside its images, in either encoding."""

    classifier: Text = Field(description="Id or name of a classifier.")
    top_k: TopK = 5
    unknown: bool = Field(False, description="Say of each image whether it is unlike every class.")


class PredictRequest(PredictOptions):
    images: Annotated[list[Base64], FailFast()]


class ClassCount(BaseModel):
    label: str
    examples: int


class ClassifierInfo(BaseModel):
    """A stored classifier."""

    id: str
    name: str | None
    model: str
    classes: list[ClassCount]
    horizon: float
    support_loss: float = Field(description="Cross-entropy of the support set after adaptation.")
    support_accuracy: float = Field(description="Share of the support set classified right.")
    created_at: datetime

    @classmethod
    def of(cls, stored: classifier.ClassifierInfo) -> "ClassifierInfo":
        classes = [
            ClassCount(label=label, examples=examples)
            for label, examples in zip(stored.labels, stored.examples, strict=True)
        ]
        return cls(
            id=stored.id,
            name=stored.name,
            model=stored.model,
            classes=classes,
            horizon=stored.horizon,
            support_loss=stored.support_loss,
            support_accuracy=stored.support_accuracy,
            created_at=stored.created_at,
        )


class ClassifierDetail(ClassifierInfo):
    """A stored classifier with its report."""

    report: Report | None = Field(description="Null for classifiers made before there were any.")

    @classmethod
    def of(cls, stored: classifier.ClassifierInfo) -> "ClassifierDetail":
        info = ClassifierInfo.of(stored)
        return cls(**info.model_dump(), report=report_of(stored))


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
        description="Cosine between the image's embedding and the class it is most like."
    )


class PredictResponse(BaseModel):
    classifier: str = Field(description="Id of the classifier that answered.")
    predictions: list[JudgedPrediction | Prediction] = Field(
        description="One per image, in the request's order."
    )
    calibrated: bool = Field(
        description="Whether the probabilities are at a measured temperature; false where the "
        "model's bundle has none, and where the classifier was made with a horizon of its own."
    )
    unknown_threshold: float | None = Field(
        description="Similarity under which an image is unknown; null unless asked for."
    )
    timings_ms: dict[str, float]


class ClassifierPage(BaseModel):
    classifiers: list[ClassifierInfo] = Field(description="Newest first.")
    next: int | None = Field(description="`before` of the next page; null when this is the last.")


class AccuracyInfo(BaseModel):
    split: str
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
    classifiers: int


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
