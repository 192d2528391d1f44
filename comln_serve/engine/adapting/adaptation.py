"""Makes classifiers, from images or from the support set of an existing one."""

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from comln_serve.bundle.head import HorizonRule
from comln_serve.bundle.manifest import as_stored
from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import Classifier, ClassifierRecord
from comln_serve.domain.rejected import Rejected, without
from comln_serve.domain.support import SupportSet, labels_to_show
from comln_serve.engine.adapting.changes import Change
from comln_serve.engine.adapting.fitting import check_classes, fit
from comln_serve.engine.adapting.seen import Seen
from comln_serve.engine.cancellation import Caller
from comln_serve.engine.classifiers.catalogue import Catalogue
from comln_serve.engine.clock import StageClock
from comln_serve.engine.embedding.decoders import File, Upload
from comln_serve.engine.models import Model
from comln_serve.engine.queues import Queue
from comln_serve.engine.served import Models
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import ChangedError, IdempotencyKey, KeyTakenError, Resolved, TenantStore, utc_now

Support = Sequence[tuple[File, str]]
"""Labelled images: file bytes, label."""

Embedding = Callable[..., AbstractContextManager[Upload]]
"""See `Engine._embedding`."""

Changed = tuple[Classifier, SupportSet]
"""What takes the place of a classifier and its support set; without its name, metadata and time of expiry."""


@dataclass(frozen=True)
class Adapted:
    """A classifier, and the milliseconds that each stage of making it took.

    Attributes:
        replayed: an earlier request with the same idempotency key made it.
        rejected: images that it was made without.
    """

    classifier: Classifier
    timings_ms: dict[str, float]
    replayed: bool = False
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class NewClassifier:
    """Options of a new classifier.

    Attributes:
        model: a served model's name; None: the default model.
        name: None, or a name, whose next version the classifier becomes.
        horizon: T, or the rule that sets it ("learned" or "auto"), now and whenever examples change;
            None: the model's own rule.
        promote: let the name stand for this version; it always stands for its first version.
        metadata: stored with the classifier.
        expires_in_seconds: when the classifier expires; None: never.
    """

    model: str | None = None
    name: str | None = None
    horizon: float | HorizonRule | None = None
    promote: bool = True
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    expires_in_seconds: int | None = None


