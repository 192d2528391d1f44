"""Wire types of the protocol. Unknown parameters are ignored, as the protocol requires."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from comln_serve.api.receive.requests import Base64

# Longest list of dimensions, inputs or outputs that is parsed; valid requests have fewer.
_MOST = 8


def _no_shared_memory(value: Any) -> Any:
    if value is not None:
        raise ValueError("shared memory is not offered; send and receive tensors in the body")
    return value


def _image_files(datatype: str) -> str:
    if datatype != "BYTES":
        raise ValueError("must be BYTES: image files as they are, JPEG or PNG for example, not pixels")
    return datatype


SharedMemory = Annotated[Any, AfterValidator(_no_shared_memory)]


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True)


class InputParameters(_Wire):
    binary_data_size: int | None = Field(
        default=None, ge=0, description="Bytes of this tensor behind the JSON, in place of `data`."
    )
    shared_memory_region: SharedMemory = None


class InputTensor(_Wire):
    name: str
    # Told before `data`, which has numbers where a client sends pixels.
    datatype: Annotated[str, AfterValidator(_image_files)]
    shape: Annotated[list[int], FailFast(), Field(max_length=_MOST)]
    parameters: InputParameters = InputParameters()
    data: Annotated[list[Base64], FailFast()] = []


class OutputParameters(_Wire):
    binary_data: bool | None = None
    classification: int = Field(
        default=0, ge=0, description="List this many of the likeliest classes, as 'probability:index:label'."
    )
    shared_memory_region: SharedMemory = None


class RequestedOutput(_Wire):
    name: str
    parameters: OutputParameters = OutputParameters()


class RequestParameters(_Wire):
    binary_data_output: bool = Field(default=False, description="Default of the outputs' `binary_data`.")


class InferenceRequest(_Wire):
    """The one input is IMAGE, BYTES [n]: n image files; as JSON strings, in base64."""

    id: str | None = Field(None, description="Comes back in the answer.")
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[list[InputTensor], FailFast(), Field(max_length=_MOST)]
    outputs: Annotated[list[RequestedOutput], FailFast(), Field(max_length=_MOST)] = Field(
        default=[], description="Default: all."
    )


class OutputTensor(BaseModel):
    name: str
    datatype: Literal["FP32", "BYTES"]
    shape: list[int]
    parameters: dict[str, int] | None = None
    data: list[float] | list[str] | None = None


class InferenceResponse(BaseModel):
    model_name: str
    model_version: str | None = None
    id: str | None = None
    outputs: list[OutputTensor]


class TensorMetadata(BaseModel):
    name: str
    datatype: Literal["FP32", "BYTES"]
    shape: list[int] = Field(description="-1: any number of images.")


class ModelMetadata(BaseModel):
    name: str
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(BaseModel):
    name: str
    ready: Literal[True]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class ServerLive(BaseModel):
    live: Literal[True]


class ServerReady(BaseModel):
    ready: Literal[True]


class ProtocolError(BaseModel):
    """The body of every answer under /v2 that is not a success."""

    error: str
