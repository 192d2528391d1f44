"""Runs the embedding network in ONNX Runtime, on the configured provider."""

import logging
import tempfile
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Provider
from comln_serve.engine.cancellation import Cancellation
from comln_serve.errors import StartupError
from comln_serve.machine import has_vnni, may_have_gpu, usable_cpus

logger = logging.getLogger(__name__)

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

# Without VNNI an x86 CPU adds pairs of 8-bit products in 16 bits, where they overflow: INT8 embeddings would be others.
# With this option ONNX Runtime multiplies unsigned weights, exactly. CPUs with VNNI get the same embeddings without it,
# in half the time.
EXACT_PRODUCTS = ("session.x64quantprecision", "1")

# Images in one batch on a CPU. More save no more work, and the first waits for the last.
_CPU_BATCH = 8


class OnnxBackbone:
    """f_Phi: uint8 RGB images (n, S, S, 3) -> embeddings (n, d) float32.

    On CUDA a batch is padded with zeros to one of a few sizes: CUDA plans each new input shape
    anew, and a few shapes can all be warmed before the server is ready.

    On a CPU each batch, a small one, runs on its own core: threads that share one wait for each
    other in every layer. If only one image is in work, all cores share it. That needs a second
    session, as a session has a fixed number of threads, so the weights are in memory twice. Both
    give the same embedding, bit for bit, and so does a batch: `warm` tries two sizes, and where a
    network rounds otherwise in a batch, its images run one by one.

    Attributes:
        provider: "cuda" or "cpu", which the session runs on.
        threads: number of inference threads on a CPU.
        max_batch_size: images in one batch; `warm` may lower it to 1.
    """

    def __init__(
        self, bundle: Bundle, provider: Provider, threads: int | None = None, max_batch_size: int = 64
    ) -> None:
        """Open the graph and check its signature against the manifest.

        Args:
            threads: inference threads on a CPU; default: the CPUs this process may use.
            max_batch_size: images in one batch; on a CPU a few at most.

        Raises:
            StartupError: the graph cannot be read, its signature differs from the manifest's, or
                the provider is "cuda" and CUDA does not run.
        """
        self._name = bundle.name
        self._size = bundle.manifest.preprocessing.image_size
        self._width = bundle.manifest.embedding_size
        self.threads = threads = threads or usable_cpus()
        self._session = open_session(bundle.backbone, str(bundle.folder), provider, threads)
        self.provider: Literal["cuda", "cpu"] = "cuda" if self._session.get_providers()[0] == _CUDA else "cpu"
        if provider == "cuda" and self.provider != "cuda":
            raise StartupError(
                "provider is cuda, but ONNX Runtime could not use CUDA and would run on the CPU. "
                "Check the driver and install comln-serve[cuda] instead of [cpu], or start with --provider cpu"
            )
        self._check_signature(bundle)
        self._one_core = self._session
        if not self.on_gpu and threads > 1:
            self._one_core = open_session(bundle.backbone, str(bundle.folder), "cpu", 1)
        self.max_batch_size = max_batch_size if self.on_gpu else min(max_batch_size, _CPU_BATCH)

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on CUDA."""
        return self.provider == "cuda"

    def warm(self) -> None:
        """Run every batch size once on CUDA, so that no request waits for its planning; on a CPU a few.

        Raises:
            StartupError: ONNX Runtime cannot run the graph, or the embeddings are not finite.
        """
        try:
            self._warm()
        except StartupError:
            raise
        except Exception as error:  # ONNX Runtime's own exception types are not public
            raise StartupError(f"model {self._name}: ONNX Runtime cannot run the backbone: {error}") from error

    def _warm(self) -> None:
        noise = np.random.default_rng(0)
        images = noise.integers(0, 256, (self.max_batch_size, self._size, self._size, 3), dtype=np.uint8)
        for size in batch_sizes(self.max_batch_size) if self.on_gpu else (1,):
            if not np.isfinite(self.embed(images[:size])).all():
                raise StartupError(f"model {self._name}: its embeddings hold NaN or infinity")
        if not self.on_gpu and not self._batches_equal_images(images):
            logger.info("model %s: a batch rounds otherwise than its images, which run one by one", self._name)
            self.max_batch_size = 1

    def _batches_equal_images(self, images: NDArray[np.uint8]) -> bool:
        """Whether batches give the embeddings (n, d) that images (n, S, S, 3) have one by one, bit for bit."""
        alone = np.concatenate([self.embed(image[None], alone=False) for image in images])
        sizes = {min(size, len(images)) for size in (3, len(images))}
        return all(np.array_equal(self.embed(images[:size], alone=False), alone[:size]) for size in sizes)

    def embed(
        self, images: NDArray[np.uint8], cancellation: Cancellation | None = None, *, alone: bool = True
    ) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3); n >= 1. Thread-safe on a CPU.

        Args:
            cancellation: makes this call end soon, with an error, when raised.
            alone: whether to use all cores of a CPU.
        """
        session = self._session if alone else self._one_core
        largest = self.max_batch_size
        options = ort.RunOptions()

        def stop() -> None:
            options.terminate = True

        with (cancellation or Cancellation()).calling(stop):
            return np.concatenate(
                [self._run(session, images[i : i + largest], options) for i in range(0, len(images), largest)]
            )

    def _run(self, session: Any, images: NDArray[np.uint8], options: Any) -> NDArray[np.float32]:
        """Run a batch, on CUDA padded with zeros to one of the warmed batch sizes."""
        count = len(images)
        size = next(size for size in batch_sizes(self.max_batch_size) if size >= count) if self.on_gpu else count
        if size != count:
            padding = np.zeros((size - count, *images.shape[1:]), dtype=np.uint8)
            images = np.concatenate([images, padding])
        (embeddings,) = session.run(None, {self._input: images}, options)
        result: NDArray[np.float32] = embeddings
        return result[:count]

    def _check_signature(self, bundle: Bundle) -> None:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        wanted_in = ("tensor(uint8)", [self._size, self._size, 3])
        wanted_out = ("tensor(float)", [self._width])
        found = [(value.type, list(value.shape[1:])) for value in (*inputs, *outputs)]
        batch = [value.shape[:1] for value in (*inputs, *outputs)]
        dynamic = all(isinstance(size, str) for axis in batch for size in axis)
        if found != [wanted_in, wanted_out] or not dynamic:
            shown = [(value.name, value.type, value.shape) for value in (*inputs, *outputs)]
            raise StartupError(
                f"{bundle.folder}: the backbone must take uint8 (batch, {self._size}, "
                f"{self._size}, 3) and give float (batch, {self._width}), as bundle.json says; "
                f"found {shown}"
            )
        self._input = inputs[0].name


def batch_sizes(largest: int) -> tuple[int, ...]:
    """The sizes that batches are padded to: 1, 2, 4, 8, ... and the largest."""
    powers = [1 << i for i in range(largest.bit_length()) if 1 << i < largest]
    return (*powers, largest)


def exact_products(options: Any) -> None:
    """Have a session with these options of ONNX Runtime add products of 8-bit integers without overflow."""
    if not has_vnni():
        options.add_session_config_entry(*EXACT_PRODUCTS)


def open_session(graph: bytes, where: str, provider: Provider, threads: int | None = None) -> Any:
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
        # A graph may load weights from other files, which no checksum covers: give it an empty
        # folder.
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
