"""Runs an ONNX graph on an image of noise, for what its declarations leave open."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from comln_serve.engine.embedding.backbone import open_session
from training.errors import BackboneError


def values_of(model: ModelProto, names: Sequence[str], path: Path) -> list[NDArray[Any]]:
    """The values of tensors inside the graph for an image of noise. Not every exporter's shapes can be inferred.

    Args:
        model: from `read_graph`. path: of the file, for error messages.

    Raises:
        BackboneError: the graph does not run.
    """
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    images = probe.graph.input[0]
    kind = helper.tensor_dtype_to_np_dtype(images.type.tensor_type.elem_type)
    shape = (1, *(dim.dim_value for dim in images.type.tensor_type.shape.dim[1:]))
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, shape) if kind == np.uint8 else rng.standard_normal(shape)
    try:
        session = open_session(probe.SerializeToString(), str(path), "cpu")
        return list(session.run(None, {images.name: noise.astype(kind)}))
    except Exception as error:  # ONNX Runtime's own exception types are not public
        raise BackboneError(
            f"{path}: the graph does not run on one image of {shape[1:]} numbers; export it with a dynamic batch axis, "
            f"for this image size ({error})"
        ) from error
