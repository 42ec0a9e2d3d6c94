"""The operators of onnxruntime-training that `tests/training` and this report measure.

One case each, at least, of every operator of com.microsoft that the gradient builder emits and that
has a CPU kernel in onnxruntime-training 1.19.2, with an output of the shape of an input wherever the
operator allows it: a kernel that could write in place is given the chance to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graph.ort_probe import Array, Case

ROWS, COLUMNS = 128, 192
_RANDOM = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return np.asarray(_RANDOM.random(shape, dtype=np.float32) + np.float32(0.5), np.float32)


def _ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


X, DY = _floats(ROWS, COLUMNS), _floats(ROWS, COLUMNS)
LABELS = (np.arange(ROWS) % COLUMNS).astype(np.int64)
IMAGE = _floats(2, 16, 24, 24)
WIDE = _floats(1, 4096, 4, 4)  # statistics of some size
CHANNELS = _floats(4096)
_FROM_OUTPUT = "ReluGrad SigmoidGrad TanhGrad LeakyReluGrad GeluGrad FastGeluGrad QuickGeluGrad"
_SOFTMAX = "SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13"


def cases() -> list[tuple[str, Case]]:
    """(note, case): the note tells two cases of one operator apart."""
    found: list[tuple[str, Case]] = []

    def add(note: str, op_type: str, *inputs: Array | None, **more: Any) -> None:
        more = {"domain": "com.microsoft", "opset": 17, **more}
        found.append((note, Case(op_type=op_type, inputs=inputs, **more)))

    for op in _FROM_OUTPUT.split():
        add("", op, DY, X)
    for op in _SOFTMAX.split():
        add("", op, DY, X, attributes={"axis": 1})
    add("axis 0", "SoftmaxGrad_13", DY, X, attributes={"axis": 0})
    for op in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX"):
        add("", op, DY, X, _floats(COLUMNS))
    ratio, training = np.array(0.5, np.float32), np.array(True)
    add("", "DropoutGrad", DY, X > 1, ratio, training, constants=(2, 3))
    add("", "Scale", X, np.array(2.0, np.float32))
    _normalizations(add)
    _convolutions(add)
    _losses(add)
    _scatters(add)
    add("", "InPlaceAccumulatorV2", X, DY, np.array([True]))
    add("adds", "InPlaceAccumulatorV2", X, DY, np.array([False]))
    add("with the buffer", "InPlaceAccumulatorV2", X, DY, np.array([True]), outputs=2)
    add("", "InPlaceAccumulator", X, DY)
    add("", "ZeroGradient", X, np.array([True]))
    add("", "ReduceSumTraining", X, _ints(1), constants=(1,), attributes={"keepdims": 1})
    shapes = _ints(1, ROWS, COLUMNS), _ints(ROWS, 1)
    add("", "BroadcastGradientArgs", *shapes, outputs=2, constants=(0, 1))
    add("", "FusedMatMul", X, DY, attributes={"transB": 1})
    for op in ("Gelu", "FastGelu", "QuickGelu"):
        add("", op, X)
    add("", "BiasGelu", X, _floats(COLUMNS))
    return found


def _normalizations(add: Any) -> None:
    scale, mean = _floats(COLUMNS), _floats(ROWS, 1)
    add("", "LayerNormalizationGrad", DY, X, scale, mean, mean.copy(), outputs=3)
    add("", "SimplifiedLayerNormalizationGrad", DY, X, scale, mean, outputs=2)
    statistics = (CHANNELS, CHANNELS.copy(), CHANNELS.copy(), CHANNELS.copy())
    epsilon = {"epsilon": 1e-5}
    backward = (WIDE, WIDE.copy(), *statistics[:3])
    add("", "BatchNormalizationGrad", *backward, outputs=3, attributes=epsilon)
    train = {"training_mode": 1}
    add("", "BatchNormInternal", WIDE, *statistics, outputs=5, attributes=train)
    add("", "LayerNormalization", X, scale, scale.copy(), outputs=3, domain="")


def _convolutions(add: Any) -> None:
    for note, kernel, channels, more in (
        ("3x3", 3, 16, {"pads": [1, 1, 1, 1]}),
        ("1x1", 1, 16, {"pads": [0, 0, 0, 0]}),
        ("3x3, stride 2", 3, 16, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("depthwise 3x3", 3, 1, {"pads": [1, 1, 1, 1], "group": 16}),
    ):
        side = 12 if "strides" in more else 24
        weight = _floats(16, channels, kernel, kernel)
        more = {"kernel_shape": [kernel, kernel], **more}
        gradient = _floats(2, 16, side, side)
        add(note, "ConvGrad", gradient, IMAGE, weight, outputs=3, attributes=more)
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    gradient = _floats(2, 16, 12, 12)
    indices = np.arange(gradient.size, dtype=np.int64).reshape(gradient.shape)
    shapes = (IMAGE.shape,)
    default = {"domain": "", "output_shapes": shapes, "attributes": pool}
    add("", "MaxPoolGrad", gradient, indices, **default)
    add("", "AveragePoolGrad", gradient, **default)


def _losses(add: Any) -> None:
    one = np.array(1.0, np.float32)
    mean = {"reduction": "mean"}
    add("", "SoftmaxCrossEntropyLossGrad", one, X, LABELS, attributes=mean)
    add("", "SoftmaxCrossEntropyLossInternalGrad", one, X, LABELS, attributes=mean)
    add("", "SoftmaxCrossEntropyLossInternal", X, LABELS, outputs=2, attributes=mean)


def _scatters(add: Any) -> None:
    shape, rows = _ints(ROWS, COLUMNS), np.arange(ROWS)
    add("", "GatherGrad", shape, rows, DY, constants=(0,), attributes={"axis": 0})
    add("", "GatherNDGrad", shape, rows[:, None], DY, constants=(0,))
    index = np.tile(rows[:, None], (1, COLUMNS))
    add("", "GatherElementsGrad", DY, shape, index, constants=(1,), attributes={"axis": 0})
    whole = (shape, _ints(0), _ints(ROWS), _ints(0), _ints(1))
    add("", "SliceGrad", DY, *whole, constants=(1, 2, 3, 4, 5))
    add("", "ConcatTraining", X, DY, attributes={"axis": 0}, outputs=2)
    parts = {"attributes": {"axis": 0}, "outputs": 2, "constants": (1,)}
    add("", "SplitTraining", X, _ints(64, 64), **parts)
