"""The model to measure: a bundle, as the server runs it, or the best checkpoint of a run.

A run on embeddings cannot become a bundle without the network that computes them, but it can be
measured on embeddings.
"""

from dataclasses import dataclass
from pathlib import Path

from comln_serve.bundle import Bundle, BundleError, load_bundle
from comln_serve.bundle.head import Head
from comln_serve.bundle.manifest import MANIFEST
from comln_serve.engine.embedding.backbone import OnnxBackbone
from training.checkpoint_names import BEST
from training.config import Config
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


def open_subject(folder: Path) -> Subject:
    """The bundle or run in `folder`.

    Raises:
        BundleError: neither, or a bundle that cannot be used. CheckpointError: a damaged checkpoint.
        BackboneError: the run's network cannot be built again.
    """
    if not (folder / MANIFEST).exists():
        if not (folder / BEST).exists():
            if not folder.is_dir():
                raise BundleError(f"{folder}: there is no such folder; name that of a bundle, or of a run")
            raise BundleError(f"{folder}: neither a bundle ({MANIFEST}) nor what fit got as --out ({BEST})")
        from training.checkpoint import Checkpoint  # noqa: PLC0415 - needs torch, which bundles do not

        model = Checkpoint.load(folder / BEST).restore_model()
        return Subject(model.config, model.head(), model.embed, None)
    bundle = load_bundle(folder)
    config = Config.model_validate(bundle.manifest.training.config)
    return Subject(config, bundle.head, OnnxBackbone(bundle, "auto").embed, bundle)
