"""Training graphs of any number of nodes, with small tensors, made without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

_WIDTH, _ROWS = 8, 64


def chain(nodes: int) -> onnx.ModelProto:
    """Build a training step of a chain of layers: y = tanh(x W), its gradients, and updated weights.

    Each layer has four nodes forward and backward, and three of the update.
    """
    return _trained(max(1, nodes // 9), _dense_layer, "chain")


def transformer(nodes: int) -> onnx.ModelProto:
    """Build a training step of blocks with attention-like joins: two branches multiplied, a residual."""
    return _trained(max(1, nodes // 22), _block, "transformer")


KINDS: dict[str, Callable[[int], onnx.ModelProto]] = {"chain": chain, "transformer": transformer}


class _Tape:
    """The forward nodes, with the backward pass of each."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[str] = []
        self.back: list[Callable[[str], None]] = []
        self.gradient: dict[str, str] = {}

    def add(self, operator: str, inputs: list[str], **attributes: object) -> str:
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [f"{name}_out"], name=name, **attributes)
        )
        return f"{name}_out"

    def weight(self) -> str:
        self.weights.append(f"w{len(self.weights)}")
        return self.weights[-1]

    def give(self, tensor: str, gradient: str) -> None:
        """Add a contribution to a tensor's gradient."""
        known = self.gradient.get(tensor)
        self.gradient[tensor] = self.add("Add", [known, gradient]) if known else gradient

    def dense(self, x: str, weight: str) -> str:
        y = self.add("MatMul", [x, weight])

        def back() -> None:
            grad = self.gradient[y]
            self.give(x, self.add("MatMul", [grad, self.add("Transpose", [weight], perm=[1, 0])]))
            self.give(weight, self.add("MatMul", [self.add("Transpose", [x], perm=[1, 0]), grad]))

        self.back.append(lambda _: back())
        return y

    def tanh(self, x: str) -> str:
        y = self.add("Tanh", [x])

        def back() -> None:
            slope = self.add("Sub", ["one", self.add("Mul", [y, y])])
            self.give(x, self.add("Mul", [self.gradient[y], slope]))

        self.back.append(lambda _: back())
        return y

    def product(self, x: str, y: str) -> str:
        z = self.add("Mul", [x, y])

        def back() -> None:
            self.give(x, self.add("Mul", [self.gradient[z], y]))
            self.give(y, self.add("Mul", [self.gradient[z], x]))

        self.back.append(lambda _: back())
        return z

    def sum(self, x: str, y: str) -> str:
        z = self.add("Add", [x, y])

        def back() -> None:
            self.give(x, self.gradient[z])
            self.give(y, self.gradient[z])

        self.back.append(lambda _: back())
        return z


def _dense_layer(tape: _Tape, x: str) -> str:
    return tape.tanh(tape.dense(x, tape.weight()))


def _block(tape: _Tape, x: str) -> str:
    query = tape.tanh(tape.dense(x, tape.weight()))
    value = tape.dense(x, tape.weight())
    return tape.sum(x, tape.product(query, value))


def _trained(layers: int, layer: Callable[[_Tape, str], str], name: str) -> onnx.ModelProto:
    tape = _Tape()
    x = "x"
    for _ in range(layers):
        x = layer(tape, x)
    loss = tape.add("ReduceMean", [tape.add("Mul", [x, x])], keepdims=0)
    tape.gradient[x] = tape.add("Mul", [x, "scale"])
    for back in reversed(tape.back):
        back("")
    outputs = []
    for weight in tape.weights:
        step = tape.add("Mul", [tape.gradient[weight], "rate"])
        tape.nodes.append(
            helper.make_node("Sub", [weight, step], [f"{weight}_new"], name=f"update_{weight}")
        )
        outputs.append(f"{weight}_new")
    square = [_WIDTH, _WIDTH]
    graph = helper.make_graph(
        tape.nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [_ROWS, _WIDTH])]
        + [helper.make_tensor_value_info(w, TensorProto.FLOAT, square) for w in tape.weights],
        [helper.make_tensor_value_info(loss, TensorProto.FLOAT, [])]
        + [helper.make_tensor_value_info(o, TensorProto.FLOAT, square) for o in outputs],
        [
            helper.make_tensor(n, TensorProto.FLOAT, [], [v])
            for n, v in (("one", 1.0), ("scale", 2.0 / (_ROWS * _WIDTH)), ("rate", 0.01))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    return model


def save(kind: str, nodes: int, path: Path) -> int:
    """Write a graph of about the given number of nodes; return the exact number."""
    model = KINDS[kind](nodes)
    onnx.save(model, path)
    return len(model.graph.node)
