"""Makes classifiers, from images or from the changed support set of an existing one."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import HorizonRule
from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import ID_PREFIX, Classifier, ClassifierInfo
from comln_serve.domain.support import SupportSet
from comln_serve.engine.adapting.fitting import Fit, check_classes, fit
from comln_serve.engine.adapting.idempotency import fingerprint
from comln_serve.engine.adapting.solves import Solves
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.engine.clock import StageClock
from comln_serve.engine.embedding.embedder import Embedder
from comln_serve.engine.model import Model
from comln_serve.engine.models import Models
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import usable_cpus
from comln_serve.storage import ChangedError, IdempotencyKey, KeyTakenError, Resolved, utc_now

Change = Callable[[ClassifierInfo, SupportSet], SupportSet]

# A solve with thousands of support images takes hundreds of megabytes.
_MOST_SOLVES, _MOST_WAITING = 4, 64


@dataclass(frozen=True)
class Adapted:
    """A classifier, and the milliseconds that each stage of making it took.

    Attributes:
        replayed: an earlier request with the same idempotency key made it.
    """

    classifier: Classifier
    timings_ms: dict[str, float]
    replayed: bool = False


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Attributes:
        tenant: whose classifiers the request can use.
        idempotency_key: repeating a request with its key makes no second classifier.
        cancellation: ends the request's work when raised.
    """

    tenant: str = ""
    idempotency_key: str | None = None
    cancellation: Cancellation | None = None

    def check(self) -> None:
        """Raise ServiceError CLIENT_GONE if the request has been cancelled."""
        if self.cancellation is not None:
            self.cancellation.check()


