"""Embeds images: a bundle's graph on the configured provider, in batches that suit it."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.onnx_session import OnnxSession
from comln_serve.engine.embedding.openvino_session import OpenVinoSession
from comln_serve.errors import StartupError
from comln_serve.machine import Provider, RunsOn, usable_cpus

logger = logging.getLogger(__name__)

# Images in one batch on a CPU. More save no work, their layers leave the core's cache (the photo network takes 5 % more
# CPU time at eight than at four), and the first waits for the last.
_CPU_BATCH = 4

# By how much of its length an embedding in OpenVINO may differ from that in ONNX Runtime: 0.1 is a cosine of 0.995. Of
# the bundles in `models` the largest is 0.07; without VNNI, where OpenVINO's products of 8-bit integers can overflow,
# 0.15.
_MOST_DIFFERENCE = 0.1


Session = OnnxSession | OpenVinoSession


class OnnxBackbone:
    """f_Phi: uint8 RGB images (n, S, S, 3) -> embeddings (n, d) float32.

    On CUDA a batch is padded with zeros to one of a few sizes: CUDA plans each new input shape
    anew, and a few shapes can all be warmed before the server is ready.

    On a CPU each batch, a small one, runs on its own core: threads that share one wait for each other in every layer.
    If only one image is in work, all cores share it. That needs a second session, as a session has a fixed number of
    threads, so the weights are in memory twice. Both give the same embedding, bit for bit, and so does a batch: `warm`
    tries one image and two sizes. Where a network rounds otherwise on all cores, a single image runs on one core, too;
    where it does in a batch, images run one by one.

    Attributes:
        provider: what it runs on.
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
                the provider is "cuda" and CUDA does not run, or "openvino" and that is not there, or
                its embeddings are others than those of ONNX Runtime.
        """
        self._name = bundle.name
        self._size = bundle.manifest.preprocessing.image_size
        self._width = bundle.manifest.embedding_size
        self.threads = threads = threads or usable_cpus()
        graph, where = bundle.backbone, str(bundle.folder)
        # For OpenVINO, too: it refuses a graph that loads weights from other files, which OpenVINO would read.
        in_onnx_runtime = OnnxSession(graph, where, "cpu" if provider == "openvino" else provider, threads)
        if provider == "cuda" and in_onnx_runtime.provider != "cuda":
            raise StartupError(
                "provider is cuda, but ONNX Runtime could not use CUDA and would run on the CPU. "
                "Check the driver and install comln-serve[cuda] instead of [cpu], or start with --provider cpu"
            )
        self._check_signature(bundle, in_onnx_runtime)
        self.provider: RunsOn = "openvino" if provider == "openvino" else in_onnx_runtime.provider
        self.max_batch_size = max_batch_size if self.on_gpu else min(max_batch_size, _CPU_BATCH)
        self._session: Session = in_onnx_runtime
        self._one_core: Session = in_onnx_runtime
        if self.provider == "openvino":
            self._session = found = OpenVinoSession(graph, where, threads, at_once=1)
            self._one_core = OpenVinoSession(graph, where, threads, at_once=threads) if threads > 1 else found
            logger.info("model %s: OpenVINO computes in %s", self._name, found.precision)
            with _failures_told(self._name):
                self._compare(in_onnx_runtime)
        elif self.provider == "cpu" and threads > 1:
            self._one_core = OnnxSession(graph, where, "cpu", 1)

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on CUDA."""
        return self.provider == "cuda"

    def warm(self) -> None:
        """Run every batch size once on CUDA, so that no request waits for its planning; on a CPU a few.

        Raises:
            StartupError: the graph cannot be run, or the embeddings are not finite.
        """
        images = self._noise()
        with _failures_told(self._name):
            for size in batch_sizes(self.max_batch_size) if self.on_gpu else (1,):
                if not np.isfinite(self.embed(images[:size])).all():
                    raise StartupError(f"model {self._name}: its embeddings hold NaN or infinity")
            if not self.on_gpu:
                self._make_equal(images)

    def _noise(self) -> NDArray[np.uint8]:
        """Images (n, S, S, 3) for a full batch."""
        shape = (self.max_batch_size, self._size, self._size, 3)
        return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def _compare(self, in_onnx_runtime: OnnxSession) -> None:
        """Check that OpenVINO computes the embeddings that the bundle was made for."""
        images = self._noise()
        found, wanted = self.embed(images), in_onnx_runtime.run(images, Cancellation())
        lengths = np.maximum(np.linalg.norm(wanted, axis=1), np.finfo(np.float32).tiny)
        difference = float((np.linalg.norm(found - wanted, axis=1) / lengths).max())
        if not difference <= _MOST_DIFFERENCE:  # it is NaN where an embedding holds NaN or infinity
            raise StartupError(
                f"model {self._name}: on this CPU OpenVINO's embeddings are not those of ONNX Runtime: they differ by "
                f"{difference:.3f} of their length, at most {_MOST_DIFFERENCE} is allowed. Start with --provider cpu"
            )
        logger.info("model %s: OpenVINO's embeddings differ by %.4f of their length at most", self._name, difference)

    def _make_equal(self, images: NDArray[np.uint8]) -> None:
        """Have images (n, S, S, 3) embedded only in ways that give the embeddings they have one by one, bit for bit."""
        single = np.concatenate([self.embed(image[None], alone=False) for image in images])
        if not np.array_equal(self.embed(images[:1]), single[:1]):
            logger.info("model %s: all cores together round otherwise than one, which each image gets", self._name)
            self._session = self._one_core
        sizes = {min(size, len(images)) for size in (3, len(images))}
        if not all(np.array_equal(self.embed(images[:size], alone=False), single[:size]) for size in sizes):
            logger.info("model %s: a batch rounds otherwise than its images, which run one by one", self._name)
            self.max_batch_size = 1

    def embed(
        self, images: NDArray[np.uint8], cancellation: Cancellation | None = None, *, alone: bool = True
    ) -> NDArray[np.float32]:
        """Embeddings (n, d) of images (n, S, S, 3); n >= 1. Thread-safe on a CPU.

        Args:
            cancellation: makes this call end soon, with an error, when raised.
            alone: whether to use all cores of a CPU.
        """
        session, cancellation = self._session if alone else self._one_core, cancellation or Cancellation()
        largest = self.max_batch_size
        return np.concatenate(
            [self._run(session, images[i : i + largest], cancellation) for i in range(0, len(images), largest)]
        )

    def _run(self, session: Session, images: NDArray[np.uint8], cancellation: Cancellation) -> NDArray[np.float32]:
        """Run a batch, on CUDA padded with zeros to one of the warmed batch sizes."""
        count = len(images)
        size = next(size for size in batch_sizes(self.max_batch_size) if size >= count) if self.on_gpu else count
        if size != count:
            padding = np.zeros((size - count, *images.shape[1:]), dtype=np.uint8)
            images = np.concatenate([images, padding])
        return session.run(images, cancellation)[:count]

    def _check_signature(self, bundle: Bundle, session: OnnxSession) -> None:
        wanted_in = ("tensor(uint8)", [self._size, self._size, 3])
        wanted_out = ("tensor(float)", [self._width])
        values = (*session.inputs, *session.outputs)
        found = [(kind, list(shape[1:])) for _, kind, shape in values]
        dynamic = all(isinstance(size, str) for _, _, shape in values for size in shape[:1])
        if found != [wanted_in, wanted_out] or not dynamic:
            raise StartupError(
                f"{bundle.folder}: the backbone must take uint8 (batch, {self._size}, "
                f"{self._size}, 3) and give float (batch, {self._width}), as bundle.json says; "
                f"found {list(values)}"
            )


@contextmanager
def _failures_told(name: str) -> Generator[None, None, None]:
    """Make a StartupError of whatever a runtime raises: the exception types of ONNX Runtime are not public."""
    try:
        yield
    except StartupError:
        raise
    except Exception as error:
        raise StartupError(f"model {name}: the backbone cannot be run: {error}") from error


def batch_sizes(largest: int) -> tuple[int, ...]:
    """The sizes that batches are padded to: 1, 2, 4, 8, ... and the largest."""
    powers = [1 << i for i in range(largest.bit_length()) if 1 << i < largest]
    return (*powers, largest)