@dataclass
class ClassifierMaker:
    """Makes or changes one classifier for one request: embeds support images, solves for the classifier, stores it.

    Attributes:
        embedding: embeds image files during a block.
        solves: the queue of all requests.
        models: those served when the request began.
        partial: leave out images that cannot be used.
    """

    settings: Settings
    catalogue: Catalogue
    embedding: Embedding
    solves: Queue
    models: Models
    caller: Caller
    partial: bool

    def __post_init__(self) -> None:
        self._store = self.catalogue.of(self.caller.tenant)
        self._clock = StageClock()
        self._key: IdempotencyKey | None = None
        self._rejected: tuple[Rejected, ...] = ()

    def adapt(self, support: Support, new: NewClassifier) -> Adapted:
        """See `Engine.adapt`."""

        def make() -> Classifier:
            model, labels = self.models.find(new.model), [label for _, label in support]
            self._check_new(labels, model)
            examples = self._embedded(support, model)
            _check_classes_left(labels, examples.classes, self._rejected)
            return self._fit_new(model, examples, new)

        return self._once("adapt", support, vars(new), make)

    def adapt_to_embeddings(
        self, support: SupportSet, embedder_sha256: str, new: NewClassifier, digest: str
    ) -> Adapted:
        """See `Engine.adapt_to_embeddings`."""

        def make() -> Classifier:
            model = self.models.embedding_like(new.model or self.models.default, embedder_sha256)
            manifest = model.bundle.manifest
            expected = len(manifest.preprocessing.shares) * manifest.embedding_size
            if support.embeddings.shape[1] != expected:
                raise ServiceError(
                    ErrorCode.INVALID_REQUEST,
                    f"Each embedding has {support.embeddings.shape[1]} numbers; those of model {model.name!r} have "
                    f"{expected}. Send the file as it was exported.",
                    received=support.embeddings.shape[1],
                    allowed=expected,
                )
            self._check_new(support.labels, model)
            embeddings = as_stored(support.embeddings, manifest.stored_embeddings)
            return self._fit_new(model, replace(support, embeddings=embeddings), new)

        return self._once("embeddings", (), {**vars(new), "digest": digest}, make)

    def add_examples(self, reference: str, support: Support, *, promote: bool) -> Adapted:
        """See `Engine.add_examples`."""
        # By embedder, as a retry may find the name on another model.
        embedded: dict[str, SupportSet] = {}

        def embed(stored: ClassifierRecord) -> SupportSet:
            model, labels = self.models.of(stored), [*stored.labels, *(label for _, label in support)]
            self._check_size(sum(stored.examples) + len(support), len(set(labels)))
            check_classes(labels, model)
            self._check_version(stored)
            if model.embedder_sha256 not in embedded:
                embedded[model.embedder_sha256] = self._embedded(support, model, stored)
            return embedded[model.embedder_sha256]

        def extend(stored: Classifier, examples: SupportSet) -> Changed:
            extended = examples.extended(embed(stored))
            _check_classes_left([label for _, label in support], extended.classes, self._rejected)
            return self._fit_again(stored, extended)

        def make() -> Classifier:
            # Embeds first, so as not to keep others from solving meanwhile.
            embed(self._store.describe(reference))
            return self._change(reference, extend, promote=promote)

        return self._once("examples", support, {"reference": reference, "promote": promote}, make)

    def change(self, reference: str, change: Change, *, promote: bool) -> Adapted:
        """See `Engine.change`."""

        def apply(stored: Classifier, examples: SupportSet) -> Changed:
            support = change.support(reference, examples)
            if len(support.classes) > len(stored.labels):
                self._check_size(len(support), len(support.classes))
            kept = change.keeping_weights(stored, support)
            return self._fit_again(stored, support, change.horizon) if kept is None else (kept, support)

        options = {"reference": reference, **change.options(), "promote": promote}
        return self._once(change.operation, (), options, lambda: self._change(reference, apply, promote=promote))

    def _once(
        self, operation: str, support: Support, options: Mapping[str, object], make: Callable[[], Classifier]
    ) -> Adapted:
        """Make a classifier, or return the one that a request with the same key has made.

        Args:
            operation, support, options: as of `fingerprint`.
        """
        if self.partial:  # else left out: the fingerprints of whole requests stay what they were
            options = {**options, "partial": True}
        if self.caller.idempotency_key is not None:
            expires_at = utc_now() + timedelta(seconds=self.settings.idempotency_seconds)
            known_by = fingerprint(operation, support, options)
            self._key = IdempotencyKey(self.caller.idempotency_key, known_by, expires_at)
        while True:
            earlier = None if self._key is None else self._store.made_by(self._key)
            if earlier is not None:
                identifier, rejected = earlier
                if self._store.resolve(identifier) is None:
                    raise _gone(identifier)
                made = self._store.find(identifier)
                return Adapted(made, self._clock.milliseconds(), replayed=True, rejected=rejected)
            try:
                made = make()
            except KeyTakenError:
                continue  # a request with the same key has just made one
            except ServiceError:
                if self._key is not None and self._store.made_by(self._key):
                    continue  # that request did it meanwhile: it took the last place, or nothing is left to change
                raise
            self.catalogue.remember(made)
            return Adapted(made, self._clock.milliseconds(), rejected=self._rejected)

    def _fit_new(self, model: Model, examples: SupportSet, new: NewClassifier) -> Classifier:
        with self.solves.turn(self.caller):
            made = self._fit(model, examples, new.horizon)
        lifetime = new.expires_in_seconds
        expires_at = None if lifetime is None else made.created_at + timedelta(seconds=lifetime)
        made = replace(made, name=new.name, metadata=new.metadata, expires_at=expires_at)
        with self._storing() as store:
            limit = self.settings.max_classifiers
            return store.add(made, examples, limit=limit, promote=new.promote, key=self._key)

    def _change(
        self, reference: str, apply: Callable[[Classifier, SupportSet], Changed], *, promote: bool
    ) -> Classifier:
        """Change a classifier and its support set. Retry if another server changes the classifier meanwhile.

        Within this server, changes of a classifier run one after another. The retries end: each
        means that another request has finished.
        """
        while True:
            with suppress(ChangedError), self.solves.turn(self.caller, reference):
                stored, examples = self._store.support(reference)
                self._check_version(stored)
                made, changed = apply(stored, examples)
                made = replace(made, name=stored.name, metadata=stored.metadata, expires_at=stored.expires_at)
                with self._storing() as store:
                    if made.name is not None:
                        expected = reference, Resolved(stored.id, stored.revision)
                        limit, key = self.settings.max_classifiers, self._key
                        return store.add(made, changed, limit=limit, promote=promote, key=key, derived_from=expected)
                    made = replace(made, id=stored.id, created_at=stored.created_at, revision=stored.revision + 1)
                    store.replace(made, changed, key=self._key)
                    return made

    def _embedded(self, support: Support, model: Model, stored: ClassifierRecord | None = None) -> SupportSet:
        """The images that can be used; `stored` is the classifier that gets them, None: a new one. Notes the others."""
        files, labels = [file for file, _ in support], [label for _, label in support]
        shown = {} if stored is None else {one.label: one.thumbnail for one in stored.classes}
        seen = Seen(labels, labels_to_show(labels, shown) if self.settings.keep_thumbnails else ())
        # The images are in work no longer than this: a solve may wait for seconds, and keeps no other images out.
        with self.embedding(
            files, model, self._clock, self.caller, seen.take, all_views=True, partial=self.partial
        ) as upload:
            embeddings = upload.job.wait()
        self._rejected = rejected = upload.rejected
        if self._key is not None:  # for the answer to a repeated request
            self._key = replace(self._key, rejected=rejected)
        kept = without(labels, rejected)
        # Before adapting: examples that are added later then give the same classifier as all of them at once.
        embeddings = as_stored(embeddings.reshape(len(embeddings), -1), model.bundle.manifest.stored_embeddings)
        return SupportSet.of(embeddings, seen.hashes(rejected), kept, seen.thumbnails(rejected))

    def _fit_again(
        self, stored: Classifier, support: SupportSet, horizon: float | HorizonRule | None = None
    ) -> Changed:
        """Adapt to a support set in place of a classifier's; `horizon` None: as the classifier has it."""
        if horizon is None:
            horizon = stored.horizon if stored.horizon_rule == "given" else stored.horizon_rule
        return self._fit(self.models.of(stored), support, horizon), support

    def _fit(self, model: Model, support: SupportSet, horizon: float | HorizonRule | None) -> Classifier:
        seconds = self.settings.max_solve_seconds
        return fit(model, support, horizon, seconds, self._clock, self.caller.cancellation)

    @contextmanager
    def _storing(self) -> Generator[TenantStore, None, None]:
        """The tenant's store, for the last stage of a request that its client still waits for."""
        self.caller.cancellation.check()
        with self._clock.stage("store"), self.catalogue.changing(self.caller.tenant) as store:
            yield store

    def _check_new(self, labels: Sequence[str], model: Model) -> None:
        check_classes(labels, model)
        self._check_size(len(labels), len(set(labels)))
        self._store.check_room(self.settings.max_classifiers)

    def _check_version(self, stored: ClassifierRecord) -> None:
        """Refuse a new version if the store is full. Unnamed classifiers change in place."""
        if stored.name is not None:
            self._store.check_room(self.settings.max_classifiers)

    def _check_size(self, examples: int, classes: int) -> None:
        if classes > self.settings.max_classes:
            raise ServiceError(
                ErrorCode.CANNOT_ADAPT,
                f"The classifier would have {classes} classes; at most {self.settings.max_classes} are allowed (the "
                "server's setting --max-classes).",
                received_classes=classes,
                allowed_classes=self.settings.max_classes,
            )
        if examples > self.settings.max_examples:
            raise ServiceError(
                ErrorCode.TOO_MANY_IMAGES,
                f"The classifier would have {examples} support images; at most "
                f"{self.settings.max_examples} are allowed. Remove some first.",
                received_images=examples,
                allowed_images=self.settings.max_examples,
            )


