"""Make the batch axis dynamic in a graph that was exported for one image.

For most operators it is enough to declare another input shape. The exception is a Reshape to a stored
shape that begins with 1; PyTorch's exporter writes one before a classifier's last layer.
"""

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from training.backbones.onnx_nodes import constants_of


def open_batch(graph: GraphProto, image: str) -> None:
    """Let every Reshape of a tensor computed from `image` take any batch size.

    The caller must check the result: an image must have the same embedding alone and in a batch.
    """
    shapes = constants_of(graph)
    names = {*shapes, *(name for node in graph.node for name in node.output), image}
    from_image, nodes = {image}, list[NodeProto]()
    for node in graph.node:
        if node.op_type == "Shape" or not from_image.intersection(node.input):
            nodes.append(node)
            continue
        from_image.update(node.output)
        if node.op_type == "Reshape" and node.input[0] in from_image:
            shape = shapes.get(node.input[1])
            if shape is not None and shape.ndim == 1 and len(shape) > 1 and shape[0] == 1 and 0 not in shape:
                # -1 is the remaining size. If another axis is -1, 0 keeps the size of the input,
                # unless the attribute allowzero says that 0 means 0.
                first = 0 if -1 in shape else -1
                name = f"{node.input[1]}_any_batch"
                if name not in names:
                    names.add(name)
                    opened = np.array([first, *shape[1:]], dtype=np.int64)
                    nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(opened)))
                node.input[1] = name
                kept = [entry for entry in node.attribute if entry.name != "allowzero"]
                del node.attribute[:]
                node.attribute.extend(kept)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
