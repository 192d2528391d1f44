"""Served models: bundles with the batchers that compute their embeddings, and all of them by name."""

from collections.abc import Mapping
from dataclasses import replace

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import ClassifierRecord
from comln_serve.engine.bundles import models_folder
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.batcher import Batcher, BatchLimits
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.machine import RunsOn, cpus_of_each

PREFERRED_MODEL = "photos-efficientnet-lite0"


class Model:
    """A bundle and the batcher that embeds with its backbone. Thread-safe.

    Attributes:
        on_this_machine: whether the backbone runs on this machine.
        provider: what it runs on; known once the model is warmed.
    """

    on_this_machine = True
    provider: RunsOn

    def __init__(self, bundle: Bundle, batcher: Batcher) -> None:
        self.bundle, self.batcher = bundle, batcher
        self.embedder_sha256 = bundle.embedder_sha256

    @property
    def name(self) -> str:
        return self.bundle.name

    def warm(self) -> None:
        """Prepare to embed. Called before the first image."""
        raise NotImplementedError

    def check(self) -> None:
        """Check, for readiness, that the model can embed.

        Raises:
            ServiceError: NOT_READY.
        """
        if self.batcher.stuck:
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"The threads that embed for model {self.name!r} have ended or hang. Use another "
                "server, and start this one anew.",
            )

    def close(self) -> None:
        """Finish running batches, then end the threads."""
        self.batcher.close()


class LocalModel(Model):
    """Embeds in this process: in batches, which a CPU embeds one on each core."""

    def __init__(self, bundle: Bundle, settings: Settings, processes: int) -> None:
        """Open the backbone. Each of the server's processes uses its share of the CPUs.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        threads = settings.inference_threads or cpus_of_each(processes)
        self.backbone = OnnxBackbone(bundle, settings.provider, threads, settings.max_batch_size)
        self.provider = self.backbone.provider
        at_once = 1 if self.backbone.on_gpu else self.backbone.threads  # a CUDA session has one compute stream
        limits = BatchLimits.of(settings, self.backbone.max_batch_size, at_once, gathers=self.backbone.on_gpu)
        super().__init__(bundle, Batcher(self.backbone, limits, name=bundle.name))

    def warm(self) -> None:
        """Run the backbone; on CUDA once in every batch size."""
        self.backbone.warm()
        self.batcher.limits = replace(self.batcher.limits, max_images=self.backbone.max_batch_size)


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
