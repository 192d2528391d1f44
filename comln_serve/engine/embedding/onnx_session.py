"""A graph in ONNX Runtime, on CUDA or a CPU."""

import logging
import tempfile
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from comln_serve.engine.cancellation import Cancellation
from comln_serve.errors import StartupError
from comln_serve.machine import has_vnni, may_have_gpu, usable_cpus

logger = logging.getLogger(__name__)

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

# Without VNNI an x86 CPU adds pairs of 8-bit products in 16 bits, where they overflow: INT8 embeddings would be others.
# With this option ONNX Runtime multiplies unsigned weights, exactly. CPUs with VNNI get the same embeddings without it,
# in half the time.
EXACT_PRODUCTS = ("session.x64quantprecision", "1")


class OnnxSession:
    """A graph of one input and one output. Thread-safe on a CPU.

    Attributes:
        inputs, outputs: (name, type, shape) of each.
        provider: what it runs on.
    """

    def __init__(
        self, graph: bytes, where: str, provider: Literal["auto", "cuda", "cpu"], threads: int | None = None
    ) -> None:
        """As `open_session`."""
        self._session = open_session(graph, where, provider, threads)
        self.inputs = [(one.name, one.type, one.shape) for one in self._session.get_inputs()]
        self.outputs = [(one.name, one.type, one.shape) for one in self._session.get_outputs()]
        self.provider: Literal["cuda", "cpu"] = "cuda" if self._session.get_providers()[0] == _CUDA else "cpu"

    def run(self, images: NDArray[np.uint8], cancellation: Cancellation) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3). Raising the flag makes this call end soon, with an error."""
        options = ort.RunOptions()

        def stop() -> None:
            options.terminate = True

        with cancellation.calling(stop):
            (embeddings,) = self._session.run(None, {self.inputs[0][0]: images}, options)
        result: NDArray[np.float32] = embeddings
        return result


def exact_products(options: Any) -> None:
    """Have a session with these options of ONNX Runtime add products of 8-bit integers without overflow."""
    if not has_vnni():
        options.add_session_config_entry(*EXACT_PRODUCTS)


def open_session(graph: bytes, where: str, provider: Literal["auto", "cuda", "cpu"], threads: int | None = None) -> Any:
    """Open an ONNX Runtime session, on CUDA if `provider` allows and it can run.

    Args:
        where: the graph's origin, for error messages.
        threads: inference threads on a CPU; default: the CPUs this process may use.

    Raises:
        StartupError: ONNX Runtime cannot open the graph.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or usable_cpus()
        options.inter_op_num_threads = 1
        # Threads that spin while waiting would take the CPU from those that decode images.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        exact_products(options)
        # A graph may load weights from other files, which no checksum covers: give it an empty folder.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", nowhere)
        if provider != "cpu" and _CUDA in ort.get_available_providers() and may_have_gpu():
            ort.preload_dlls()
            cuda = (_CUDA, {"cudnn_conv_algo_search": "HEURISTIC"})
            try:
                return _session(graph, where, options, [cuda, _CPU])
            except StartupError as error:
                if provider == "cuda":
                    raise
                logger.warning("CUDA cannot be used, running on the CPU: %s", error)
        return _session(graph, where, options, [_CPU])


def _session(graph: bytes, where: str, options: Any, providers: list[Any]) -> Any:
    try:
        session = ort.InferenceSession(graph, options, providers=providers)
    except Exception as error:  # ONNX Runtime's own exception types are not public
        raise StartupError(f"{where}: ONNX Runtime cannot open the backbone: {error}") from error
    session.disable_fallback()
    return session
