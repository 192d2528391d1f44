"""Weights in 8 bits in exported graphs: unsigned where they could overflow, of the same values."""

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from comln_serve.export.unsigned_weights import use_unsigned_weights

SIZE = 32


def quantised(*, one_zero: bool = False, **kernels: NDArray[np.int8]) -> ModelProto:
    """A product with each of these kernels (SIZE, SIZE) after the other, in the form of ONNX Runtime's quantiser.

    one_zero: all have the same tensor as zero point.
    """
    constants = {"scale": np.float32(0.02), "middle": np.uint8(128)}
    nodes, last = list[object](), "inputs"
    for name, kernel in kernels.items():
        scales = np.linspace(0.001, 0.002, SIZE, dtype=np.float32)
        zero = "zero" if one_zero else f"{name}_zero"
        constants |= {name: kernel, f"{name}_scale": scales, zero: np.zeros(SIZE, np.int8)}
        nodes += [
            helper.make_node("QuantizeLinear", [last, "scale", "middle"], [f"{name}_q"]),
            helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "middle"], [f"{name}_x"]),
            helper.make_node("DequantizeLinear", [name, f"{name}_scale", zero], [f"{name}_w"], axis=1),
            helper.make_node("MatMul", [f"{name}_x", f"{name}_w"], [f"{name}_out"]),
        ]
        last = f"{name}_out"
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, ["n", SIZE])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", SIZE])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def kernel(largest: int) -> NDArray[np.int8]:
    values = np.random.default_rng(largest).integers(-largest, largest, (SIZE, SIZE), endpoint=True, dtype=np.int8)
    values[3, 5] = -largest
    return values


def run(model: ModelProto, level: ort.GraphOptimizationLevel) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = np.random.default_rng(1).uniform(0, 2.5, (16, SIZE)).astype(np.float32)
    return np.asarray(session.run(None, {"inputs": inputs})[0])


def types(model: ModelProto, weights: str) -> list[int]:
    """Of the weights and of their zero point."""
    found = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return [found[name] for node in model.graph.node if node.input[0] == weights for name in (weights, node.input[2])]


@pytest.mark.parametrize("one_zero", [False, True])
def test_weights_that_could_overflow_become_unsigned_and_keep_their_values(one_zero: bool) -> None:
    model = quantised(small=kernel(64), large=kernel(65), larger=kernel(127), one_zero=one_zero)
    expected = run(model, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    use_unsigned_weights(model.graph)
    assert types(model, "small") == [TensorProto.INT8] * 2
    assert types(model, "large") == types(model, "larger") == [TensorProto.UINT8] * 2
    np.testing.assert_array_equal(run(model, ort.GraphOptimizationLevel.ORT_DISABLE_ALL), expected)
    used = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= used


def test_the_smallest_number_of_8_bits_could_overflow() -> None:
    """It has no counterpart above zero."""
    small = kernel(64)
    small[0, 0] = -128
    model = quantised(large=small)
    use_unsigned_weights(model.graph)
    assert types(model, "large") == [TensorProto.UINT8] * 2


def test_weights_without_a_zero_point_are_left() -> None:
    model = quantised(large=kernel(127))
    del model.graph.node[2].input[2]
    use_unsigned_weights(model.graph)
    assert {tensor.data_type for tensor in model.graph.initializer if tensor.name == "large"} == {TensorProto.INT8}


def test_weights_that_are_read_twice_get_one_zero_point() -> None:
    model = quantised(large=kernel(127))
    again = helper.make_node("DequantizeLinear", list(model.graph.node[2].input), ["again"], axis=1)
    model.graph.node.insert(3, again)
    use_unsigned_weights(model.graph)
    names = [tensor.name for tensor in model.graph.initializer]
    assert len(names) == len(set(names))
    assert types(model, "large") == [TensorProto.UINT8] * 4


@pytest.mark.parametrize("largest", [64, 127])
def test_every_cpu_multiplies_them_exactly(largest: int) -> None:
    """With ONNX Runtime's fastest instructions as operator by operator, but for the order of floats."""
    model = quantised(one=np.full((SIZE, SIZE), largest, np.int8))
    use_unsigned_weights(model.graph)
    slow, fast = (
        run(model, level)
        for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    )
    np.testing.assert_allclose(fast, slow, rtol=1e-3)


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_a_graph_with_other_uses_of_a_weight_is_left(in_a_branch: bool) -> None:
    model = quantised(large=kernel(127))
    before = model.graph.node[2].input[2]
    use = helper.make_node("Identity", ["large"], ["again"])
    if in_a_branch:
        branch = helper.make_graph([use], "branch", [], [helper.make_empty_tensor_value_info("again")])
        use = helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch)
    model.graph.node.append(use)
    use_unsigned_weights(model.graph)
    assert model.graph.node[2].input[2] == before
    assert {t.name for t in model.graph.initializer if t.data_type == TensorProto.INT8} == {"large", before}
