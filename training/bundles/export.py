"""Makes a bundle from a run's checkpoint."""

import warnings
from dataclasses import replace
from pathlib import Path

import onnx
import torch

from comln_serve.bundle import AccuracyEntry
from training.backbones.backbone import Backbone, Identity
from training.backbones.onnx_builder import bundle_graph
from training.backbones.onnx_graph import drop_provenance
from training.backbones.onnx_model import OnnxNetwork
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
    network = Network(_backbone_graph(model), model.backbone.embedding_size, model.embed)
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


def _backbone_graph(model: MetaModel) -> onnx.ModelProto:
    """The model's backbone as stored in a bundle: uint8 RGB (batch, S, S, 3) -> (batch, d)."""
    backbone = model.backbone
    if not isinstance(backbone, Backbone):
        raise TypeError("a model of precomputed embeddings; export the one it was made from")
    if isinstance(backbone.network, Identity):
        raise ExportError(
            'this run was trained on embeddings (backbone.kind "identity"); a bundle is served '
            "images and needs the network that made the embeddings of them. Name it: --set "
            "backbone.kind=onnx --set backbone.path=FILE --set backbone.mean=[...] --set "
            "backbone.std=[...] --set data.preprocessing.image_size=SIZE"
        )
    if isinstance(backbone.network, OnnxNetwork):
        file = backbone.network.file
        return bundle_graph(
            file.graph,
            None if backbone.pixels is None else backbone.pixels.format,
            file.layout,
            backbone.embedding_size,
            flatten=file.flattens,
            normalise=backbone.config.normalise == "l2",
            scale=backbone.scale,
        )
    return _traced_graph(backbone)


def _traced_graph(backbone: Backbone) -> onnx.ModelProto:
    size = backbone.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with warnings.catch_warnings():
        # Deprecation warnings of the exporter's dependencies; the result is verified later.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            backbone.to(memory_format=torch.contiguous_format),
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise ExportError("the exporter returned nothing")
    graph = program.model_proto
    # If the last feature map is 1 x 1, the exporter's shape inference declares the output as (1, d),
    # though its reshape is right. Declare the batch axis, and drop the inferred shapes.
    batch, _ = graph.graph.output[0].type.tensor_type.shape.dim
    batch.dim_param = "batch"
    del graph.graph.value_info[:]
    drop_provenance(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph
