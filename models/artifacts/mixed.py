"""A net with a layer of each kind: its gradients cover the gradient builder's operators."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from models.artifacts.forward import Forward
from models.artifacts.nets import CLASSES, Net

_SIDE = 8


def mixed(batch: int = 64) -> Net:
    """Build convolutions with bias, both poolings, dropout, and most elementwise operators."""
    f = Forward(seed=5)
    x = f.input("x", [batch, 2, _SIDE, _SIDE])
    x = _images(f, x)
    x = f.op("Flatten", x, axis=1)
    x = f.gemm(x, "in", 8 * _SIDE * _SIDE // 16, 32)
    x = _elementwise(f, x)
    x = _layout(f, x, batch)
    ratio = f.constant("ratio", np.array(0.1, np.float32))
    training = f.constant("training", np.array(True))
    x = f.op("Dropout", x, ratio, training, outputs=2)
    x = f.op("LogSoftmax", x, axis=-1)
    logits = f.gemm(x, "head", 32, CLASSES)
    return Net(model=f.model(logits, [batch, CLASSES]), parameters=(*f.parameters,), task="images")


def _images(f: Forward, x: str) -> str:
    weight = f.parameter("conv.weight", (8, 2, 3, 3), 0.2)
    bias = f.zeros("conv.bias", 8)
    x = f.op("Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    x = f.op("Sigmoid", x)
    x = f.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = f.op("LeakyRelu", f.conv(x, "conv2", 8, 8, 3), alpha=0.1)
    return f.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])


def _elementwise(f: Forward, x: str) -> str:
    half, small = f.scalar(0.5), f.scalar(0.1)
    x = f.op("Add", f.op("Tanh", x), f.gelu(x))
    x = f.op("Add", x, _tanh_gelu(f, x))
    x = f.op("Mul", x, f.op("Sigmoid", f.op("Mul", x, f.scalar(1.702))))
    positive = f.op("Add", f.op("Exp", f.op("Neg", f.op("Mul", x, x))), half)
    x = f.op("Div", f.op("Sub", x, small), f.op("Sqrt", positive))
    x = f.op("Add", x, f.op("Log", positive))
    x = f.op("Add", x, f.op("Mul", f.op("Pow", positive, f.scalar(2)), small))
    mean = f.op("ReduceMean", x, axes=[-1], keepdims=1)
    total = f.op("ReduceSum", f.op("Softmax", x, axis=-1), f.ints(-1), keepdims=1)
    x = f.op("Sub", f.op("Mul", x, total), mean)
    positive = f.op("Greater", x, f.scalar(0))
    return f.op("Where", positive, x, f.op("Mul", x, small))


def _tanh_gelu(f: Forward, x: str) -> str:
    cube = f.op("Mul", f.op("Pow", x, f.scalar(3)), f.scalar(0.044715))
    inner = f.op("Mul", f.op("Add", x, cube), f.scalar(math.sqrt(2 / math.pi)))
    return f.op("Mul", f.op("Mul", x, f.op("Add", f.op("Tanh", inner), f.scalar(1))), f.scalar(0.5))


def _layout(f: Forward, x: str, batch: int) -> str:
    """Add a split, slice, gather, concatenation and expansion; [rows, 32] -> [rows, 32]."""
    left = f.op("Slice", x, f.ints(0), f.ints(16), f.ints(1))
    x = f.op("Concat", left, f.op("Slice", x, f.ints(8), f.ints(24), f.ints(1)), axis=1)
    parts = f.split(x, 2, axis=1)
    x = f.op("Concat", parts[1], parts[0], axis=1)
    order = f.constant("order", np.arange(31, -1, -1, dtype=np.int64))
    x = f.op("Gather", x, order, axis=1)
    x = f.op("Squeeze", f.op("Unsqueeze", x, f.ints(1)), f.ints(1))
    row = f.op("Cast", f.parameter("row", (1, 32), 0.1), to=TensorProto.FLOAT)
    return f.op("Add", x, f.op("Expand", row, f.ints(batch, 32)))
