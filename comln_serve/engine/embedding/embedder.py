"""Turns image files into embeddings, for predict, adapt and changes of examples."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from comln_serve.configuration.settings import Settings
from comln_serve.engine.admission import Admission
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.clock import StageClock, report_stage
from comln_serve.engine.embedding.decoders import Decoders
from comln_serve.engine.embedding.job import Job, JobLimits
from comln_serve.engine.model import Model
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import usable_cpus


class Embedder:
    """Decodes and embeds images. Thread-safe.

    Attributes:
        images: counts the images in work; callers of `embed` admit theirs there first.
    """

    def __init__(self, settings: Settings) -> None:
        self.images = Admission(settings.max_pending_images, "images")
        self._limits = job_limits(settings)
        self._decoders = Decoders(
            settings.decode_threads or usable_cpus(),
            settings.max_image_pixels,
            settings.accepted_formats,
            settings.max_inference_seconds,
        )

    def embed(
        self, files: Sequence[bytes], model: Model, clock: StageClock, cancellation: Cancellation | None
    ) -> NDArray[np.float32]:
        """Embeddings (n, d) of n >= 1 image files.

        Raises:
            ServiceError: the first bad file's error, with its position; as `Job.wait`; NOT_READY,
                the server is stopping.
        """
        began = time.perf_counter()
        job = Job(len(files), self._limits)
        policy = model.bundle.manifest.preprocessing
        with (
            clock.stages("decode", "embed", lambda: _decode_share(job)),
            (cancellation or Cancellation()).calling(job.cancel),
            model.batcher.expect(job) as put,
        ):
            self._decoders.submit(job, files, policy, put)
            embeddings = job.wait()
        waited = job.waited_s or 0.0
        report_stage("queue", waited, ago=time.perf_counter() - began - waited)
        return embeddings

    def check(self) -> None:
        """Check, for readiness, that images can be decoded.

        Raises:
            ServiceError: NOT_READY.
        """
        if self._decoders.stuck:
            raise ServiceError(
                ErrorCode.NOT_READY,
                "The threads that decode images have ended or hang. Use another server, and start this one anew.",
            )

    def close(self) -> None:
        """End the threads that decode."""
        self._decoders.close()


def job_limits(settings: Settings) -> JobLimits:
    """The time limits of a request, from the settings."""
    return JobLimits(settings.max_queue_seconds, settings.max_inference_seconds)


def _decode_share(job: Job) -> float:
    work = job.decoding_s + job.embedding_s
    return job.decoding_s / work if work else 0.0
