"""Exports a classifier, from decoded images to probabilities, as one ONNX file."""

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

from comln_serve.bundle import Bundle
from comln_serve.domain.classifier import Classifier
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.export.expressions import Nodes
from comln_serve.export.head_file import metadata
from comln_serve.export.resampling import LEAST_OPSET, resample
from comln_serve.export.unsigned_weights import use_unsigned_weights
from comln_serve.report.unknown import row_length

INPUT, OUTPUT, SIMILARITIES = "images", "probabilities", "similarities"

_INPUT_DESCRIPTION = (
    "images: uint8 (batch, height, width, 3), decoded, upright RGB images of one size, any size; "
    "transparent pixels laid over preprocessing.background"
)
_OUTPUT_DESCRIPTION = (
    "probabilities: float32 (batch, classes), in the order of labels, each row sums to 1; similarities: float32 "
    "(batch, classes), of the image to each class: it is unknown if the largest is below unknown_threshold"
)
_SMALLEST = 1e-30


def onnx_file(classifier: Classifier, bundle: Bundle) -> bytes:
    """Preprocessing, backbone, adapted head and softmax in standard operators.

    Input `images`: uint8 (batch, height, width, 3) RGB. Outputs `probabilities` and `similarities`: float32 (batch, N);
    the largest similarity is that of `comln_serve.report.similarity`.

    Raises:
        ServiceError: CANNOT_EXPORT, the backbone's operator set is too old for the added nodes.
    """
    model = onnx.load_from_string(bundle.backbone)
    _check_opset(model, bundle)
    graph = model.graph
    use_unsigned_weights(graph)
    _add_prefix(graph, "backbone/")  # keeps its names apart from those added here

    before = Nodes("preprocessing/")
    prepared = resample(before, before.tensor(INPUT), bundle.manifest.preprocessing)
    before.nodes.append(helper.make_node("Identity", [prepared.name], [graph.input[0].name]))

    after = Nodes("head/")
    embeddings = after.tensor(graph.output[0].name).cast(TensorProto.DOUBLE)
    W = np.ascontiguousarray(classifier.W.T)
    # In float64, as in the server.
    logits = embeddings @ after.op("Cast", W, to=TensorProto.DOUBLE)
    lengths = after.op("Sqrt", (embeddings * embeddings) @ np.ones((len(W), 1))) + _SMALLEST
    similarities = (logits / (lengths * row_length(classifier.W))).cast(TensorProto.FLOAT)
    logits = logits / np.array(bundle.temperature_of(classifier))
    probabilities = after.op("Softmax", logits, axis=1).cast(TensorProto.FLOAT)
    outputs = {OUTPUT: probabilities, SIMILARITIES: similarities}
    after.nodes.extend(helper.make_node("Identity", [tensor.name], [name]) for name, tensor in outputs.items())

    nodes = [*before.nodes, *graph.node, *after.nodes]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*before.constants, *after.constants])
    graph.name = "comln-serve classifier"
    graph.input.append(helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", "height", "width", 3]))
    shape = ["batch", len(classifier.labels)]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs)
    model.producer_name, model.doc_string = "comln-serve", ""
    described = {"input": _INPUT_DESCRIPTION, "output": _OUTPUT_DESCRIPTION}
    helper.set_model_props(model, metadata(classifier, bundle) | described)
    content: bytes = model.SerializeToString()
    return content


def _add_prefix(graph: GraphProto, prefix: str) -> None:
    """Put `prefix` before every name in a graph and in the graphs inside its nodes.

    (`onnx.compose.add_prefix` misses an inner graph's references to outer initializers.)
    """

    def prefixed(name: str) -> str:
        return prefix + name if name else ""  # empty: an omitted input or an unnamed node

    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = prefixed(value.name)
    for tensor in graph.sparse_initializer:
        tensor.values.name = prefixed(tensor.values.name)
    for node in graph.node:
        node.name = prefixed(node.name)
        node.input[:] = map(prefixed, node.input)
        node.output[:] = map(prefixed, node.output)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _add_prefix(inner, prefix)


def _check_opset(model: ModelProto, bundle: Bundle) -> None:
    version = max((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), default=0)
    if version < LEAST_OPSET:
        raise ServiceError(
            ErrorCode.CANNOT_EXPORT,
            f"The backbone of model {bundle.name!r} is in ONNX operator set {version}; its "
            f"classifiers can be exported as ONNX from {LEAST_OPSET} on. Take format=safetensors, "
            "or convert the backbone with onnx.version_converter and train its bundle anew.",
            received_opset=version,
            least_opset=LEAST_OPSET,
        )