def fingerprint(operation: str, support: Sequence[tuple[File, str]], options: Mapping[str, object]) -> str:
    """A hash of a request's content: the same for equal requests in any encoding.

    Args:
        support: image files, or the errors of those refused already, and their labels.
        options: JSON values.
    """
    images = [
        [hashlib.sha256(file).hexdigest() if isinstance(file, bytes) else file.message, label]
        for file, label in support
    ]
    text = json.dumps([operation, images, options], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _check_classes_left(labels: Sequence[str], left: Sequence[str], rejected: Sequence[Rejected]) -> None:
    """Check that images that cannot be used took no class with them: of the labels (M,) of all images, only those of
    the classes that are left.
    """
    lost = [label for label in dict.fromkeys(labels) if label not in left]
    if not lost:
        return
    first = next(one for one in rejected if labels[one.index] == lost[0])
    raise ServiceError(
        ErrorCode.CANNOT_ADAPT,
        f"None of the images labelled {lost[0]!r} can be used. Image {first.index + 1} of {len(labels)}: "
        f"{first.message} Send one that can be used, or leave the label out; the detail has all such labels and "
        "images.",
        lost_classes=lost,
        rejected=[one.facts() for one in rejected],
    )


def _gone(classifier_id: str) -> ServiceError:
    return ServiceError(
        ErrorCode.CLASSIFIER_NOT_FOUND,
        f"The first request with this Idempotency-Key made classifier {classifier_id!r}, which has been "
        "deleted since, or has expired. Send a new key to make another.",
        received=classifier_id,
    )
