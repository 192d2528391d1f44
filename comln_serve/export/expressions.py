"""Builds ONNX nodes from Python expressions: `1.0 - x * x` adds a Mul and a Sub to a graph."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper


class Nodes:
    """Nodes in topological order, and their constants. All their names begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._prefix = prefix
        self._numbers = count()

    def tensor(self, name: str) -> "Tensor":
        """A tensor that other nodes compute."""
        return Tensor(self, name)

    def op(self, kind: str, *operands: "Operand", **attributes: Any) -> "Tensor":
        """Add a node and return its output. Operands other than tensors become constants."""
        inputs = [self._operand(operand).name for operand in operands]
        made = self._fresh(kind)
        self.nodes.append(helper.make_node(kind, inputs, [made], name=made, **attributes))
        return Tensor(self, made)

    def choose(self, condition: "Tensor", then: Callable[[], "Tensor"], otherwise: Callable[[], "Tensor"]) -> "Tensor":
        """Add an If node over the nodes that `then` and `otherwise` add; only one branch runs."""
        branches = {"then_branch": self._branch(then), "else_branch": self._branch(otherwise)}
        return self.op("If", condition, **branches)

    def _branch(self, write: Callable[[], "Tensor"]) -> GraphProto:
        around, self.nodes = self.nodes, []
        output = helper.make_empty_tensor_value_info(write().name)
        branch = helper.make_graph(self.nodes, self._fresh("branch"), [], [output])
        self.nodes = around
        return branch

    def _operand(self, operand: "Operand") -> "Tensor":
        if isinstance(operand, Tensor):
            return operand
        constant = numpy_helper.from_array(np.asarray(operand), self._fresh("constant"))
        self.constants.append(constant)
        return Tensor(self, constant.name)

    def _fresh(self, kind: str) -> str:
        return f"{self._prefix}{kind.lower()}_{next(self._numbers)}"


def _operator(kind: str) -> "Callable[[Tensor, Operand], Tensor]":
    """A method that adds a node with the tensor as its first operand."""
    return lambda tensor, other: tensor.nodes.op(kind, tensor, other)


def _reflected(kind: str) -> "Callable[[Tensor, float], Tensor]":
    return lambda tensor, other: tensor.nodes.op(kind, other, tensor)


@dataclass(frozen=True, eq=False)
class Tensor:
    """The output of a node or an input of the graph. Python floats become float64 constants."""

    nodes: Nodes
    name: str

    __add__ = _operator("Add")
    __sub__ = _operator("Sub")
    __rsub__ = _reflected("Sub")
    __mul__ = _operator("Mul")
    __truediv__ = _operator("Div")
    __rtruediv__ = _reflected("Div")
    __matmul__ = _operator("MatMul")
    __lt__ = _operator("Less")

    def __abs__(self) -> "Tensor":
        return self.nodes.op("Abs", self)

    def cast(self, kind: int) -> "Tensor":
        """Convert to a `TensorProto.DataType`."""
        return self.nodes.op("Cast", self, to=kind)

    def reshape(self, *shape: int) -> "Tensor":
        """Reshape; one dimension may be -1."""
        return self.nodes.op("Reshape", self, np.array(shape))

    def transpose(self, *order: int) -> "Tensor":
        """Reorder the axes."""
        return self.nodes.op("Transpose", self, perm=order)


Operand = Tensor | float | NDArray[Any]
