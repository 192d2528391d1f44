"""Wire types of responses."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from comln_serve.bundle.calibration import CalibrationTask
from comln_serve.bundle.head import HorizonLaw, HorizonRule, Start
from comln_serve.domain.classifier import ClassInfo, HeldOutInfo, HorizonOrigin
from comln_serve.domain.report import Report
from comln_serve.errors import ErrorCode
from comln_serve.machine import RunsOn


def _left_out(description: str) -> Any:
    """A field that is left out if it has no value. It is never null: its type has `SkipJsonSchema[None]`."""
    return Field(None, description=description, exclude_if=lambda value: value is None)


class ClassifierInfo(BaseModel):
    """A stored classifier."""

    model_config = ConfigDict(from_attributes=True)  # made from a `ClassifierRecord`

    id: str
    name: str | None
    version: int | None = Field(description="Version of its name; null if it has no name.")
    promoted: bool = Field(description="Whether its name stands for it.")
    revision: int = Field(description="Starts at 1; each change in place adds 1.")
    model: str
    classes: list[ClassInfo]
    horizon: float = Field(description="The T used, in flow time.")
    horizon_rule: HorizonOrigin = Field(
        description="Whether T was given, is the model's learned one, or was chosen from the "
        "support images (auto); the report has the curve."
    )
    head_sha256: str | None = Field(
        description="Of the head it was adapted by, as `head_sha256` of its model, unless that was replaced since; "
        "null for classifiers made before there were hashes of heads."
    )
    embedder_sha256: str = Field(
        description="Of the network and preprocessing that embedded its images. It predicts only while this is "
        "`embedder_sha256` of its model."
    )
    support_loss: float = Field(description="Cross-entropy of the support set after adaptation.")
    support_accuracy: float = Field(description="Share of the support set classified correctly.")
    held_out: HeldOutInfo | None = Field(
        description="The accuracy to expect on new images, as in the report; null if nothing was held out."
    )
    metadata: dict[str, str]
    created_at: datetime
    expires_at: datetime | None


class ClassifierDetail(ClassifierInfo):
    """A stored classifier with its report."""

    report: Report | None = Field(description="Null for classifiers made before reports existed.")


class RejectedImage(BaseModel):
    """An image that a request with `partial` went on without."""

    index: int = Field(description="Position in the request, from 0.")
    file: str | None = Field(description="File name in the form; null if it has none, as in JSON.")
    label: str | SkipJsonSchema[None] = _left_out("Of a support image.")
    code: ErrorCode
    message: str
    detail: dict[str, Any]


class AdaptResponse(ClassifierDetail):
    timings_ms: dict[str, float] = Field(description="Milliseconds by stage, and in total.")
    rejected: list[RejectedImage] | SkipJsonSchema[None] = _left_out(
        "Images left out; only in the answer to a request with `partial`."
    )


class ClassProbability(BaseModel):
    label: str
    probability: float


class Prediction(BaseModel):
    """The likeliest class of one image, and the `top_k` likeliest, best first.

    Written without the fields that are not set: `unknown` may be null, and is left out of an answer to a request that
    did not ask for it. One type, as generators make little of a union of two.
    """

    label: str
    probability: float
    top: list[ClassProbability]
    example: int | SkipJsonSchema[None] = _left_out(
        "Number of the example that this image is; only if it is one, and if `examples` asked for it."
    )
    unknown: bool | None = Field(
        default=None,
        description="Only if `unknown` asked for it. Whether the image is unlike every class; null if there is no "
        "threshold, because too few of the classifier's images could be left out, and no calibration of its model "
        "applies to it.",
    )
    similarity: float | SkipJsonSchema[None] = _left_out(
        "Only if `unknown` asked for it. Similarity to the most similar class: the image's largest logit, "
        "divided by the length of its embedding and the mean length of the classes' weights."
    )


class PredictResponse(BaseModel):
    classifier: str = Field(description="Id of the classifier that answered.")
    revision: int = Field(description="Of that classifier, which may be changed in place.")
    predictions: list[Prediction | None] = Field(
        description="One per image, in the request's order; null for those in `rejected`."
    )
    rejected: list[RejectedImage] | SkipJsonSchema[None] = _left_out(
        "Images that cannot be used; only in the answer to a request with `partial`."
    )
    calibrated: bool = Field(
        description="Whether the probabilities use a measured temperature: that of the model's calibration, if it has "
        "one and it applies, else that of the classifier's report, which takes ten images that could be left out."
    )
    unknown_threshold: float | None = Field(
        description="Similarity below which an image is unknown; null unless requested."
    )
    timings_ms: dict[str, float]


class ClassifierPage(BaseModel):
    classifiers: list[ClassifierInfo] = Field(description="Newest first.")
    next: int | None = Field(description="`before` of the next page; null when this is the last.")


class Example(BaseModel):
    number: int = Field(description="Never reused for another image.")
    label: str


class ExampleList(BaseModel):
    classifier: str = Field(description="Id of the classifier.")
    revision: int
    examples: list[Example] = Field(description="In the order sent.")


class AccuracyInfo(BaseModel):
    model_config = ConfigDict(from_attributes=True)  # made from an `AccuracyEntry`

    split: str
    data: str | None = Field(default=None, description="Name of the data set, if the model was measured on several.")
    ways: int
    shots: int | tuple[int, int] = Field(
        description="Labelled images per class; [least, most] if each class's number was drawn between the two."
    )
    episodes: int
    mean: float
    interval: float = Field(description="Half the width of the 95% interval of the mean.")


class CalibrationInfo(BaseModel):
    """Measured effect of the temperature and the threshold of `unknown`, by task."""

    model_config = ConfigDict(from_attributes=True)  # made from a `Calibration`

    split: str
    episodes: int
    tasks: list[CalibrationTask]


class ModelInfo(BaseModel):
    name: str
    default: bool
    description: str
    licence: str = Field(description="Of the bundle; what it permits is for whoever uses it to check.")
    ways: int | None = Field(description="Number of classes the model requires; null: any.")
    start: Start
    horizon: float
    horizon_rule: HorizonRule = Field(
        description="The default rule for T: the model's law (learned), or chosen from each task's "
        "support images (auto)."
    )
    whitening: float = Field(
        description="Strength of the metric in which the flow descends; 0: the plain gradient flow."
    )
    horizon_exponents: HorizonLaw | None = Field(
        description="How the horizon depends on the images sent; null: it is constant."
    )
    head_sha256: str = Field(description="Of the head that classifiers are adapted by now.")
    embedder_sha256: str = Field(description="Of the network and preprocessing that embed images now.")
    image_size: int
    embedding_size: int
    accuracy: list[AccuracyInfo]
    calibration: CalibrationInfo | None = Field(
        description="Null: probabilities are the plain softmax, which may be overconfident."
    )
    provider: RunsOn


class ModelList(BaseModel):
    models: list[ModelInfo]


class Limits(BaseModel):
    """What one request, and one tenant, may have. The names are those of the server's settings."""

    max_images: int = Field(description="Images in one request.")
    max_image_bytes: int = Field(description="Bytes of one image file.")
    max_image_pixels: int = Field(description="Width x height of one image.")
    image_formats: list[str] = Field(description="Formats of image files that are accepted and can be decoded.")
    max_body_bytes: int = Field(description="Bytes of one request body.")
    max_json_bytes: int = Field(description="Bytes of one JSON body.")
    max_answer_bytes: int = Field(description="Bytes of one answer to a predict request.")
    max_label_length: int = Field(description="Characters of one label.")
    max_top_k: int = Field(description="Classes listed for an image.")
    min_classes: int = Field(description="Classes of a classifier; a model may require a number of them (`ways`).")
    max_classes: int = Field(description="Classes of one classifier.")
    max_examples: int = Field(description="Support images of one classifier, later additions included.")
    max_classifiers: int = Field(description="Classifiers of a tenant; each version of a name counts.")
    keep_thumbnails: bool = Field(
        description="Whether the server keeps a small JPEG of one image of each class. It keeps no images otherwise."
    )
    max_receive_seconds: float = Field(description="Time the body of a request may take to arrive.")
    requests_per_minute: int | None = Field(
        description="Requests a minute with the caller's API key, on each server; null: any number."
    )


class Live(BaseModel):
    status: Literal["live"]


class Ready(BaseModel):
    status: Literal["ready"]
    version: str
    provider: dict[str, RunsOn] = Field(description="What each model runs on.")
    classifiers: int | None = Field(
        None, description="Number of classifiers stored; left out if the server requires keys."
    )


class ErrorBody(BaseModel):
    code: ErrorCode
    message: str = Field(description="What was received, what is allowed, what to do.")
    detail: dict[str, Any]
    request_id: str = Field(
        description="As in the header X-Request-ID and the server's log. Taken from the request if "
        "it has one, else new."
    )


class ErrorResponse(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorBody
