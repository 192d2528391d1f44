"""The ONNX graph of a model's backbone, as stored in a bundle."""

import warnings

import onnx
import torch

from training.backbones.backbone import Backbone, Identity
from training.backbones.onnx_builder import bundle_graph
from training.backbones.onnx_graph import drop_provenance
from training.backbones.onnx_model import OnnxNetwork
from training.errors import ExportError
from training.model import MetaModel


def backbone_graph(model: MetaModel) -> onnx.ModelProto:
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
