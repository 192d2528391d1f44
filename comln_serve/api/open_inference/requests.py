"""Reads inference requests: JSON, which binary tensors may follow."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fastapi import Request

from comln_serve.api.open_inference.schemas import InferenceRequest, InputTensor, RequestedOutput
from comln_serve.api.receive.bodies import in_parsing_thread, parse_json, whole_body
from comln_serve.api.receive.images import from_base64
from comln_serve.api.receive.limits import body_too_large, check_bytes, check_count, json_limit
from comln_serve.configuration.settings import Settings
from comln_serve.errors import invalid

JSON_LENGTH = "Inference-Header-Content-Length"
IMAGE, PROBS, LABEL = "IMAGE", "PROBS", "LABEL"
OUTPUTS = (PROBS, LABEL)


class Output(NamedTuple):
    """An output that the client requested.

    Attributes:
        name: PROBS or LABEL.
        classes: number of likeliest classes to list instead of PROBS; 0: PROBS itself.
        binary: send it as bytes after the JSON rather than in it.
    """

    name: str
    classes: int
    binary: bool


class Inference(NamedTuple):
    """A request: encoded images, the requested outputs, and the client's request id."""

    images: list[bytes]
    outputs: list[Output]
    id: str | None


async def read_inference(request: Request, settings: Settings) -> Inference:
    """Read the body of an `infer` request. Ignores its Content-Type: clients send none.

    Raises:
        ServiceError: anything wrong with the body.
    """
    stated = request.headers.get(JSON_LENGTH)  # without it the whole body is JSON
    if stated is not None and not re.fullmatch("[0-9]{1,15}", stated):
        raise invalid(f"{JSON_LENGTH} is {stated[:100]!r}; it must be a number, the bytes of the JSON.")
    body = await whole_body(request, json_limit(settings) if stated is None else settings.max_body_bytes)
    json_length = len(body) if stated is None else int(stated)
    return await in_parsing_thread(request, lambda: _inference(body, json_length, settings))


def _inference(body: bytearray, json_length: int, settings: Settings) -> Inference:
    if json_length > len(body):
        raise invalid(f"{JSON_LENGTH} is {json_length}, and the body has {len(body)} bytes.")
    if json_length > settings.max_json_bytes:
        raise body_too_large(json_length, settings.max_json_bytes)
    message = parse_json(InferenceRequest, body[:json_length], settings)
    requested = message.outputs or [RequestedOutput(name=name) for name in OUTPUTS]
    outputs = [_output(item, message.parameters.binary_data_output) for item in requested]
    return Inference(_images(message.inputs, memoryview(body)[json_length:], settings), outputs, message.id)


def _images(inputs: Sequence[InputTensor], behind: memoryview, settings: Settings) -> list[bytes]:
    """The image files, which are in the JSON or behind it."""
    names = [tensor.name for tensor in inputs]
    if names != [IMAGE]:
        shown = ", ".join(repr(name[:100]) for name in names) or "none"
        raise invalid(f"Received the inputs: {shown}. Send one, {IMAGE!r}.")
    (tensor,) = inputs
    if len(tensor.shape) != 1 or tensor.shape[0] < 0:
        raise invalid(f"{IMAGE} has the shape {tensor.shape}; send [n] for n image files.")
    (count,) = tensor.shape
    if count == 0:
        raise invalid(f"{IMAGE} is empty, BYTES [0]. Send at least one image.")
    check_count(count, settings)
    size = tensor.parameters.binary_data_size
    if (size or 0) != len(behind):
        raise invalid(
            f"{len(behind)} bytes follow the JSON; by the tensor's binary_data_size it should be "
            f"{size or 0}. Check {JSON_LENGTH}."
        )
    if size is not None and not tensor.data:
        return _unpack(behind, count, settings)
    if size is not None or len(tensor.data) != count:
        raise invalid(
            f"{IMAGE} has the shape [{count}] and {len(tensor.data)} elements in 'data'. Send all in 'data', in "
            "base64, or none there and all as bytes behind the JSON, with 'binary_data_size'."
        )
    return [from_base64(f"{IMAGE}.{position}", text, settings) for position, text in enumerate(tensor.data)]


def _unpack(data: memoryview, count: int, settings: Settings) -> list[bytes]:
    """The elements of a binary tensor, each preceded by its length in 4 bytes, little-endian."""
    elements: list[bytes] = []
    end, problem = 0, None
    for number in range(count):
        start = end + 4
        end = start + int.from_bytes(data[end:start], "little")
        if start > len(data) or end > len(data):
            problem = f"element {number + 1} of {count} ends after the tensor's last byte"
            break
        check_bytes(f"{IMAGE}.{number}", end - start, settings)
        elements.append(bytes(data[start:end]))
    if problem is None and end < len(data):
        problem = f"{len(data) - end} bytes follow the last of {count} elements"
    if problem is not None:
        raise invalid(
            f"The binary tensor cannot be read: {problem}. Each element is its length in 4 bytes, "
            "little-endian, and its bytes; 'shape' says how many there are."
        )
    return elements


def _output(requested: RequestedOutput, otherwise: bool) -> Output:
    name, parameters = requested.name, requested.parameters
    if name not in OUTPUTS:
        raise invalid(f"There is no output {name[:100]!r}; ask for PROBS or LABEL.")
    if name == LABEL and parameters.classification:
        raise invalid("Only PROBS can be asked for classes.")
    binary = otherwise if parameters.binary_data is None else parameters.binary_data
    return Output(name, parameters.classification, binary)
