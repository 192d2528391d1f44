"""`POST /adapt` and `POST /predict`."""

from collections.abc import Awaitable, Sequence
from heapq import nlargest

import numpy as np
from fastapi import APIRouter, Request, Response

from comln_serve.api import schemas
from comln_serve.api.authentication import adapts, uses
from comln_serve.api.document.openapi import openapi_body
from comln_serve.api.errors import error_responses
from comln_serve.api.receive import requests
from comln_serve.api.receive.bodies import read_images
from comln_serve.api.receive.limits import bytes_of_longest, check_answer
from comln_serve.api.routes.shared import BODY_ERRORS, KeyHeader
from comln_serve.api.work import as_json, begin, classify, make
from comln_serve.engine.cancellation import Caller
from comln_serve.engine.engine import NewClassifier, Predicted
from comln_serve.errors import ErrorCode

router = APIRouter()

# Upper bounds of the JSON bytes of a listed class and of an image, without labels.
_ENTRY_BYTES, _IMAGE_BYTES = 64, 256


@router.post(
    "/adapt",
    status_code=201,
    response_model=schemas.AdaptResponse,
    tags=["adaptation"],
    summary="Make a classifier from a few labelled images",
    responses=error_responses(
        *BODY_ERRORS,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.CLASSIFIER_NOT_FOUND,
        ErrorCode.CANNOT_ADAPT,
        ErrorCode.TOO_MANY_CLASSIFIERS,
        ErrorCode.IDEMPOTENCY_MISMATCH,
    ),
    openapi_extra=openapi_body(requests.AdaptRequest, ["images", "labels"]),
)
@adapts
async def adapt(request: Request, key: KeyHeader = None) -> Response:
    """Send images with one label each, of two classes or more, as multipart form or JSON."""
    engine = begin(request, "adapt")
    sent, options = await read_images(request, requests.AdaptForm, requests.AdaptRequest)
    new = NewClassifier(
        model=options.model,
        name=options.name,
        horizon=options.horizon,
        promote=options.promote,
        metadata=options.metadata or {},
        expires_in_seconds=options.expires_in_seconds,
    )
    return await make(
        request, lambda caller: engine.adapt(sent.support, new, caller, partial=sent.partial), sent=sent, key=key
    )


@router.post(
    "/predict",
    tags=["prediction"],
    summary="Classify images",
    response_model=schemas.PredictResponse,
    responses=error_responses(*BODY_ERRORS, ErrorCode.CLASSIFIER_NOT_FOUND, ErrorCode.MODEL_CHANGED),
    openapi_extra=openapi_body(requests.PredictRequest, ["images"]),
)
@uses
async def predict(request: Request) -> Response:
    """Send images and a classifier's id, name or name@version, as multipart form or JSON."""
    engine = begin(request, "predict")
    sent, options = await read_images(request, requests.PredictOptions, requests.PredictRequest)

    def predicting(caller: Caller) -> Awaitable[Predicted]:
        return engine.predict(
            sent.images,
            options.classifier,
            caller,
            unknown=options.unknown,
            examples=options.examples,
            all_views=options.all_views,
            partial=options.partial,
        )

    def write(predicted: Predicted) -> Response:
        rejected = sent.described(predicted.rejected)
        return as_json(
            schemas.PredictResponse(
                classifier=predicted.classifier.id,
                revision=predicted.classifier.revision,
                predictions=_predictions(predicted, rejected or (), options.top_k),
                rejected=rejected,
                calibrated=predicted.calibrated,
                unknown_threshold=predicted.unknown_threshold,
                timings_ms=predicted.timings_ms,
            ),
            exclude_unset=True,
        )

    with sent.naming_errors():
        return await classify(request, len(sent.images), predicting, write)


def _predictions(
    predicted: Predicted, rejected: Sequence[schemas.RejectedImage], top_k: int
) -> list[schemas.Prediction | None]:
    labels, images = predicted.classifier.labels, len(predicted.probabilities)
    listed = min(top_k, len(labels))
    of_image = _IMAGE_BYTES + _ENTRY_BYTES * listed
    of_image += bytes_of_longest(labels, listed) + bytes_of_longest(labels, 1)
    check_answer(images, images * of_image + sum(len(one.model_dump_json()) for one in rejected))
    predictions: list[schemas.Prediction | None] = []
    for image, row in enumerate(map(np.ndarray.tolist, predicted.probabilities)):
        # Not by NumPy, whose sort lets go of the GIL whatever its size, and the event loop waits to get it back.
        best_first = nlargest(listed, range(len(labels)), key=row.__getitem__)
        top = [schemas.ClassProbability(label=labels[i], probability=row[i]) for i in best_first]
        best, chance = top[0].label, top[0].probability
        example = None if predicted.examples is None else predicted.examples[image]
        prediction = schemas.Prediction(label=best, probability=chance, top=top, example=example)
        if predicted.similarity is not None:
            alike, threshold = float(predicted.similarity[image]), predicted.unknown_threshold
            prediction.similarity = alike
            prediction.unknown = None if threshold is None else alike < threshold
        predictions.append(prediction)
    for one in rejected:  # in order, so that each is put where it was
        predictions.insert(one.index, None)
    return predictions
