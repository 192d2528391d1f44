"""Makes a bundle from a run's checkpoint."""

from dataclasses import replace
from pathlib import Path

from comln_serve.bundle import AccuracyEntry
from training.backbones.backbone import Backbone
from training.bundles.backbone_graph import backbone_graph
from training.bundles.writer import About, Network, Origin, write_bundle
from training.checkpoint import Checkpoint
from training.config import override_config
from training.errors import ExportError
from training.model import MetaModel


def export_bundle(
    checkpoint: Checkpoint, folder: Path, about: About, *, half: bool = False, to_quantise: bool = False
) -> float:
    """Write the bundle of a checkpoint to `folder`; see `write_bundle`.

    Args:
        to_quantise: the graph uses every weight once. A quantised one would keep a copy of the weights for each use.
    """
    model = checkpoint.restore_model().eval()
    if isinstance(model.backbone, Backbone):
        model.backbone.mirror_apart = not to_quantise
    validation = tuple(
        AccuracyEntry(split="val", command="validation during training", **result) for result in checkpoint.validation
    )
    origin = Origin(
        checkpoint.config,
        checkpoint.command,
        updates=checkpoint.update,
        seconds=checkpoint.seconds,
        hardware=checkpoint.hardware,
        validation=validation,
        libraries=("torch", *Origin.libraries),
    )
    network = Network(backbone_graph(model), model.backbone.embedding_size, model.embed)
    return write_bundle(network, model.head(), folder, about, origin, half=half)


def with_backbone(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Checkpoint:
    """The checkpoint with another backbone: for a run on embeddings, the network that computes them.

    Args:
        overrides: `backbone.key=value` and `data.preprocessing.key=value` for a run on embeddings. A run on an ONNX
            file takes `backbone.path=...`, if the file has been moved, and every run takes `backbone.mirror=...`.

    Raises:
        ConfigError: the configuration is not usable.
        ExportError: an override of something that was trained and cannot be changed.
        BackboneError: the network cannot be built, or its embeddings have another size.
    """
    kind, keys = checkpoint.config.backbone.kind, [item.partition("=")[0] for item in overrides]
    if kind == "identity":
        foreign = [k for k in keys if not k.startswith(("backbone.", "data.preprocessing."))]
    else:
        free = {"backbone.mirror"} | ({"backbone.path"} if kind == "onnx" else set[str]())
        foreign = [key for key in keys if key not in free]
    if foreign:
        raise ExportError(
            f'{foreign[0]} cannot be changed after training with a backbone of kind "{kind}": '
            'only a run on embeddings ("identity") takes another backbone.* and '
            "data.preprocessing.*, a run on an ONNX file another backbone.path, and both and all "
            "others backbone.mirror"
        )
    config = override_config(checkpoint.config, overrides)
    state = {key: value for key, value in MetaModel(config).state_dict().items() if key.startswith("backbone.")}
    return replace(checkpoint, config=config, model=state | checkpoint.model)
