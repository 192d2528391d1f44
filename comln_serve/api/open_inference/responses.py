"""Writes inference responses: JSON, which binary tensors may follow."""

import numpy as np
from starlette.responses import JSONResponse, Response

from comln_serve.api.open_inference.requests import JSON_LENGTH, PROBS, Inference, Output
from comln_serve.api.open_inference.schemas import InferenceResponse, OutputTensor
from comln_serve.api.receive.limits import bytes_of_longest, check_answer
from comln_serve.engine.engine import Predicted

_NUMBER_BYTES = 24  # of a probability in JSON, and of the rest of an entry beside its label


def inference_response(inference: Inference, predicted: Predicted, model: str, version: str | None) -> Response:
    """The requested outputs, in the request's order.

    Raises:
        ServiceError: TOO_MANY_IMAGES, the outputs would take too many bytes.
    """
    images = len(predicted.probabilities)
    check_answer(images, images * sum(_row_bytes(out, predicted) for out in inference.outputs))
    tensors, behind = [], []
    for output in inference.outputs:
        tensor, binary = _tensor(output, predicted)
        tensors.append(tensor)
        behind.append(binary)
    message = InferenceResponse(model_name=model, model_version=version, id=inference.id, outputs=tensors)
    text = message.model_dump_json(exclude_none=True).encode()
    if not any(output.binary for output in inference.outputs):
        return Response(text, media_type=JSONResponse.media_type)
    return Response(
        b"".join((text, *behind)), media_type="application/octet-stream", headers={JSON_LENGTH: str(len(text))}
    )


def _row_bytes(output: Output, predicted: Predicted) -> int:
    """Upper bound of an output's bytes per image."""
    labels = predicted.classifier.labels
    if output.name == PROBS and not output.classes:
        return len(labels) * (4 if output.binary else _NUMBER_BYTES)
    count = min(output.classes or 1, len(labels))
    return count * _NUMBER_BYTES + bytes_of_longest(labels, count)


def _tensor(output: Output, predicted: Predicted) -> tuple[OutputTensor, bytes]:
    """An output's JSON, and its bytes to send after the JSON."""
    if output.name == PROBS and not output.classes:
        probabilities = predicted.probabilities
        shape = list(probabilities.shape)
        if not output.binary:
            numbers = probabilities.ravel().tolist()
            return OutputTensor(name=PROBS, datatype="FP32", shape=shape, data=numbers), b""
        content = probabilities.astype("<f4").tobytes()
        size = {"binary_data_size": len(content)}
        return OutputTensor(name=PROBS, datatype="FP32", shape=shape, parameters=size), content
    texts, shape = _texts(output, predicted)
    if not output.binary:
        return OutputTensor(name=output.name, datatype="BYTES", shape=shape, data=texts), b""
    encoded = [text.encode() for text in texts]
    content = b"".join(part for item in encoded for part in (len(item).to_bytes(4, "little"), item))
    size = {"binary_data_size": len(content)}
    return OutputTensor(name=output.name, datatype="BYTES", shape=shape, parameters=size), content


def _texts(output: Output, predicted: Predicted) -> tuple[list[str], list[int]]:
    """Each image's likeliest label, or its `classes` likeliest as "probability:index:label"."""
    labels, probabilities = predicted.classifier.labels, predicted.probabilities
    count = min(output.classes or 1, len(labels))
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]
    if not output.classes:
        return [labels[row[0]] for row in best], [len(best)]
    rows = zip(probabilities, best, strict=True)
    texts = [f"{row[i]:.9g}:{i}:{labels[i]}" for row, top in rows for i in top]
    return texts, [len(best), count]
