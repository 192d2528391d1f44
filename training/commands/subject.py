"""The model to measure: a bundle, as the server runs it, or the best checkpoint of a run.

A run on embeddings cannot become a bundle without the network that computes them, but it can be measured on embeddings.
"""

from dataclasses import dataclass
from pathlib import Path

from comln_serve.bundle import Bundle, BundleError, load_bundle
from comln_serve.bundle.head import Head
from comln_serve.bundle.manifest import MANIFEST
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.machine import Provider
from training.checkpoint_names import BEST, LOG, UNMEASURED
from training.config import Config, ConfigError
from training.data.images import Embed


@dataclass(frozen=True)
class Subject:
    """The model to measure: a head and its embedding network.

    Attributes:
        config: of its training.
        embed: of images, or of embeddings if it was trained on these.
        bundle: None for a run.
    """

    config: Config
    head: Head
    embed: Embed
    bundle: Bundle | None


def open_subject(folder: Path, provider: Provider = "auto") -> Subject:
    """The bundle or run in `folder`.

    Args:
        provider: what embeds images, as of the server; only of a bundle.
    """
    if (folder / MANIFEST).exists():
        bundle = load_bundle(folder)
        config = Config.model_validate(bundle.manifest.training.config)
        return Subject(config, bundle.head, OnnxBackbone(bundle, provider).embed, bundle)
    if not (folder / BEST).exists():
        if not folder.is_dir():
            raise BundleError(f"{folder}: there is no such folder; name that of a bundle, or of a run")
        if (folder / LOG).exists():
            raise BundleError(f"{folder} has no {BEST}: {UNMEASURED}")
        raise BundleError(f"{folder}: neither a bundle ({MANIFEST}) nor what fit got as --out ({BEST})")
    if provider != "auto":
        raise ConfigError(f"{folder} is a run, whose network is torch's; --provider needs a bundle, see export")
    from training.checkpoint import Checkpoint  # noqa: PLC0415 - needs torch, which bundles do not

    model = Checkpoint.load(folder / BEST).restore_model()
    return Subject(model.config, model.head(), model.embed, None)
