"""The server's operations as plain calls, without HTTP.

Calls block and are thread-safe. They raise a `ServiceError` for anything wrong with a request. A
`reference` is an id, a name or `name@version` (`comln_serve.domain.reference`) of one tenant's classifier.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import HorizonRule
from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import Classifier, ClassifierInfo
from comln_serve.domain.support import SupportSet
from comln_serve.engine.adapting.adaptation import Adaptation, Adapted, Caller
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.engine.classifiers.housekeeping import Housekeeping
from comln_serve.engine.clock import StageClock
from comln_serve.engine.compilation import compile_flow
from comln_serve.engine.embedding.embedder import Embedder
from comln_serve.engine.model import Model
from comln_serve.engine.models import Models, load_models
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.report import similarity, temperature, unknown_threshold
from comln_serve.storage import Store

__all__ = ["Adapted", "Engine", "Predicted", "load_models"]

logger = logging.getLogger(__name__)

_NO_METADATA: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Predicted:
    """Class probabilities (n, N) of n images, in the order of `classifier.labels`.

    Attributes:
        calibrated: whether the probabilities use a measured temperature.
        similarity: (n,) of each image to its most similar class; None unless requested.
        unknown_threshold: similarity below which an image is unknown; None unless requested, and if
            there is nothing to derive it from.
    """

    classifier: Classifier
    probabilities: NDArray[np.float64]
    timings_ms: dict[str, float]
    calibrated: bool
    similarity: NDArray[np.float64] | None = None
    unknown_threshold: float | None = None


class Engine:
    """The served models, the store of classifiers, and the threads that do the work."""

    def __init__(self, settings: Settings, models: Mapping[str, Model], store: Store) -> None:
        self.settings = settings
        self.models = Models(settings, models)
        self.store = store
        self.ready = False
        self.failure: Exception | None = None
        self._warming = Lock()
        self._warm = False
        self._embedder = Embedder(settings)
        self._catalogue = Catalogue(store, settings.classifier_cache_bytes)
        self._adaptation = Adaptation(settings, self.models, self._embedder, self._catalogue)
        self._housekeeping: Housekeeping | None = None
        self.images = self._embedder.images

    @property
    def default_model(self) -> str:
        return self.models.default

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
                for model in self.models.values():
                    model.warm()
                self._housekeeping = Housekeeping(self.store)
                self.ready = True
            except Exception as error:
                logger.exception("the server cannot get ready")
                self.failure = error

    def check_models(self) -> None:
        """Check, for readiness, that images can be decoded and that every model can embed.

        Raises:
            ServiceError: NOT_READY.
        """
        self._embedder.check()
        for model in self.models.values():
            model.check()

    def check_housekeeping(self) -> None:
        """Check, for readiness, that expired classifiers are still being removed.

        Raises:
            ServiceError: NOT_READY.
        """
        if self._housekeeping is not None:
            self._housekeeping.check()

    def close(self) -> None:
        """Finish running work, end the threads and close the store."""
        self.ready = False
        if self._housekeeping is not None:
            self._housekeeping.close()
        self._embedder.close()
        for model in self.models.values():
            model.close()
        self.store.close()

    def adapt(
        self,
        support: Sequence[tuple[bytes, str]],
        *,
        model: str | None = None,
        name: str | None = None,
        horizon: float | HorizonRule | None = None,
        promote: bool = True,
        metadata: Mapping[str, str] = _NO_METADATA,
        expires_in_seconds: int | None = None,
        idempotency_key: str | None = None,
        tenant: str = "",
        cancellation: Cancellation | None = None,
    ) -> Adapted:
        """Fit a classifier to labelled images (file bytes, label) and store it.

        Args:
            model: a served model's name; default: `default_model`.
            name: name of the classifier, which becomes the name's next version.
            horizon: T, or the rule that sets it ("learned" or "auto"), now and whenever examples
                change; default: the model's own rule.
            promote: let the name stand for this version; it always stands for its first version.
            metadata: stored with the classifier.
            expires_in_seconds: when the classifier expires; default: never.
            idempotency_key: repeating a request with its key makes no second classifier.
            cancellation: ends the work when raised.

        Raises:
            ServiceError: anything wrong with the request; nothing is stored then.
        """
        self._need_ready()
        return self._adaptation.adapt(
            support,
            Caller(tenant, idempotency_key, cancellation),
            model=model,
            name=name,
            horizon=horizon,
            promote=promote,
            metadata=metadata,
            expires_in_seconds=expires_in_seconds,
        )

    def add_examples(
        self,
        reference: str,
        support: Sequence[tuple[bytes, str]],
        *,
        promote: bool = True,
        idempotency_key: str | None = None,
        tenant: str = "",
        cancellation: Cancellation | None = None,
    ) -> Adapted:
        """Adapt a classifier anew, with more labelled images (file bytes, label) after its own.

        A named classifier gets a new version; an unnamed one changes in place. The result equals
        that of adapting to all images at once.

        Args:
            promote, idempotency_key, cancellation: as in `adapt`.

        Raises:
            ServiceError: anything wrong with the request; nothing is changed then.
        """
        self._need_ready()
        caller = Caller(tenant, idempotency_key, cancellation)
        return self._adaptation.add_examples(reference, support, caller, promote=promote)

    def remove_example(
        self,
        reference: str,
        number: int,
        *,
        promote: bool = True,
        tenant: str = "",
        cancellation: Cancellation | None = None,
    ) -> Adapted:
        """Adapt a classifier anew without one of its examples. See `add_examples`.

        Args:
            number: of the example, as in `examples`.

        Raises:
            ServiceError: EXAMPLE_NOT_FOUND; CANNOT_ADAPT, too few classes are left; and others.
        """
        self._need_ready()
        caller = Caller(tenant, cancellation=cancellation)
        return self._adaptation.remove_example(reference, number, caller, promote=promote)

    def predict(
        self,
        images: Sequence[bytes],
        classifier: str,
        *,
        unknown: bool = False,
        tenant: str = "",
        cancellation: Cancellation | None = None,
    ) -> Predicted:
        """Class probabilities of images (file bytes) under a classifier, by reference.

        Args:
            unknown: also return each image's similarity to its class.
            cancellation: ends the work when raised.

        Raises:
            ServiceError: anything wrong with the request.
        """
        self._need_ready()
        clock = StageClock()
        found = self.find_classifier(classifier, tenant)
        model = self.models.of(found)
        with self.images.admit(len(images)):
            embeddings = self._embedder.embed(images, model, clock, cancellation)
        return _classify(found, model, embeddings, clock, unknown=unknown)

    def find_classifier(self, reference: str, tenant: str = "") -> Classifier:
        """A stored classifier with its weights. Its `promoted` may be out of date.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        return self._catalogue.find(reference, tenant)

    def describe_classifier(self, reference: str, tenant: str = "") -> ClassifierInfo:
        """A stored classifier's current description, without its weights.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        return self._catalogue.describe(reference, tenant)

    def list_classifiers(
        self,
        *,
        limit: int,
        before: int | None = None,
        name: str | None = None,
        model: str | None = None,
        tenant: str = "",
    ) -> tuple[list[ClassifierInfo], int | None]:
        """At most `limit` classifiers, newest first, and `before` of the next page, if any.

        Args:
            before: where the page starts; default: with the newest.
            name, model: list only classifiers with this name or model.
        """
        return self._catalogue.of(tenant).page(limit=limit, before=before, name=name, model=model)

    def examples(self, reference: str, tenant: str = "") -> tuple[ClassifierInfo, SupportSet]:
        """A classifier and its support set.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        return self._catalogue.support(reference, tenant)

    def promote(self, reference: str, tenant: str = "") -> ClassifierInfo:
        """Let a classifier's name stand for it. Returns its new description.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND; INVALID_REQUEST, the classifier has no name.
        """
        return self._catalogue.promote(reference, tenant)

    def roll_back(self, name: str, tenant: str = "") -> ClassifierInfo:
        """Let a name stand for the version that was promoted before. Returns that version.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND, NOTHING_TO_ROLL_BACK_TO; INVALID_REQUEST, `name` is
                an id or a version.
        """
        return self._catalogue.roll_back(name, tenant)

    def delete_classifier(self, reference: str, tenant: str = "") -> None:
        """Delete the classifier that a reference stands for.

        Raises:
            ServiceError: CLASSIFIER_NOT_FOUND.
        """
        self._catalogue.delete(reference, tenant)

    def _need_ready(self) -> None:
        self.warm()
        if not self.ready:
            raise ServiceError(ErrorCode.NOT_READY, "The server is stopping or could not start; try another.")


def _classify(
    found: Classifier, model: Model, embeddings: NDArray[np.float32], clock: StageClock, *, unknown: bool
) -> Predicted:
    with clock.stage("classify"):
        calibration = model.bundle.manifest.calibration
        tau = temperature(found, calibration)
        probabilities = found.probabilities(embeddings, 1.0 if tau is None else tau)
        alike = similarity(embeddings, found.W) if unknown else None
        threshold = unknown_threshold(found, calibration) if unknown else None
    return Predicted(found, probabilities, clock.milliseconds(), tau is not None, alike, threshold)
