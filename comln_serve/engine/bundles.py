"""Finds and reads the bundles to serve."""

import logging
from pathlib import Path

import comln_serve
from comln_serve.bundle import Bundle, BundleError, find_bundles, load_bundle
from comln_serve.bundle.manifest import MANIFEST
from comln_serve.configuration.settings import Settings
from comln_serve.errors import StartupError

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
