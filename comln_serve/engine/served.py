"""The models that are served, by name, and their exchange for those of the folder of bundles while requests run."""

import logging
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock, Thread

from pydantic import BaseModel, Field

from comln_serve.configuration.settings import Settings
from comln_serve.counts import SharedCounts
from comln_serve.domain.classifier import ClassifierRecord
from comln_serve.domain.words import listed
from comln_serve.engine.bundles import load_bundles, models_folder, open_model
from comln_serve.engine.models import Model
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.storage import Store

logger = logging.getLogger(__name__)

PREFERRED_MODEL = "photos-efficientnet-lite0"


class ModelsReloaded(BaseModel):
    """Names of models, by what reloading did to them."""

    default: str = Field(description="The default model now.")
    added: list[str]
    replaced: list[str] = Field(description="Their bundle has changed.")
    removed: list[str]
    unchanged: list[str]


class Models(dict[str, Model]):
    """Models by name, one of them the default.

    Attributes:
        users: number of running requests that have these models; see `ServedModels`.
    """

    users = 0

    def __init__(self, settings: Settings, models: Mapping[str, Model]) -> None:
        """Choose the default.

        Raises:
            StartupError: the settings name a model that does not exist.
        """
        wanted = settings.default_model
        if wanted is None:
            wanted = PREFERRED_MODEL if PREFERRED_MODEL in models else next(iter(models))
        if wanted not in models:
            raise StartupError(
                f"default model {wanted!r} is not in {models_folder(settings)}; there are: {', '.join(models)}"
            )
        super().__init__(models)
        self.default = wanted

    def find(self, name: str | None) -> Model:
        """The model of that name, the default one for None.

        Raises:
            ServiceError: MODEL_NOT_FOUND.
        """
        key = self.default if name is None else name
        if key not in self:
            raise ServiceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"There is no model {key!r}. Served are: {', '.join(self)}.",
                received=key,
                available=list(self),
            )
        return self[key]

    def embedding_like(self, name: str, embedder_sha256: str) -> Model:
        """The model whose network and preprocessing have that hash, of several the one of that name.

        Raises:
            ServiceError: MODEL_CHANGED, there is none.
        """
        alike = [model for model in self.values() if model.embedder_sha256 == embedder_sha256]
        if not alike:
            raise ServiceError(
                ErrorCode.MODEL_CHANGED,
                f"The embeddings are of model {name!r:.100} with embedder_sha256 {embedder_sha256!r:.100}, and no "
                f"model of this server has that; served are {', '.join(self)}. Serve that bundle, or send the images "
                "to POST /adapt.",
                model=name[:100],
                embedder_sha256=embedder_sha256[:100],
            )
        return next((model for model in alike if model.name == name), alike[0])

    def of(self, classifier: ClassifierRecord) -> Model:
        """The model a classifier was adapted on.

        Raises:
            ServiceError: MODEL_CHANGED, it is not served, or its embedder has changed.
        """
        model = self.get(classifier.model)
        if model is None or model.embedder_sha256 != classifier.embedder_sha256:
            why = (
                f"model {classifier.model!r}, which this server does not have; served are {', '.join(self)}"
                if model is None
                else f"a version of model {classifier.model!r} that is no longer served"
            )
            called = classifier.id if classifier.name is None else f"{classifier.name}@{classifier.version}"
            raise ServiceError(
                ErrorCode.MODEL_CHANGED,
                f"Classifier {called!r} was adapted on {why}. Send its images to POST /adapt "
                "again, or restore that bundle.",
                model=classifier.model,
                embedder_sha256=classifier.embedder_sha256,
            )
        return model


class ServedModels:
    """The models that are served now, and those before them that running requests still use. Thread-safe.

    Attributes:
        now: the models that a new request gets.
    """

    def __init__(self, models: Models) -> None:
        self.now = models
        self._before: list[Models] = []
        self._lock = Lock()

    @contextmanager
    def using(self) -> Generator[Models, None, None]:
        """The models of one request: they stay as they are during the block, and none of them is closed."""
        with self._lock:
            models = self.now
            models.users += 1
        try:
            yield models
        finally:
            with self._lock:
                models.users -= 1
            self._close_unused()

    def exchange(self, models: Models) -> None:
        """Give new requests these models. Those that they replace are closed when no request uses them any more."""
        with self._lock:
            self._before.append(self.now)
            self.now = models
        self._close_unused()

    def close(self) -> None:
        """Close all models."""
        for model in _distinct([self.now, *self._before]):
            model.close()

    def _close_unused(self) -> None:
        if not self._before:
            return
        with self._lock:
            over = [models for models in self._before if not models.users]
            self._before = [models for models in self._before if models.users]
            used = _distinct([self.now, *self._before])
        for model in _distinct(over):
            if model not in used:
                # Not here: a batch whose requests have been given up may still be running.
                Thread(target=model.close, name=f"close-{model.name}", daemon=True).start()


def reopen(served: Models, settings: Settings, shared: SharedCounts) -> tuple[Models, ModelsReloaded]:
    """Open and warm the bundles of `models_folder` that are new or have changed; take the others over.

    Args:
        shared: of the processes of this server; each does this.

    Raises:
        ServiceError: CANNOT_RELOAD, a bundle or the default model cannot be used. Nothing stays open then.
    """
    if not all(model.on_this_machine for model in served.values()):
        raise _cannot_reload(
            "The models of this server run on other machines, which read the bundles when they start. Deploy the Ray "
            "Serve application again: it replaces one replica after another."
        )
    opened: dict[str, Model] = {}
    try:
        with ExitStack() as after_an_error:
            bundles = {bundle.name: bundle for bundle in load_bundles(settings)}
            for name, bundle in bundles.items():
                if name not in served or served[name].bundle.manifest != bundle.manifest:  # it has the files' checksums
                    opened[name] = model = open_model(bundle, settings, shared)
                    after_an_error.callback(model.close)
                    model.warm()
            models = Models(settings, {name: opened.get(name) or served[name] for name in bundles})
            after_an_error.pop_all()
    except StartupError as error:
        raise _cannot_reload(f"{error}. Nothing was changed; put it right, and reload again.") from error
    return models, ModelsReloaded(
        default=models.default,
        added=[name for name in opened if name not in served],
        replaced=[name for name in opened if name in served],
        removed=[name for name in served if name not in bundles],
        unchanged=[name for name in bundles if name not in opened],
    )


def warn_of_absent(models: Models, store: Store, settings: Settings) -> None:
    """Log a warning of stored classifiers whose models are not served."""
    try:
        stored = store.models()
    except ServiceError:  # the models are served all the same
        return
    absent = sorted(stored.keys() - models.keys())
    if absent:
        logger.warning(
            "%d stored classifier(s) are of models that are not served here, and cannot be used: %s; the models are "
            "read from %s",
            sum(stored[name] for name in absent),
            listed(absent),
            models_folder(settings).absolute(),
        )


def _distinct(several: list[Models]) -> list[Model]:
    return list(dict.fromkeys(model for models in several for model in models.values()))


def _cannot_reload(message: str) -> ServiceError:
    return ServiceError(ErrorCode.CANNOT_RELOAD, message)
