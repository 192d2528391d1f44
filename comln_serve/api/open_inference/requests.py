"""Reads inference requests: JSON, which binary tensors may follow."""

import re
from dataclasses import dataclass

from fastapi import Request

from comln_serve.api.open_inference.schemas import InferenceRequest, InputTensor, RequestedOutput
from comln_serve.api.open_inference.tensors import unpack
from comln_serve.api.receive.bodies import in_parsing_thread, parse_json, whole_body
from comln_serve.api.receive.images import from_base64
from comln_serve.api.receive.limits import body_too_large, check_bytes, check_count, json_limit
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode, ServiceError

JSON_LENGTH = "Inference-Header-Content-Length"
IMAGE, PROBS, LABEL = "IMAGE", "PROBS", "LABEL"
OUTPUTS = (PROBS, LABEL)

_DIGITS = re.compile("[0-9]{1,15}")


@dataclass(frozen=True)
class Output:
    """An output that the client requested.

    Attributes:
        name: PROBS or LABEL.
        classes: number of likeliest classes to list instead of PROBS; 0: PROBS itself.
        binary: send it as bytes after the JSON rather than in it.
    """

    name: str
    classes: int
    binary: bool


@dataclass(frozen=True)
class Inference:
    """A request: encoded images, the requested outputs, and the client's request id."""

    images: list[bytes]
    outputs: list[Output]
    id: str | None


async def read_inference(request: Request, settings: Settings) -> Inference:
    """Read the body of an `infer` request. Ignores its Content-Type: clients send none.

    Raises:
        ServiceError: anything wrong with the body.
    """
    json_length = _json_length(request)
    most = settings.max_body_bytes
    body = await whole_body(request, most if json_length is not None else json_limit(settings))
    return await in_parsing_thread(request, lambda: _inference(body, json_length, settings))


def _json_length(request: Request) -> int | None:
    """Bytes of the JSON before the binary tensors; None: the whole body is JSON."""
    text = request.headers.get(JSON_LENGTH)
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"{JSON_LENGTH} is {text[:100]!r}; it must be a number, the bytes of the JSON."
        )
    return int(text)


def _inference(body: bytearray, json_length: int | None, settings: Settings) -> Inference:
    if json_length is None:
        json_length = len(body)
    if json_length > len(body):
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"{JSON_LENGTH} is {json_length}, and the body has {len(body)} bytes."
        )
    if json_length > settings.max_json_bytes:
        raise body_too_large(json_length, settings.max_json_bytes)
    message = parse_json(InferenceRequest, body[:json_length], settings)
    requested = message.outputs or [RequestedOutput(name=name) for name in OUTPUTS]
    outputs = [_output(item, message.parameters.binary_data_output) for item in requested]
    images = _images(_image_tensor(message), memoryview(body)[json_length:], settings)
    return Inference(images, outputs, message.id)


def _image_tensor(message: InferenceRequest) -> InputTensor:
    names = [tensor.name for tensor in message.inputs]
    if names != [IMAGE]:
        shown = ", ".join(repr(name[:100]) for name in names) or "none"
        raise ServiceError(ErrorCode.INVALID_REQUEST, f"Received the inputs: {shown}. Send one, {IMAGE!r}.")
    (tensor,) = message.inputs
    if len(tensor.shape) != 1 or tensor.shape[0] < 0:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"{IMAGE} has the shape {tensor.shape}; send [n] for n image files."
        )
    return tensor


def _images(tensor: InputTensor, behind: memoryview, settings: Settings) -> list[bytes]:
    (count,) = tensor.shape
    if count == 0:
        raise ServiceError(ErrorCode.INVALID_REQUEST, f"{IMAGE} is empty, BYTES [0]. Send at least one image.")
    check_count(count, settings)
    size = tensor.parameters.binary_data_size
    if (size or 0) != len(behind):
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"{len(behind)} bytes follow the JSON; by the tensor's binary_data_size it should be "
            f"{size or 0}. Check {JSON_LENGTH}.",
        )
    if size is not None and not tensor.data:
        images: list[bytes] = []
        for position, element in enumerate(unpack(behind, count)):
            check_bytes(f"{IMAGE}.{position}", len(element), settings)
            images.append(bytes(element))
        return images
    if size is not None or len(tensor.data) != count:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"{IMAGE} has the shape [{count}] and {len(tensor.data)} elements in 'data'. Send all in 'data', in "
            "base64, or none there and all as bytes behind the JSON, with 'binary_data_size'.",
        )
    return [from_base64(f"{IMAGE}.{position}", text, settings) for position, text in enumerate(tensor.data)]


def _output(requested: RequestedOutput, otherwise: bool) -> Output:
    name, parameters = requested.name, requested.parameters
    if name not in OUTPUTS:
        raise ServiceError(ErrorCode.INVALID_REQUEST, f"There is no output {name[:100]!r}; ask for PROBS or LABEL.")
    if name == LABEL and parameters.classification:
        raise ServiceError(ErrorCode.INVALID_REQUEST, "Only PROBS can be asked for classes.")
    binary = otherwise if parameters.binary_data is None else parameters.binary_data
    return Output(name, parameters.classification, binary)
