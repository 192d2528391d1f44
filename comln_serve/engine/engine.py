"""Adapt and predict, without HTTP: what the server does, as plain calls.

Calls block and are safe from many threads. Anything a caller did wrong is a `ServiceError`.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock, Timer

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Bundle, BundleError, Head, SolverSettings, find_bundles, load_bundle
from comln_serve.classifier import ID_PREFIX, Classifier, softmax
from comln_serve.engine.admission import Admission
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.classifier_cache import ClassifierCache
from comln_serve.engine.clock import StageClock
from comln_serve.engine.decoders import Decoders
from comln_serve.engine.model import LocalModel, Model
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.flow import FlowError
from comln_serve.machine import usable_cpus
from comln_serve.settings import Settings
from comln_serve.storage import ClassifierStore

logger = logging.getLogger(__name__)

PREFERRED_MODEL = "miniimagenet-conv4"


@dataclass(frozen=True)
class Adapted:
    """A new classifier and how long each stage of making it took, in milliseconds."""

    classifier: Classifier
    timings_ms: dict[str, float]


@dataclass(frozen=True)
class Predicted:
    """Class probabilities (n, N) of n images, in the order of `classifier.labels`."""

    classifier: Classifier
    probabilities: NDArray[np.float64]
    timings_ms: dict[str, float]


def load_bundles(settings: Settings) -> list[Bundle]:
    """Read every bundle of `settings.models_dir`.

    Raises:
        StartupError: a bundle cannot be used.
    """
    try:
        return [load_bundle(folder) for folder in find_bundles(settings.models_dir)]
    except BundleError as error:
        raise StartupError(str(error)) from error


def load_models(settings: Settings) -> dict[str, LocalModel]:
    """Open every bundle of `settings.models_dir` in this process, by name.

    Raises:
        StartupError: a bundle or the provider cannot be used.
    """
    return {bundle.name: LocalModel(bundle, settings) for bundle in load_bundles(settings)}


class Engine:
    """The served models, the store of classifiers, and the threads that do the work."""

    def __init__(
        self, settings: Settings, models: Mapping[str, Model], store: ClassifierStore
    ) -> None:
        self.settings = settings
        self.models = models
        self.default_model = _choose_default(settings, models)
        self.store = store
        self.images = Admission(settings.max_pending_images, "images")
        self.ready = False
        self.failure: Exception | None = None
        self._warming = Lock()
        self._warm = False
        self._decoders = Decoders(
            settings.decode_threads or usable_cpus(), settings.max_image_pixels
        )
        self._classifiers = ClassifierCache(settings.classifier_cache_bytes)

    def warm(self) -> None:
        """Compile the flow and run every backbone once; the first call does it, others wait.

        The engine is `ready` afterwards, or `failure` says why it never will be.
        """
        with self._warming:
            if self._warm:
                return
            self._warm = True
            try:
                _compile_flow()
                for model in self.models.values():
                    model.warm()
                self.ready = True
            except Exception as error:
                logger.exception("the server cannot get ready")
                self.failure = error

    def check_models(self) -> None:
        """For readiness: whether every model can embed now.

        Raises:
            ServiceError: NOT_READY.
        """
        for model in self.models.values():
            model.check()

    def close(self) -> None:
        """Finish what is running and release threads and store."""
        self.ready = False
        self._decoders.close()
        for model in self.models.values():
            model.close()
        self.store.close()

    def adapt(
        self,
        support: Sequence[tuple[bytes, str]],
        *,
        model: str | None = None,
        name: str | None = None,
        horizon: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> Adapted:
        """Fit a classifier to labelled images (file bytes, label) and store it.

        Args:
            model: a served model's name; default: `default_model`.
            name: for the classifier; a later one of the same name takes the name over.
            horizon: T instead of the model's own.
            cancellation: drops the work that is left when it is raised.

        Raises:
            ServiceError: anything wrong with the request; nothing is stored then.
        """
        self._need_ready()
        clock = StageClock()
        chosen = self.find_model(model)
        labels = tuple(dict.fromkeys(label for _, label in support))
        index = {label: i for i, label in enumerate(labels)}
        classes = np.array([index[label] for _, label in support], dtype=np.intp)
        head = chosen.bundle.head
        _check_classes(labels, len(support), head, chosen.name)
        with self.images.admit(len(support)):
            phi = self._embed([data for data, _ in support], chosen, clock, cancellation)
            if horizon is None:
                horizon = head.horizon_of(phi, len(labels))
            with clock.stage("solve"):
                W = self._solve(head, phi, classes, len(labels), horizon)
        probabilities = softmax(phi.astype(np.float64) @ W.T.astype(np.float64))
        of_truth = probabilities[np.arange(len(classes)), classes]
        weights = head.example_weights(classes, len(labels))
        classifier = Classifier(
            id=ID_PREFIX + uuid.uuid4().hex,
            name=name,
            model=chosen.name,
            embedder_sha256=chosen.embedder_sha256,
            labels=labels,
            examples=tuple(int(n) for n in np.bincount(classes, minlength=len(labels))),
            horizon=horizon,
            support_loss=float(-(weights * np.log(np.maximum(of_truth, 1e-300))).sum()),
            support_accuracy=float((probabilities.argmax(axis=1) == classes).mean()),
            created_at=datetime.now(UTC),
            W=W,
        )
        if cancellation is not None:
            cancellation.check()
        with clock.stage("store"):
            self.store.add(classifier)
        self._classifiers.put(classifier)
        return Adapted(classifier, clock.milliseconds())

    def predict(
        self,
        images: Sequence[bytes],
        classifier: str,
        *,
        cancellation: Cancellation | None = None,
    ) -> Predicted:
        """Class probabilities of images (file bytes) under a classifier, by id or name.

        Args:
            cancellation: drops the work that is left when it is raised.

        Raises:
            ServiceError: anything wrong with the request.
        """
        self._need_ready()
        clock = StageClock()
        found = self.find_classifier(classifier)
        model = self.models.get(found.model)
        if model is None or model.embedder_sha256 != found.embedder_sha256:
            raise ServiceError(
                ErrorCode.MODEL_CHANGED,
                f"Classifier {classifier!r} was adapted on a version of model {found.model!r} that "
                "is no longer served. Adapt again, or restore that bundle.",
                model=found.model,
                embedder_sha256=found.embedder_sha256,
            )
        with self.images.admit(len(images)):
            embeddings = self._embed(images, model, clock, cancellation)
        with clock.stage("classify"):
            probabilities = found.probabilities(embeddings)
        return Predicted(found, probabilities, clock.milliseconds())

    def find_model(self, name: str | None) -> Model:
        """The model of that name, the default one for None.

        Raises:
            ServiceError: MODEL_NOT_FOUND.
        """
        key = self.default_model if name is None else name
        if key not in self.models:
            raise ServiceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"There is no model {key!r}. Served are: {', '.join(self.models)}.",
                received=key,
                available=list(self.models),
            )
        return self.models[key]

    def find_classifier(self, id_or_name: str) -> Classifier:
        """A stored classifier, by id or, failing that, the newest of that name.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        known = self.store.resolve(id_or_name)
        found = None if known is None else self._classifiers.get(known)
        if known is not None and found is None:
            found = self.store.find(id_or_name)
            if found is not None:
                self._classifiers.put(found)
        if found is None:
            raise _no_classifier(id_or_name)
        return found

    def delete_classifier(self, id_or_name: str) -> None:
        """Delete what `find_classifier` finds.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        known = self.store.resolve(id_or_name)
        if known is None or not self.store.delete(known):
            raise _no_classifier(id_or_name)
        self._classifiers.discard(known)

    def _solve(
        self,
        head: Head,
        phi: NDArray[np.float32],
        classes: NDArray[np.intp],
        ways: int,
        horizon: float,
    ) -> NDArray[np.float32]:
        """W(T), within `max_solve_seconds`."""
        cancel = np.zeros(1, dtype=np.bool_)
        deadline = Timer(self.settings.max_solve_seconds, cancel.fill, (True,))
        deadline.daemon = True
        deadline.start()
        try:
            solution = head.adapt(phi, classes, ways, horizon=horizon, cancel=cancel)
        except FlowError as error:
            raise ServiceError(
                ErrorCode.CANNOT_ADAPT,
                f"These images cannot be adapted to as asked: {error}.",
                horizon=horizon,
            ) from error
        finally:
            deadline.cancel()
        return solution.W.astype(np.float32)

    def _need_ready(self) -> None:
        self.warm()
        if not self.ready:
            raise ServiceError(
                ErrorCode.NOT_READY, "The server is stopping or could not start; try another."
            )

    def _embed(
        self,
        files: Sequence[bytes],
        model: Model,
        clock: StageClock,
        cancellation: Cancellation | None,
    ) -> NDArray[np.float32]:
        """Embeddings (n, d) of n image files."""
        with model.turn(len(files), cancellation) as turn:
            with clock.stage("decode"):
                images = self._decoders.prepare(files, model.bundle.manifest.preprocessing, turn)
            with clock.stage("embed"):
                return turn.embed(images)


def _choose_default(settings: Settings, models: Mapping[str, Model]) -> str:
    wanted = settings.default_model
    if wanted is None:
        return PREFERRED_MODEL if PREFERRED_MODEL in models else next(iter(models))
    if wanted not in models:
        raise StartupError(
            f"default model {wanted!r} is not in {settings.models_dir}; there are: "
            f"{', '.join(models)}"
        )
    return wanted


def _check_classes(labels: tuple[str, ...], examples: int, head: Head, model: str) -> None:
    if examples == 0:
        raise ServiceError(
            ErrorCode.CANNOT_ADAPT,
            "No support image was received. Send at least one image of each of two or more "
            "classes.",
            received_images=0,
        )
    if len(labels) == 1:
        raise ServiceError(
            ErrorCode.CANNOT_ADAPT,
            f"All {examples} support images carry the label {labels[0]!r}. A classifier needs at "
            "least two classes; send images of a second one.",
            received_classes=1,
            least_classes=2,
        )
    if head.ways is not None and len(labels) != head.ways:
        raise ServiceError(
            ErrorCode.CANNOT_ADAPT,
            f"Model {model!r} is tied to {head.ways} classes; received {len(labels)}. Send exactly "
            f"{head.ways}, or use a model with a zero or prototype start.",
            received_classes=len(labels),
            needed_classes=head.ways,
        )


def _no_classifier(id_or_name: str) -> ServiceError:
    return ServiceError(
        ErrorCode.CLASSIFIER_NOT_FOUND,
        f"There is no classifier with the id or name {id_or_name!r}. GET /classifiers lists them.",
        received=id_or_name,
    )


def _compile_flow() -> None:
    """Solve a small task in both formulations: Numba compiles, or loads what it compiled before."""
    head = Head("zero", 1.0, 0.0, "uniform", SolverSettings(1e-3, 1e-3, 1000))
    for features in (1, 8):
        phi = np.linspace(-1.0, 1.0, 4 * features, dtype=np.float32).reshape(4, features)
        head.adapt(phi, np.array([0, 0, 1, 1]), 2)
