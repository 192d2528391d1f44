"""From image files to embeddings: decoders, shared by all models, and a model's batches."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.admission import Admission
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.clock import StageClock
from comln_serve.engine.decoders import Decoders
from comln_serve.engine.model import LocalModel, Model
from comln_serve.engine.pending import Pending
from comln_serve.machine import usable_cpus
from comln_serve.settings import Settings

_Result = TypeVar("_Result")


class Embedder:
    """Decodes and embeds. Safe from many threads.

    Attributes:
        images: how many are under way; whoever embeds admits them there first.
    """

    def __init__(self, settings: Settings) -> None:
        self.images = Admission(settings.max_pending_images, "images")
        self.decoders = Decoders(
            settings.decode_threads or usable_cpus(),
            settings.max_image_pixels,
            settings.accepted_formats,
        )

    def embed(
        self,
        files: Sequence[bytes],
        model: Model,
        clock: StageClock,
        cancellation: Cancellation | None,
    ) -> NDArray[np.float32]:
        """Embeddings (n, d) of n image files."""
        with model.turn(len(files), cancellation) as turn:
            if model.decodes:
                with clock.stages("decode", "embed", lambda: turn.decode_share):
                    return turn.embed(files)
            with clock.stage("decode"):
                images = self.decoders.prepare(files, model.bundle.manifest.preprocessing, turn)
            with clock.stage("embed"):
                return turn.embed(images)

    def embed_soon(
        self,
        files: Sequence[bytes],
        model: LocalModel,
        clock: StageClock,
        cancellation: Cancellation,
        then: Callable[[NDArray[np.float32]], _Result],
        when_over: Callable[[], None],
    ) -> Pending[_Result]:
        """Hand image files to a model that `decodes`, and wait for nothing. They are admitted here.

        Args:
            then: makes the result of the embeddings (n, d), on the thread that has them.
            when_over: called once, by any thread, when there is a result or an error.

        Raises:
            ServiceError: OVERLOADED, CLIENT_GONE, NOT_READY; it is never called then.
        """
        held = ExitStack()
        try:
            held.enter_context(self.images.admit(len(files)))
            turn = held.enter_context(model.turn(len(files), cancellation))
            held.enter_context(clock.stages("decode", "embed", lambda: turn.decode_share))
            pending = Pending(turn, held, then, when_over)
            turn.submit(files, pending.end)
        except BaseException:
            held.close()
            raise
        return pending

    def close(self) -> None:
        """Release the threads."""
        self.decoders.close()
