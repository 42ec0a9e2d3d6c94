"""A small builder of forward models: nodes with float32 parameters, in opset 17."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Forward:
    """A builder of one model; each method adds nodes and returns the name of their result.

    Attributes:
        parameters: names of the initializers that are trained.
    """

    def __init__(self, seed: int) -> None:
        self.parameters: list[str] = []
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    # -- parts of a model ---------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> str:
        """Add a graph input; a `str` dim is symbolic."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add an initializer that is not trained."""
        self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def parameter(self, name: str, shape: Sequence[int], std: float | None = None) -> str:
        """Add a trained initializer: normal with `std`, or ones if `std` is None."""
        array = np.ones(shape) if std is None else self._random.normal(0.0, std, shape)
        self.parameters.append(name)
        return self.constant(name, array.astype(np.float32))

    def zeros(self, name: str, size: int) -> str:
        """Add a trained vector of zeros: a bias."""
        self.parameters.append(name)
        return self.constant(name, np.zeros(size, np.float32))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node, and return its first output."""
        self._count += 1
        stem = f"{op_type.lower()}_{self._count}"
        names = [stem] + [f"{stem}_{i}" for i in range(1, outputs)]
        self._nodes.append(helper.make_node(op_type, inputs, names, name=stem, **attributes))
        return names[0]

    def split(self, x: str, parts: int, axis: int) -> list[str]:
        """Split x into equal parts."""
        first = self.op("Split", x, outputs=parts, axis=axis)
        return [first, *(f"{first}_{i}" for i in range(1, parts))]

    def ints(self, *values: int) -> str:
        """Add a constant int64 vector."""
        name = "dims_" + "_".join(str(v).replace("-", "m") for v in values)
        return self.constant(name, np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        """Add a constant float32 scalar."""
        return self.constant(f"scalar_{value:g}", np.array(value, np.float32))

    def model(self, output: str, shape: Sequence[int | str]) -> onnx.ModelProto:
        """Return the finished model, with `output` renamed to "output"."""
        self._nodes.append(helper.make_node("Identity", [output], ["output"], name="output"))
        result = helper.make_tensor_value_info("output", TensorProto.FLOAT, list(shape))
        graph = helper.make_graph(
            self._nodes, "forward", self._inputs, [result], list(self._initializers.values())
        )
        imports = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)

    # -- layers ------------------------------------------------------------------------------

    def linear(self, x: str, name: str, width: int, to: int) -> str:
        """Add a linear layer: x [..., width] -> [..., to] with any number of leading dims."""
        weight = self.parameter(f"{name}.weight", (width, to), 1 / math.sqrt(width))
        return self.op("Add", self.op("MatMul", x, weight), self.zeros(f"{name}.bias", to))

    def gemm(self, x: str, name: str, width: int, to: int) -> str:
        """Add a linear layer as a Gemm: x [rows, width] -> [rows, to]."""
        weight = self.parameter(f"{name}.weight", (to, width), math.sqrt(2 / width))
        return self.op("Gemm", x, weight, self.zeros(f"{name}.bias", to), transB=1)

    def conv(self, x: str, name: str, channels: int, to: int, kernel: int, stride: int = 1) -> str:
        """Add a convolution without bias, which keeps the size at stride 1."""
        pad = kernel // 2
        std = math.sqrt(2 / (channels * kernel * kernel))
        weight = self.parameter(f"{name}.weight", (to, channels, kernel, kernel), std)
        return self.op(
            "Conv",
            x,
            weight,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            dilations=[1, 1],
            group=1,
        )

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """Add a training-mode batch normalization with running statistics."""
        scale = self.parameter(f"{name}.weight", (channels,))
        bias = self.zeros(f"{name}.bias", channels)
        mean = self.constant(f"{name}.running_mean", np.zeros(channels, np.float32))
        variance = self.constant(f"{name}.running_var", np.ones(channels, np.float32))
        inputs = (x, scale, bias, mean, variance)
        return self.op("BatchNormalization", *inputs, outputs=3, training_mode=1, momentum=0.9)

    def layer_norm(self, x: str, name: str, width: int) -> str:
        """Add a layer normalization over the last axis; the gradient builder needs all three outputs."""
        scale = self.parameter(f"{name}.weight", (width,))
        bias = self.zeros(f"{name}.bias", width)
        return self.op("LayerNormalization", x, scale, bias, outputs=3, axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        """Add x · Φ(x) in standard operators, as exporters write it; ONNX Runtime fuses it."""
        erf = self.op("Erf", self.op("Div", x, self.scalar(math.sqrt(2))))
        return self.op(
            "Mul", self.op("Mul", x, self.op("Add", erf, self.scalar(1))), self.scalar(0.5)
        )
