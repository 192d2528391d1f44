"""Served models: bundles, the batchers that compute their embeddings, and all of them by name."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import comln_serve
from comln_serve.bundle import Bundle, BundleError, find_bundles, load_bundle
from comln_serve.bundle.manifest import MANIFEST
from comln_serve.configuration.settings import Settings
from comln_serve.domain.classifier import ClassifierRecord
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.batcher import Batcher, BatchLimits
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.machine import cpus_of_each

logger = logging.getLogger(__name__)

PREFERRED_MODEL = "photos-efficientnet-lite0"

_PACKAGE = Path(comln_serve.__file__).parent
# Where bundles are looked for if the settings name no folder: the working folder; the package, whose wheel holds the
# photo model; the repository that the package is in.
_FOLDERS = (Path("models"), _PACKAGE / "models", _PACKAGE.parent / "models")


class Model:
    """A bundle and the batcher that embeds with its backbone. Thread-safe.

    Attributes:
        in_this_process: whether the backbone runs in this process.
    """

    in_this_process = True

    def __init__(self, bundle: Bundle, batcher: Batcher) -> None:
        self.bundle, self.batcher = bundle, batcher
        self.embedder_sha256 = bundle.embedder_sha256

    @property
    def name(self) -> str:
        return self.bundle.name

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        """What the backbone runs on. Known once the model is warmed."""
        raise NotImplementedError

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
    """Embeds in this process, with ONNX Runtime: in batches, which a CPU embeds one on each core."""

    def __init__(self, bundle: Bundle, settings: Settings, processes: int) -> None:
        """Open the backbone.

        Args:
            processes: of this server; each uses its share of the CPUs.

        Raises:
            StartupError: the bundle or the provider cannot be used.
        """
        threads = settings.inference_threads or cpus_of_each(processes)
        self.backbone = OnnxBackbone(bundle, settings.provider, threads, settings.max_batch_size)
        on_gpu = self.backbone.on_gpu
        limits = BatchLimits(
            max_images=self.backbone.max_batch_size,
            max_delay_s=1e-3 * settings.max_batch_delay_ms if on_gpu else 0.0,
            threads=1 if on_gpu else self.backbone.threads,  # a CUDA session has one compute stream
            max_run_s=settings.max_inference_seconds,
            even=not on_gpu,
        )
        super().__init__(bundle, Batcher(self.backbone, limits, name=bundle.name))

    @property
    def provider(self) -> Literal["cuda", "cpu"]:
        return self.backbone.provider

    def warm(self) -> None:
        """Run the backbone; on CUDA once in every batch size."""
        self.backbone.warm()
        self.batcher.limits = replace(self.batcher.limits, max_images=self.backbone.max_batch_size)


def models_folder(settings: Settings) -> Path:
    """The folder whose bundles are served: that of the settings, or the first with bundles of the usual ones.

    Raises:
        StartupError: none of them has any.
    """
    if settings.models_dir is not None:
        return settings.models_dir
    for folder in _FOLDERS:
        if any(folder.glob(f"*/{MANIFEST}")):
            return folder
    tried = ", ".join(str(folder.absolute()) for folder in _FOLDERS)
    raise StartupError(f"there is no model bundle in {tried}; name a folder of bundles with --models-dir")


def load_bundles(settings: Settings) -> list[Bundle]:
    """Read every bundle of `models_folder`.

    Raises:
        StartupError: a bundle cannot be used.
    """
    models = models_folder(settings)
    logger.info("models from %s", models.absolute())
    try:
        return [load_bundle(folder) for folder in find_bundles(models)]
    except BundleError as error:
        raise StartupError(str(error)) from error


def load_models(settings: Settings, processes: int = 1) -> dict[str, LocalModel]:
    """Open every bundle of `models_folder` in this process, several at a time, by name.

    Args:
        processes: of this server; each opens every bundle.

    Raises:
        StartupError: a bundle or the provider cannot be used.
    """
    bundles = load_bundles(settings)
    # ONNX Runtime prepares a graph on one core, for a second if it is large.
    with ThreadPoolExecutor(cpus_of_each(processes)) as threads:
        models = threads.map(lambda bundle: LocalModel(bundle, settings, processes), bundles)
        return {model.name: model for model in models}


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
            raise ServiceError(
                ErrorCode.MODEL_CHANGED,
                f"Classifier {classifier.name or classifier.id!r} was adapted on {why}. Send its images to POST /adapt "
                "again, or restore that bundle.",
                model=classifier.model,
                embedder_sha256=classifier.embedder_sha256,
            )
        return model
