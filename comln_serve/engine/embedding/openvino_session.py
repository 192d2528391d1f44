"""A graph in OpenVINO, on a CPU. In bfloat16, where a CPU has it, networks take less time than in ONNX Runtime."""

import sys
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.cancellation import Cancellation
from comln_serve.errors import StartupError


class OpenVinoSession:
    """A graph of one input and one output. Thread-safe.

    Attributes:
        precision: what it computes in, but for layers that are in 8-bit integers: "bfloat16" or "float32".
    """

    def __init__(self, graph: bytes, where: str, threads: int, *, at_once: int) -> None:
        """Compile the graph.

        Args:
            where: the graph's origin, for error messages.
            threads: of the CPU, divided among the batches.
            at_once: batches that run at the same time; further calls wait.

        Raises:
            StartupError: OpenVINO is not installed, or cannot compile the graph.
        """
        # Its tools for converting models, which are not needed here, send telemetry as soon as they are imported.
        sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
        try:
            import openvino  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise StartupError(
                "provider is openvino, but the package openvino cannot be imported. Install comln-serve[openvino] "
                f"besides [cpu], or start with --provider cpu: {error}"
            ) from error
        self._idle: SimpleQueue[Any] = SimpleQueue()
        try:
            core: Any = openvino.Core()
            bfloat16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            options = {
                "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": at_once,
                # All CPUs count, as `threads` does: by default it would leave out one of the two of each core.
                "ENABLE_HYPER_THREADING": True,
                # The threads that decode images share these cores.
                "ENABLE_CPU_PINNING": False,
            }
            self._compiled = core.compile_model(core.read_model(graph), "CPU", options)
            for _ in range(at_once):
                self._idle.put(self._compiled.create_infer_request())
            self._tensor_of = openvino.Tensor
            self._no_images = openvino.Tensor(openvino.Type.u8, self._compiled.input().partial_shape.get_min_shape())
        except RuntimeError as error:
            raise StartupError(f"{where}: OpenVINO cannot open the backbone: {error}") from error
        self.precision = "bfloat16" if bfloat16 else "float32"

    def run(self, images: NDArray[np.uint8], cancellation: Cancellation) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3). Raising the flag makes this call end soon, with an error."""
        cancellation.check()
        request = self._idle.get()
        try:
            shared = self._tensor_of(np.require(images, requirements=["C", "W"]), shared_memory=True)
            with cancellation.calling(request.cancel):
                request.infer(shared, share_inputs=True)
            cancellation.check()  # the request may be cancelled yet
            embeddings: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
            request.set_input_tensor(self._no_images)  # it would keep the images, and the array that they are part of
        except BaseException:
            self._idle.put(self._compiled.create_infer_request())
            raise
        self._idle.put(request)
        return embeddings
