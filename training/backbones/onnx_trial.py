"""Opens an ONNX graph, and runs it on an image of noise, for what its declarations leave open."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, helper

from comln_serve.engine.embedding.onnx_session import open_session
from comln_serve.errors import StartupError
from training.errors import BackboneError


def open_graph(model: ModelProto, path: Path, provider: Literal["auto", "cpu"]) -> tuple[Any, bytes]:
    """A session of ONNX Runtime, and the graph as bytes.

    Args:
        path: of the file, for error messages.
    """
    try:
        content = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's own exception types are not public
        raise BackboneError(f"{path}: over 2 GiB in one piece ({error})") from error
    try:
        return open_session(content, str(path), provider), content
    except StartupError as error:
        raise BackboneError(
            f"{path}: ONNX Runtime {ort.__version__} cannot open this graph. Export the model to an older opset, "
            f"with operators of the ONNX standard only ({str(error).removeprefix(f'{path}: ').strip()})"
        ) from error


def noise(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Images of noise: bytes, or floats of mean 0."""
    rng = np.random.default_rng(0)
    return (rng.integers(0, 256, shape) if kind == np.uint8 else rng.standard_normal(shape)).astype(kind)


def values_of(model: ModelProto, names: Sequence[str], path: Path) -> list[NDArray[Any]]:
    """The values of tensors inside the graph for an image of noise. Not every exporter's shapes can be inferred.

    Args:
        model: from `read_graph`. path: of the file, for error messages.
    """
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    images = probe.graph.input[0]
    kind = helper.tensor_dtype_to_np_dtype(images.type.tensor_type.elem_type)
    shape = (1, *(dim.dim_value for dim in images.type.tensor_type.shape.dim[1:]))
    session, _ = open_graph(probe, path, "cpu")
    try:
        return list(session.run(None, {images.name: noise(shape, kind)}))
    except Exception as error:  # ONNX Runtime's own exception types are not public
        raise BackboneError(
            f"{path}: the graph does not run on one image of {shape[1:]} numbers; export it with a dynamic batch axis, "
            f"for this image size ({error})"
        ) from error
