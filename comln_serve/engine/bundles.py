"""Finds the bundles to serve, reads them, and opens them: in this process, or in the one that embeds for all."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import comln_serve
from comln_serve.bundle import Bundle, BundleError, find_bundles, load_bundle
from comln_serve.bundle.manifest import MANIFEST
from comln_serve.configuration.settings import Settings
from comln_serve.counts import SharedCounts
from comln_serve.engine.embedding_process.shared_model import SharedModel
from comln_serve.engine.models import LocalModel, Model
from comln_serve.errors import StartupError
from comln_serve.machine import cpus_of_each

logger = logging.getLogger(__name__)

_PACKAGE = Path(comln_serve.__file__).parent
# Where bundles are looked for if the settings name no folder: the working folder; the package, whose wheel holds the
# photo model; the repository that the package is in.
_FOLDERS = (Path("models"), _PACKAGE / "models", _PACKAGE.parent / "models")


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


def open_model(bundle: Bundle, settings: Settings, shared: SharedCounts) -> Model:
    """Open a bundle where the server embeds.

    Args:
        shared: tells how many processes serve, and whether another embeds for them.

    Raises:
        StartupError: the bundle or the provider cannot be used.
    """
    if shared.embedder is None:
        return LocalModel(bundle, settings, shared.processes)
    return SharedModel(bundle, settings, shared.embedder_socket, shared.processes)


def load_models(settings: Settings, shared: SharedCounts | None = None) -> dict[str, Model]:
    """Open every bundle of `models_folder`, several at a time, by name.

    Args:
        shared: as above; default: there is only this process.

    Raises:
        StartupError: a bundle or the provider cannot be used.
    """
    whole = shared or SharedCounts()
    bundles = load_bundles(settings)
    # ONNX Runtime prepares a graph on one core, for a second if it is large.
    with ThreadPoolExecutor(cpus_of_each(whole.processes)) as threads:
        models = threads.map(lambda bundle: open_model(bundle, settings, whole), bundles)
        return {model.name: model for model in models}
