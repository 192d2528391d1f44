"""An ONNX file as a network: opened, cut at the embedding, and tried."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from training.backbones.onnx_graph import Layout, image_axes, read_graph
from training.backbones.onnx_pooling import weigh_centre
from training.backbones.onnx_reduction import reduce_output
from training.backbones.onnx_trial import noise, open_graph
from training.config import BackboneConfig
from training.errors import BackboneError

# Largest difference between an image's embedding alone and in a batch, relative to their size.
_BATCH_TOLERANCE = 1e-2


class OnnxFile:
    """Runs a graph in ONNX Runtime, from its input to features (B, d) float32.

    Attributes:
        path: of the file. layout: of the input; see `BackboneConfig.layout`.
        graph: the file's graph, cut at the embedding. embedding_size: d.
        flattens: the graph's output has more than two axes.
        digest: SHA-256 of the graph with its weights.
    """

    def __init__(self, config: BackboneConfig, image_size: int) -> None:
        """Open the graph and run it once.

        Raises:
            BackboneError: the file is missing or not a graph that can be used; see `read_graph`.
        """
        self.path = Path(config.path or "")  # the configuration requires it
        self.layout: Layout = config.layout
        self.image_size = image_size
        self.graph = read_graph(self.path, config.layout, config.channels_in, image_size, config.output)
        reduce_output(self.graph, config.reduction, config.layout, self.path)
        if config.pooling is not None:
            weigh_centre(self.graph, config.pooling, self.path)
        kind = self.graph.graph.input[0].type.tensor_type.elem_type
        if any(node.op_type == "DynamicQuantizeLinear" for node in self.graph.graph.node):
            raise BackboneError(
                f"{self.path}: the graph is quantised dynamically: its 8-bit numbers have one scale for a whole batch, "
                "so an image's embedding depends on the other images. Take the model in float32, or quantise it "
                "statically (onnxruntime.quantization.quantize_static, format QDQ)"
            )
        self._dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        self._input = self.graph.graph.input[0].name
        self._session, content = open_graph(self.graph, self.path, "auto")
        self.embedding_size, self.flattens = self._try(config.channels_in)
        self.digest = hashlib.sha256(content).digest()

    def features(self, planes: NDArray[Any]) -> NDArray[np.float32]:
        """The graph's output (B, d).

        Args:
            planes: normalised colour planes (B, C, S, S), whatever the layout; uint8 images (B, S, S, 3) with "as_is".
        """
        x = planes.transpose(0, 2, 3, 1) if self.layout == "nhwc" else planes
        # ONNX Runtime takes contiguous arrays only.
        found = self._run(np.ascontiguousarray(x.astype(self._dtype, copy=False)))
        return found.astype(np.float32, copy=False).reshape(len(found), -1)

    def _run(self, values: NDArray[Any]) -> NDArray[Any]:
        (result,) = self._session.run(None, {self._input: values})
        return result

    def _try(self, channels: int) -> tuple[int, bool]:
        """Run batches of one and three images; returns (embedding size, whether to flatten)."""
        values = noise((3, *image_axes(self.layout, channels, self.image_size)), self._dtype)
        try:
            together, alone = self._run(values), self._run(values[:1])
        except Exception as error:  # ONNX Runtime's own exception types are not public
            raise BackboneError(
                f"{self.path}: the graph does not run on batches of one and of three images of "
                f"{self.image_size} px; export it with a dynamic batch axis, for this image size (docs/backbones.md, "
                f'"What a graph must be"): {error}'
            ) from error
        if together.ndim < 2 or len(together) != 3 or len(alone) != 1:
            raise BackboneError(
                f"{self.path}: three images must give (3, d); the output "
                f"{self.graph.graph.output[0].name} is {tuple(together.shape)} for three, "
                f"{tuple(alone.shape)} for one"
            )
        if not np.issubdtype(together.dtype, np.floating):
            raise BackboneError(
                f"{self.path}: embeddings must be floating-point numbers; the output "
                f"{self.graph.graph.output[0].name} is {together.dtype}. Name another with "
                "backbone.output"
            )
        together, alone = together.astype(np.float64), alone.astype(np.float64)
        if not np.isfinite(together).all():
            raise BackboneError(
                f"{self.path}: embeddings of noise hold NaN or infinity, as with damaged weights, or float16 numbers "
                "that overflow. Export the model anew"
            )
        difference = np.abs(together[:1] - alone).max()
        if difference > _BATCH_TOLERANCE * np.abs(together).max():
            raise BackboneError(
                f"{self.path}: an image's embedding depends on the other images of its batch "
                f"(by {difference:.2g}); export the model in evaluation mode"
            )
        return int(np.prod(together.shape[1:])), together.ndim > 2
