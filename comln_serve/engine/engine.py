"""The server's operations as plain calls, without HTTP.

Calls block and are thread-safe; `predict` is a coroutine, for asyncio's event loops. They raise a `ServiceError` for
anything wrong with a request. A `reference` is an id, a name or `name@version` (`comln_serve.domain.reference`) of one
tenant's classifier.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from numpy.typing import NDArray

from comln_serve.configuration.settings import Settings
from comln_serve.counts import Count, SharedCounts
from comln_serve.domain.classifier import Classifier
from comln_serve.domain.rejected import Rejected
from comln_serve.domain.support import SupportSet
from comln_serve.engine.adapting.adaptation import Adapted, ClassifierMaker, NewClassifier, Support
from comln_serve.engine.adapting.changes import Change
from comln_serve.engine.admission import Admission
from comln_serve.engine.bundles import load_models
from comln_serve.engine.cancellation import Caller
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.engine.classifiers.comparing import Comparisons
from comln_serve.engine.classifiers.housekeeping import Housekeeping
from comln_serve.engine.clock import StageClock, tell_stage
from comln_serve.engine.compilation import compile_flow
from comln_serve.engine.embedding.decoders import Decoders, Deliver, File, Upload
from comln_serve.engine.embedding.job import Job
from comln_serve.engine.line import Line
from comln_serve.engine.models import Model
from comln_serve.engine.queues import Queue
from comln_serve.engine.served import Models, ModelsReloaded, ServedModels, reopen, warn_of_absent
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.imaging import readable
from comln_serve.machine import cpus_of_each, usable_cpus
from comln_serve.report import similarity
from comln_serve.storage import Store, TenantStore

__all__ = ["Adapted", "Caller", "Engine", "ModelsReloaded", "NewClassifier", "Predicted", "load_models"]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Numbers of weights times images up to which classifying is done at once, well within a millisecond; more is done on
# a thread, so that the event loop goes on.
_LIGHT = 200_000

# Classifiers looked up at once for predictions, most of which find theirs in memory: threads that wait for the GIL
# keep the event loop from it.
_FOUND_AT_ONCE = 4


@dataclass(frozen=True)
class Predicted:
    """Class probabilities (n, N) of n images, in the order of `classifier.labels`.

    Attributes:
        rejected: images that could not be used, of a request with `partial`; the n images are the others.
        calibrated: whether the probabilities use a measured temperature.
        similarity: (n,) of each image to its most similar class; None unless requested.
        unknown_threshold: similarity below which an image is unknown; None unless requested, and if
            there is nothing to derive it from.
        examples: (n,) number of the example that each image is identical to, or None; None unless requested.
    """

    classifier: Classifier
    probabilities: NDArray[np.float64]
    timings_ms: dict[str, float]
    calibrated: bool
    similarity: NDArray[np.float64] | None = None
    unknown_threshold: float | None = None
    rejected: tuple[Rejected, ...] = ()
    examples: tuple[int | None, ...] | None = None


class Engine:
    """The served models, the stored classifiers, and the threads that do the work.

    Calls that make or change a classifier: A named one gets a new version, for which the name stands then if `promote`
    is set; an unnamed one changes in place. With `partial`, images that cannot be used are left out; every class needs
    one that can. They raise a `ServiceError` for anything wrong with the request, and nothing is stored then.

    Attributes:
        shared: the counts of all processes of the server.
        classifiers: finds, lists, promotes and deletes what is stored.
        images: counts the images in work.
        formats: formats of image files that are accepted and can be decoded.
        ready: whether the engine is warm and not closed.
        failure: why it will never be ready, or None.
        on_models: called with models before they are served for the first time by `reload`.
    """

    def __init__(
        self,
        settings: Settings,
        models: Mapping[str, Model],
        store: Store,
        shared: SharedCounts | None = None,
        *,
        keeps_house: bool = True,
    ) -> None:
        """Set up the threads.

        Args:
            shared: the counts of all processes of the server; default: there is only this one.
            keeps_house: whether to delete from the store what expired, and thumbnails that are not to be kept.

        Raises:
            StartupError: the default model does not exist, or no accepted format can be decoded.
        """
        self.settings = settings
        self._keeps_house = keeps_house
        self.shared = shared = shared or SharedCounts()
        self._served = ServedModels(Models(settings, models))
        self.store = store
        self.classifiers = Catalogue(
            store,
            settings.classifier_cache_bytes // shared.processes,
            # One that does not keep house deletes none: a server that keeps thumbnails may use the same database.
            keep_thumbnails=settings.keep_thumbnails or not keeps_house,
        )
        self.images = Admission(
            settings.max_pending_images,
            Count.IMAGES,
            shared,
            largest=settings.max_images,
            by_tenant=settings.require_keys,
        )
        self.formats = readable(settings.accepted_formats)
        if not self.formats:
            raise StartupError(
                f"image_formats is {settings.image_formats}, and no decoder of these is installed; install "
                "comln-serve[heic], or accept other formats"
            )
        self.ready = False
        self.failure: Exception | None = None
        self.on_models: Callable[[Models], None] = lambda _models: None
        self._warming = Lock()
        self._warm = False
        self._decoders = Decoders(
            settings.decode_threads or cpus_of_each(shared.processes),
            settings.max_image_pixels,
            self.formats,
            settings.max_inference_seconds,
        )
        # For what blocks in a prediction; as many as there may be predictions.
        self._threads = CapacityLimiter(settings.max_pending_requests)
        self._finding = Line(_FOUND_AT_ONCE)
        self._comparisons = Comparisons(self.classifiers, Queue.of_comparisons(settings, shared))
        self._solves = Queue.of_solves(settings, shared)
        self._housekeeping: Housekeeping | None = None

    @property
    def models(self) -> Models:
        """The models that are served now."""
        return self._served.now

    def warm(self) -> None:
        """Compile the flow and run every backbone once. The first call does it, others wait for it.

        Afterwards the engine is `ready`, or `failure` holds the error that keeps it from that.
        """
        with self._warming:
            if self._warm:
                return
            self._warm = True
            try:
                compile_flow()
                with ThreadPoolExecutor(usable_cpus()) as threads:  # ONNX Runtime plans a graph on one core
                    list(threads.map(lambda model: model.warm(), self.models.values()))
                if self._keeps_house:
                    self._housekeeping = Housekeeping(self.store, keep_thumbnails=self.settings.keep_thumbnails)
                self.ready = True
            except Exception as error:
                logger.exception("the server cannot get ready")
                self.failure = error

    def reload(self) -> ModelsReloaded:
        """Serve the bundles that `models_folder` holds now: all of them, or, if one cannot be used, those of before.

        New and changed ones are opened and warmed first. Running requests keep the models that they began with, which
        are closed afterwards.

        Raises:
            ServiceError: CANNOT_RELOAD, nothing is changed then; NOT_READY.
        """
        self._need_ready()
        with self._warming:
            models, result = reopen(self.models, self.settings, self.shared)
            self.on_models(models)
            self._served.exchange(models)
        logger.info(
            "models reloaded: %s; the default is %s",
            "; ".join(
                f"{what} {', '.join(names)}"
                for what in ("added", "replaced", "removed", "unchanged")
                if (names := getattr(result, what))
            ),
            result.default,
        )
        warn_of_absent(models, self.store, self.settings)
        return result

    def check(self) -> None:
        """Check, for readiness, that images can be decoded, that every model can embed, and that
        expired classifiers are still being removed.

        Raises:
            ServiceError: NOT_READY.
        """
        if self._decoders.stuck:
            raise ServiceError(
                ErrorCode.NOT_READY,
                "The threads that decode images have ended or hang. Use another server, and start this one anew.",
            )
        for model in self.models.values():
            model.check()
        if self._housekeeping is not None:
            self._housekeeping.check()

    def close(self) -> None:
        """Finish running work, end the threads and close the store."""
        self.ready = False
        if self._housekeeping is not None:
            self._housekeeping.close()
        self._decoders.close()
        with self._warming:  # a reload in progress ends first
            self._served.close()
        self.store.close()

    def adapt(
        self, support: Support, new: NewClassifier | None = None, caller: Caller | None = None, *, partial: bool = False
    ) -> Adapted:
        """Fit a classifier to labelled images (file bytes, label) and store it."""
        with self._making(caller, partial=partial) as maker:
            return maker.adapt(support, new or NewClassifier())

    def adapt_to_embeddings(
        self, support: SupportSet, embedder_sha256: str, new: NewClassifier, digest: str, caller: Caller | None = None
    ) -> Adapted:
        """Fit a classifier to embeddings that this server or another has computed, and store it.

        Args:
            embedder_sha256: of the bundle that computed them, which has to be served here. `new.model` may be another
                name of it.
            digest: of all that was sent, to recognise a repeated request.
        """
        with self._making(caller) as maker:
            return maker.adapt_to_embeddings(support, embedder_sha256, new, digest)

    def add_examples(
        self,
        reference: str,
        support: Support,
        caller: Caller | None = None,
        *,
        promote: bool = True,
        partial: bool = False,
    ) -> Adapted:
        """Adapt a classifier anew, with more labelled images (file bytes, label) after its own.

        The result equals that of adapting to all images at once.
        """
        with self._making(caller, partial=partial) as maker:
            return maker.add_examples(reference, support, promote=promote)

    def change(self, reference: str, change: Change, caller: Caller | None = None, *, promote: bool = True) -> Adapted:
        """Change a classifier, without images: remove or relabel its examples, rename classes, adapt it again."""
        with self._making(caller) as maker:
            return maker.change(reference, change, promote=promote)

    @contextmanager
    def _making(self, caller: Caller | None, *, partial: bool = False) -> Generator[ClassifierMaker, None, None]:
        """What makes the classifier of one request, of the models that are served now."""
        self._need_ready()
        with self._served.using() as models:
            yield ClassifierMaker(
                self.settings, self.classifiers, self._embedding, self._solves, models, caller or Caller(), partial
            )

    @contextmanager
    def changing(self, tenant: str = "") -> Generator[TenantStore, None, None]:
        """The store of a tenant, to edit or promote a classifier, or roll a name back, in the block.

        Raises:
            ServiceError: as the store's methods; MODEL_CHANGED, a name would stand for a classifier whose model is not
                served here. Nothing is changed then.
        """
        with self._served.using() as models, self.classifiers.changing(tenant, models.of) as store:
            yield store

    async def predict(
        self,
        images: Sequence[File],
        reference: str,
        caller: Caller | None = None,
        *,
        unknown: bool = False,
        examples: bool = False,
        all_views: bool = False,
        partial: bool = False,
    ) -> Predicted:
        """Class probabilities of images (file bytes) under a classifier.

        Args:
            unknown: also return each image's similarity to its class.
            examples: also return which of the classifier's examples each image is.
            all_views: classify the mean embedding of all views that the model has of support images, instead of the
                first view's. The other two results are by the first view all the same.
            partial: leave out images that cannot be used, unless none can.

        Raises:
            ServiceError: anything wrong with the request.
        """
        if not self.ready:
            await self._on_thread(self._need_ready)
        caller, clock = caller or Caller(), StageClock()
        found = await self._find(reference, caller.tenant)
        with self._served.using() as models:
            model = models.of(found)
            with self._embedding(images, model, clock, caller, all_views=all_views, partial=partial) as upload:
                views = await upload.job
        embeddings, numbers = views[:, 0], None
        if examples:
            with clock.stage("compare"):
                numbers = await self._on_thread(self._comparisons.numbers_of, embeddings, found, caller)

        def classify() -> Predicted:
            with clock.stage("classify"):
                # Of the mean embedding: as logits are linear in embeddings, these are the mean logits of the views.
                seen = views.mean(axis=1) if all_views else embeddings
                probabilities = found.probabilities(seen, model.bundle.temperature_of(found))
                alike = similarity(embeddings, found.W) if unknown else None
            return Predicted(
                found,
                probabilities,
                clock.milliseconds(),
                calibrated=model.bundle.measured_temperature_of(found) is not None,
                similarity=alike,
                unknown_threshold=model.bundle.unknown_threshold_of(found) if unknown else None,
                rejected=upload.rejected,
                examples=numbers,
            )

        if len(embeddings) * found.W.size > _LIGHT:
            return await self._on_thread(classify)
        return classify()

    async def _find(self, reference: str, tenant: str) -> Classifier:
        """The classifier, from memory or from the store."""
        found = self.classifiers.remembered(reference, tenant)
        if found is None:
            async with self._finding.turn(tenant, self.settings.max_queue_seconds):
                found = self.classifiers.remembered(reference, tenant)  # another request may have read it meanwhile
                found = found or await self._on_thread(self.classifiers.find, reference, tenant)
        return found

    async def _on_thread(self, call: Callable[..., _Result], *arguments: object) -> _Result:
        return await to_thread.run_sync(call, *arguments, limiter=self._threads)

    @contextmanager
    def _embedding(
        self,
        files: Sequence[File],
        model: Model,
        clock: StageClock,
        caller: Caller,
        see: Deliver | None = None,
        *,
        all_views: bool,
        partial: bool,
    ) -> Generator[Upload, None, None]:
        """Admit, decode and embed n >= 1 image files during the block.

        The block awaits the upload's job, or waits for it: the embeddings (n, V, d), if `partial` of the files that can
        be used. The upload has the others.

        Args:
            see: called with each image's position and pixels (V, S, S, 3) before it is embedded, from any thread.
            all_views: the V views that the model's preprocessing names, as of support images; else the first one.

        Raises:
            ServiceError: OVERLOADED; the first bad file's error, with its position (if `partial`, only if all
                are bad); as `Job.wait`; NOT_READY, the server is stopping.
        """
        began = time.perf_counter()
        policy = model.bundle.manifest.preprocessing
        views = len(policy.shares) if all_views else 1
        job = Job(len(files), self.settings, views, tenant=caller.tenant)
        with (
            # With its views a request that is not too large may exceed the limit: it then needs the server for itself.
            self.images.admit(min(len(files) * views, self.images.most), tenant=caller.tenant),
            clock.stages("decode", "embed", job.decoding_share),
            caller.cancellation.calling(job.cancel),
            model.batcher.expect(job) as put,
        ):

            def deliver(position: int, views: NDArray[np.uint8] | None) -> None:
                if see is not None:
                    see(position, views)
                put(position, views)

            upload = self._decoders.submit(job, files, policy, deliver, partial=partial)
            try:
                yield upload
            finally:
                job.cancel()  # stops the work if the wait was given up
                self._decoders.forget(upload)
        waited = job.waited_s or 0.0
        tell_stage("queue", waited, ago=time.perf_counter() - began - waited)

    def _need_ready(self) -> None:
        if not self.ready:
            self.warm()
        if not self.ready:
            raise ServiceError(ErrorCode.NOT_READY, "The server is stopping or could not start; try another.")