class Adaptation:
    """Embeds support images, solves for the classifier and stores it. Thread-safe."""

    def __init__(self, settings: Settings, models: Models, embedder: Embedder, catalogue: Catalogue) -> None:
        self._settings, self._models = settings, models
        self._embedder, self._catalogue = embedder, catalogue
        at_once = min(usable_cpus(), _MOST_SOLVES)
        self._solves = Solves(at_once, _MOST_WAITING, settings.max_queue_seconds)

    def adapt(
        self,
        support: Sequence[tuple[bytes, str]],
        caller: Caller,
        *,
        model: str | None,
        name: str | None,
        horizon: float | HorizonRule | None,
        promote: bool,
        metadata: Mapping[str, str],
        expires_in_seconds: int | None,
    ) -> Adapted:
        """See `Engine.adapt`."""
        clock = StageClock()
        options = {
            "model": model,
            "name": name,
            "horizon": horizon,
            "promote": promote,
            "metadata": dict(metadata),
            "expires_in_seconds": expires_in_seconds,
        }
        key = self._key(caller, "adapt", support, **options)

        def make() -> Classifier:
            chosen = self._models.find(model)
            labels = tuple(label for _, label in support)
            check_classes(labels, chosen)
            self._check_size(len(labels))
            self._check_room(caller)
            with self._embedder.images.admit(len(support)):
                phi = self._embed(support, chosen, clock, caller)
                examples = SupportSet.of(phi, labels)
                with self._solves.turn(caller.check, object()):
                    fitted = self._fit(chosen, examples, horizon, clock)
            now = utc_now()
            lifetime = expires_in_seconds
            classifier = Classifier(
                **vars(fitted),
                id=_new_id(),
                name=name,
                model=chosen.name,
                embedder_sha256=chosen.embedder_sha256,
                created_at=now,
                metadata=metadata,
                expires_at=None if lifetime is None else now + timedelta(seconds=lifetime),
            )
            caller.check()
            with clock.stage("store"), self._catalogue.changing(caller.tenant) as store:
                limit = self._settings.max_classifiers
                return store.add(classifier, examples, limit=limit, promote=promote, key=key)

        return self._once(key, caller, clock, make)

    def add_examples(
        self, reference: str, support: Sequence[tuple[bytes, str]], caller: Caller, *, promote: bool
    ) -> Adapted:
        """See `Engine.add_examples`."""
        clock = StageClock()
        key = self._key(caller, "examples", support, reference=reference, promote=promote)
        labels = [label for _, label in support]
        # By embedder, as a retry may find the name on another model.
        embedded: dict[str, NDArray[np.float32]] = {}

        def embed(info: ClassifierInfo) -> NDArray[np.float32]:
            model = self._models.of(info)
            self._check_size(sum(info.examples) + len(labels))
            check_classes((*info.labels, *labels), model)
            self._check_version(info, caller)
            if model.embedder_sha256 not in embedded:
                embedded[model.embedder_sha256] = self._embed(support, model, clock, caller)
            return embedded[model.embedder_sha256]

        def extend(info: ClassifierInfo, examples: SupportSet) -> SupportSet:
            return examples.extended(embed(info), labels)

        def make() -> Classifier:
            with self._embedder.images.admit(len(support)):
                # Embeds first, so as not to keep others from solving meanwhile.
                embed(self._catalogue.describe(reference, caller.tenant))
                return self._change(reference, extend, caller, clock, promote=promote, key=key)

        return self._once(key, caller, clock, make)

    def remove_example(self, reference: str, number: int, caller: Caller, *, promote: bool) -> Adapted:
        """See `Engine.remove_example`."""
        clock = StageClock()

        def shrink(_info: ClassifierInfo, examples: SupportSet) -> SupportSet:
            try:
                return examples.without(number)
            except KeyError:
                raise _no_example(reference, number) from None

        made = self._change(reference, shrink, caller, clock, promote=promote, key=None)
        return Adapted(made, clock.milliseconds())

    def _change(
        self,
        reference: str,
        change: Change,
        caller: Caller,
        clock: StageClock,
        *,
        promote: bool,
        key: IdempotencyKey | None,
    ) -> Classifier:
        """Adapt to a changed support set. Retry if another server changes the classifier meanwhile.

        Within this server, changes of a classifier run one after another. The retries end: each
        means that another request has finished.
        """
        while True:
            with suppress(ChangedError), self._solves.turn(caller.check, (caller.tenant, reference)):
                info, examples = self._catalogue.support(reference, caller.tenant)
                self._check_version(info, caller)
                changed = change(info, examples)
                horizon = info.horizon if info.horizon_rule == "given" else info.horizon_rule
                fitted = self._fit(self._models.of(info), changed, horizon, clock)
                caller.check()
                with clock.stage("store"), self._catalogue.changing(caller.tenant) as store:
                    if info.name is None:
                        made = _refitted(info, fitted, revision=info.revision + 1)
                        store.replace(made, changed, key=key)
                        return made
                    made = _refitted(info, fitted, id=_new_id(), created_at=utc_now(), revision=1)
                    return store.add(
                        made,
                        changed,
                        limit=self._settings.max_classifiers,
                        promote=promote,
                        key=key,
                        derived_from=(reference, Resolved(info.id, info.revision)),
                    )

    def _once(
        self, key: IdempotencyKey | None, caller: Caller, clock: StageClock, make: Callable[[], Classifier]
    ) -> Adapted:
        """Make a classifier, or return the one that a request with the same key has made."""
        while True:
            earlier = None if key is None else self._catalogue.of(caller.tenant).made_by(key)
            if earlier is not None:
                return Adapted(self._find_earlier(earlier, caller), clock.milliseconds(), True)
            try:
                made = make()
            except KeyTakenError:
                continue  # a request with the same key has just made one
            except ServiceError as error:
                full = error.code is ErrorCode.TOO_MANY_CLASSIFIERS
                if full and key is not None and self._catalogue.of(caller.tenant).made_by(key):
                    continue  # that request took the last place
                raise
            self._catalogue.remember(made)
            return Adapted(made, clock.milliseconds())

    def _find_earlier(self, classifier_id: str, caller: Caller) -> Classifier:
        found = self._catalogue.of(caller.tenant).find(classifier_id)
        if found is None:
            raise ServiceError(
                ErrorCode.CLASSIFIER_NOT_FOUND,
                f"The first request with this Idempotency-Key made classifier {classifier_id!r}, "
                "which has been deleted since, or has expired. Send a new key to make another.",
                received=classifier_id,
            )
        return found

    def _key(
        self, caller: Caller, operation: str, support: Sequence[tuple[bytes, str]], **options: object
    ) -> IdempotencyKey | None:
        if caller.idempotency_key is None:
            return None
        lifetime = timedelta(seconds=self._settings.idempotency_seconds)
        return IdempotencyKey(caller.idempotency_key, fingerprint(operation, support, options), utc_now() + lifetime)

    def _embed(
        self, support: Sequence[tuple[bytes, str]], model: Model, clock: StageClock, caller: Caller
    ) -> NDArray[np.float32]:
        return self._embedder.embed([data for data, _ in support], model, clock, caller.cancellation)

    def _fit(self, model: Model, support: SupportSet, horizon: float | HorizonRule | None, clock: StageClock) -> Fit:
        return fit(model, support, horizon, self._settings.max_solve_seconds, clock)

    def _check_room(self, caller: Caller) -> None:
        """Refuse early, before images are decoded, if the store is full. The store checks again
        when it adds the classifier, as others may have taken the room.
        """
        self._catalogue.of(caller.tenant).check_room(self._settings.max_classifiers)

    def _check_version(self, info: ClassifierInfo, caller: Caller) -> None:
        """Refuse a new version if the store is full. Unnamed classifiers change in place."""
        if info.name is not None:
            self._check_room(caller)

    def _check_size(self, examples: int) -> None:
        if examples > self._settings.max_examples:
            raise ServiceError(
                ErrorCode.TOO_MANY_IMAGES,
                f"The classifier would have {examples} support images; at most "
                f"{self._settings.max_examples} are allowed. Remove some first.",
                received_images=examples,
                allowed_images=self._settings.max_examples,
            )


def _refitted(info: ClassifierInfo, fitted: Fit, **more: Any) -> Classifier:
    """The classifier with the result of a new fit, and `more` fields changed."""
    fields: dict[str, Any] = {**vars(info), **vars(fitted), **more}
    return Classifier(**fields)


def _new_id() -> str:
    return ID_PREFIX + uuid.uuid4().hex


def _no_example(reference: str, number: int) -> ServiceError:
    return ServiceError(
        ErrorCode.EXAMPLE_NOT_FOUND,
        f"Classifier {reference!r} has no example {number}. GET /classifiers/{reference}/examples "
        "lists them; a number that was removed is not given again.",
        received=number,
    )
