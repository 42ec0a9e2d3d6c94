"""Templates: each adds some nodes of one class of operators to a graph under construction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

from tests.fuzz.builder import DTYPES, FLOATS, INTEGERS, Builder, Shape, Value

Template = Callable[[Builder], object]

_ONLY_FLOAT = frozenset(
    {
        "Celu", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Selu",
        "Softsign", "ThresholdedRelu",
    }
)  # fmt: skip
_UNARY = (
    *sorted(_ONLY_FLOAT),
    *("Abs", "Ceil", "Exp", "Floor", "Identity", "Neg", "Reciprocal", "Relu", "Round"),
    *("Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh"),
)


def unary(b: Builder) -> None:
    op = b.choose(_UNARY)
    x = b.pick((T.FLOAT,) if op in _ONLY_FLOAT else FLOATS)
    if op in ("Sqrt", "Reciprocal"):
        x = b.same("Exp", b.same("Tanh", x))
    if op == "Exp":
        x = b.same("Tanh", x)
    b.same(op, x)


def _broadcast(b: Builder, x: Value) -> Value:
    """Something that broadcasts to x: its like, a row, a scalar, a constant, its mean."""
    kind = b.rng.randrange(8)
    if kind < 4:
        return b.pick((x.dtype,), shape=x.shape)
    if kind == 4 and x.shape:
        return b.weights(x.dtype, x.shape[-1:])
    if kind == 5:
        return b.weights(x.dtype, ())
    if kind == 6:
        return b.weights(x.dtype, x.shape)
    return x


def binary(b: Builder) -> None:
    x = b.pick()
    y = _broadcast(b, x)
    op = b.choose(("Add", "Add", "Mul", "Mul", "Sub", "Div", "Max", "Min", "Pow", "PRelu"))
    if op in ("Div", "Pow"):
        y = b.same("Exp", b.same("Tanh", y))
    if op == "Pow":
        x = b.same("Abs", x)
    if op == "PRelu" and x.dtype != T.FLOAT:
        op = "Add"
    first, second = (x, y) if op in ("Div", "Pow", "PRelu") or b.chance(2) else (y, x)
    b.op(op, [first, second], (x.dtype, x.shape))


def variadic(b: Builder) -> None:
    x = b.pick((T.FLOAT,))
    parts = [x, *(b.pick((T.FLOAT,), shape=x.shape) for _ in range(b.rng.randint(0, 3)))]
    b.op(b.choose(("Sum", "Mean", "Max", "Min")), parts, (x.dtype, x.shape))


def compare(b: Builder) -> None:
    x = b.pick()
    y = _broadcast(b, x)
    op = b.choose(("Greater", "Less", "Equal", "GreaterOrEqual"))
    mask = b.op(op, [x, y], (T.BOOL, x.shape))[0]
    kind = b.rng.randrange(4)
    if kind == 0:
        mask = b.op("Not", [mask], (T.BOOL, x.shape))[0]
    if kind == 1:
        other = b.pick((T.BOOL,), shape=x.shape)
        mask = b.op(b.choose(("And", "Or", "Xor")), [mask, other], (T.BOOL, x.shape))[0]
    if kind == 2:
        b.op("Cast", [mask], (x.dtype, x.shape), to=x.dtype)
    else:
        b.op("Where", [mask, x, y], (x.dtype, x.shape))


def integer(b: Builder) -> None:
    x = b.pick(INTEGERS)
    y = b.pick((x.dtype,), shape=x.shape)
    kind = b.rng.randrange(4)
    if kind == 0:
        b.op(b.choose(("Add", "Mul", "Sub", "Max")), [x, y], (x.dtype, x.shape))
    elif kind == 1:
        b.op("Mod", [x, b.const(np.array(3, DTYPES[x.dtype]))], (x.dtype, x.shape))
    elif kind == 2:
        b.op("Cast", [x], (T.FLOAT, x.shape), to=T.FLOAT)
    else:
        b.same("Neg", x)


def cast(b: Builder) -> None:
    x = b.pick((*FLOATS, *INTEGERS, T.BOOL, T.FLOAT16))
    to = b.choose((T.FLOAT, T.FLOAT, T.DOUBLE, T.INT64, T.INT32, T.BOOL, T.FLOAT16, T.UINT8))
    if x.dtype in (*FLOATS, T.FLOAT16) and to == T.UINT8:
        x = b.same("Abs", x)
    b.op("Cast", [x], (to, x.shape), to=to)


def half(b: Builder) -> None:
    b.traits.add("float16")
    x = b.pick((T.FLOAT16,))
    op = b.choose(("Add", "Mul", "Sigmoid", "MatMul", "Softmax", "Transpose", "Cast", "Relu"))
    if op == "MatMul" and len(x.shape) == 2:
        w = b.weights(T.FLOAT16, (x.shape[1], 16))
        b.op(op, [x, w], (T.FLOAT16, (x.shape[0], 16)))
    elif op == "Transpose" and len(x.shape) == 2:
        b.op(op, [x], (T.FLOAT16, x.shape[::-1]), perm=[1, 0])
    elif op in ("Add", "Mul"):
        b.op(op, [x, b.pick((T.FLOAT16,), shape=x.shape)], (T.FLOAT16, x.shape))
    elif op == "Cast":
        b.op(op, [x], (T.FLOAT, x.shape), to=T.FLOAT)
    elif op in ("Sigmoid", "Relu") or (op == "Softmax" and x.shape):
        b.same(op, x)


def matmul(b: Builder) -> None:
    x = b.pick(where=lambda v: len(v.shape) >= 2)
    out = b.choose((4, 8, 16))
    learned = b.chance(2)
    shape = (x.shape[-1], out)
    w = b.pick((x.dtype,), shape=shape) if learned else b.weights(x.dtype, shape)
    y = b.op("MatMul", [x, w], (x.dtype, (*x.shape[:-1], out)))[0]
    if b.chance(2):
        y = b.op("Add", [y, b.weights(x.dtype, (out,))], (y.dtype, y.shape))[0]
    if b.chance(2):
        b.same(b.choose(("Relu", "Sigmoid", "Tanh", "Gelu" if x.dtype == T.FLOAT else "Relu")), y)


def gemm(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) == 2)
    trans_a, trans_b = b.rng.randrange(2), b.rng.randrange(2)
    rows, inner = (x.shape[1], x.shape[0]) if trans_a else x.shape
    out = b.choose((8, 16))
    w = b.pick((T.FLOAT,), shape=(out, inner) if trans_b else (inner, out))
    bias = b.choose((None, "row", "like"))
    more = [] if bias is None else [b.weights(T.FLOAT, (out,) if bias == "row" else (rows, out))]
    y = b.op(
        "Gemm", [x, w, *more], (T.FLOAT, (rows, out)), transA=trans_a, transB=trans_b,
        alpha=b.choose((1.0, 0.5)),
    )[0]  # fmt: skip
    if b.chance(2):
        b.same(b.choose(("Relu", "Sigmoid", "LeakyRelu")), y)


def gelu(b: Builder) -> None:
    """The expression that ONNX Runtime fuses to Gelu, with its inner values read again at times."""
    x = b.pick((T.FLOAT,))
    inner = b.op("Div", [x, b.const(np.float32(np.sqrt(2.0)).reshape(()))], (x.dtype, x.shape))[0]
    erf = b.same("Erf", inner)
    one = b.op("Add", [erf, b.const(np.array(1, np.float32))], (x.dtype, x.shape))[0]
    scaled = b.op("Mul", [x, one], (x.dtype, x.shape), keep=b.chance(3))[0]
    b.op("Mul", [scaled, b.const(np.array(0.5, np.float32))], (x.dtype, x.shape))


def norm(b: Builder) -> None:
    """LayerNormalization as one operator or as the nodes that ONNX Runtime fuses."""
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) >= 2 and v.count > 0)
    width = x.shape[-1]
    scale, bias = b.weights(T.FLOAT, (width,)), b.weights(T.FLOAT, (width,))
    small = (*x.shape[:-1], 1)
    if b.chance(2):
        outs: list[tuple[int, Shape] | None] = [(T.FLOAT, x.shape)]
        if b.chance(2):
            outs += [(T.FLOAT, small), (T.FLOAT, small)]
        b.op("LayerNormalization", [x, scale, bias], *outs, axis=-1)
        return
    axes = b.ints(-1)
    mean = b.op("ReduceMean", [x, axes], (T.FLOAT, small))[0]
    centred = b.op("Sub", [x, mean], (T.FLOAT, x.shape))[0]
    squared = b.op("Pow", [centred, b.const(np.array(2, np.float32))], (T.FLOAT, x.shape))[0]
    variance = b.op("ReduceMean", [squared, axes], (T.FLOAT, small))[0]
    eps = b.const(np.array(1e-5, np.float32))
    root = b.same("Sqrt", b.op("Add", [variance, eps], (T.FLOAT, small))[0])
    normal = b.op("Div", [centred, root], (T.FLOAT, x.shape))[0]
    scaled = b.op("Mul", [normal, scale], (T.FLOAT, x.shape))[0]
    b.op("Add", [scaled, bias], (T.FLOAT, x.shape))


def softmax(b: Builder) -> None:
    x = b.pick(where=lambda v: len(v.shape) >= 1)
    b.same(b.choose(("Softmax", "LogSoftmax")), x, axis=-1)


def reduce(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) >= 1 and v.count > 0)
    op = b.choose(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"))
    keep = b.rng.randrange(2)
    axis = b.rng.randrange(len(x.shape))
    kept = x.shape[:axis] + (1,) * keep + x.shape[axis + 1 :]
    if b.chance(4):
        b.op(op, [x], (x.dtype, (1,) * len(x.shape) if keep else ()), keepdims=keep)
    else:
        b.op(op, [x, b.ints(axis)], (x.dtype, kept), keepdims=keep)


def arg(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) == 2 and v.shape[1] > 2)
    kind = b.rng.randrange(3)
    if kind == 0:
        b.op("ArgMax", [x], (T.INT64, (x.shape[0],)), axis=1, keepdims=0)
    elif kind == 1:
        out = (x.shape[0], 2)
        b.op("TopK", [x, b.ints(2)], (x.dtype, out), (T.INT64, out), axis=1)
    else:
        b.op("CumSum", [x, b.const(np.array(1, np.int64))], (x.dtype, x.shape))


def views(b: Builder) -> None:
    x = b.pick((*FLOATS, *INTEGERS, T.BOOL), where=lambda v: v.count > 0)
    kind = b.rng.randrange(5)
    if kind == 0:
        b.op("Reshape", [x, b.ints(-1)], (x.dtype, (x.count,)))
    elif kind == 1 and len(x.shape) >= 2:
        target = (x.shape[1], x.shape[0], *x.shape[2:])
        b.op("Reshape", [x, b.ints(*target)], (x.dtype, target))
    elif kind == 2:
        y = b.op("Unsqueeze", [x, b.ints(0)], (x.dtype, (1, *x.shape)))[0]
        if b.chance(2):
            b.op("Squeeze", [y, b.ints(0)], (x.dtype, x.shape))
    elif kind == 3 and len(x.shape) >= 2:
        b.op("Flatten", [x], (x.dtype, (x.shape[0], x.count // x.shape[0])), axis=1)
    else:
        b.same("Identity", x)


def computed_shape(b: Builder) -> None:
    """Reshape, Expand, ConstantOfShape and Range by shapes that nodes compute."""
    b.traits.add("computed shape")
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) >= 1)
    rank = len(x.shape)
    shape = b.op("Shape", [x], (T.INT64, (rank,)), keep=False)[0]
    kind = b.rng.randrange(6)
    if kind == 0:
        y = b.pick((T.FLOAT,), where=lambda v: v.count == x.count)
        b.op("Reshape", [y, shape], (T.FLOAT, x.shape))
    elif kind == 1:
        row = b.weights(T.FLOAT, x.shape[-1:]) if b.chance(2) else b.weights(T.FLOAT, ())
        b.op("Expand", [row, shape], (T.FLOAT, x.shape))
    elif kind == 2:
        fill = h.make_tensor("value", T.FLOAT, [1], [0.5])
        zeros = b.op("ConstantOfShape", [shape], (T.FLOAT, x.shape), value=fill)[0]
        b.op("Add", [zeros, x], (T.FLOAT, x.shape))
    elif kind == 3:
        first = b.const(np.array(0, np.int64))
        rows = b.op("Gather", [shape, first], (T.INT64, ()), keep=False)[0]
        one = b.const(np.array(1, np.int64))
        count = b.op("Range", [first, rows, one], (T.INT64, (x.shape[0],)))[0]
        b.op("Cast", [count], (T.FLOAT, count.shape), to=T.FLOAT)
    elif kind == 4:
        size = b.op("Size", [x], (T.INT64, ()), keep=False)[0]
        as_float = b.op("Cast", [size], (T.FLOAT, ()), to=T.FLOAT)[0]
        b.op("Mul", [x, as_float], (T.FLOAT, x.shape))
    elif x.count and rank >= 2:
        head = b.op("Slice", [shape, b.ints(0), b.ints(1)], (T.INT64, (1,)), keep=False)[0]
        target = b.op("Concat", [head, b.ints(-1)], (T.INT64, (2,)), keep=False, axis=0)[0]
        flat = (x.shape[0], x.count // x.shape[0])
        b.op("Reshape", [x, target], (T.FLOAT, flat))


def move(b: Builder) -> None:
    x = b.pick((*FLOATS, T.INT64), where=lambda v: len(v.shape) >= 2 and v.count > 0)
    kind = b.rng.randrange(8)
    rows = x.shape[0]
    if kind == 0:
        perm = list(range(len(x.shape)))
        b.rng.shuffle(perm)
        b.op("Transpose", [x], (x.dtype, tuple(x.shape[i] for i in perm)), perm=perm)
    elif kind == 1:
        y = b.pick((x.dtype,), shape=x.shape)
        b.op("Concat", [x, y], (x.dtype, (2 * rows, *x.shape[1:])), axis=0)
    elif kind == 2 and rows % 2 == 0:
        half_shape = (rows // 2, *x.shape[1:])
        parts = [(x.dtype, half_shape)] * 2
        if b.chance(2):
            b.op("Split", [x, b.ints(rows // 2, rows // 2)], *parts, axis=0)
        else:
            b.op("Split", [x], *parts, axis=0, num_outputs=2)
    elif kind == 3:
        end = b.rng.randint(1, rows)
        b.op("Slice", [x, b.ints(0), b.ints(end), b.ints(0)], (x.dtype, (end, *x.shape[1:])))
    elif kind == 4:
        b.op("Tile", [x, b.ints(2, *(1,) * (len(x.shape) - 1))],
             (x.dtype, (2 * rows, *x.shape[1:])))  # fmt: skip
    elif kind == 5:
        pads = b.ints(1, *(0,) * (2 * len(x.shape) - 1))
        b.op("Pad", [x, pads], (x.dtype, (rows + 1, *x.shape[1:])))
    elif kind == 6 and len(x.shape) == 2:
        b.same("Trilu", x, upper=b.rng.randrange(2))
    else:
        b.op("Expand", [x, b.ints(2, *x.shape)], (x.dtype, (2, *x.shape)))


def gather(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) == 2 and v.shape[0] > 1)
    rows, width = x.shape
    kind = b.rng.randrange(5)
    index = b.ints(*(b.rng.randrange(rows) for _ in range(b.choose((1, 4, 8)))))
    if kind == 0:
        b.op("Gather", [x, index], (x.dtype, (index.shape[0], width)), axis=0)
    elif kind == 1:
        ids = b.input(T.INT64, (3,))  # 0 or 1
        b.op("Gather", [x, ids], (x.dtype, (3, width)), axis=0)
    elif kind == 2:
        pairs = b.const(np.zeros((4, 1), np.int64))
        b.op("GatherND", [x, pairs], (x.dtype, (4, width)))
    elif kind == 3:
        at = b.const(np.zeros((1, width), np.int64))
        new = b.weights(x.dtype, (1, width))
        b.op("ScatterElements", [x, at, new], (x.dtype, x.shape), axis=0)
    else:
        at = b.const(np.array([[0], [1]], np.int64))
        new = b.weights(x.dtype, (2, width))
        b.op("ScatterND", [x, at, new], (x.dtype, x.shape))


def convolution(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) == 4 and v.count > 0)
    n, channels, height, width = x.shape
    kind = b.rng.randrange(5)
    if kind < 2:
        out = b.choose((3, 16))
        w = b.weights(T.FLOAT, (out, channels, 1, 1), kind="overridable" if b.chance(2) else "")
        if b.chance(2):
            w = b.pick((T.FLOAT,), shape=(out, channels, 1, 1))
        y = b.op("Conv", [x, w], (T.FLOAT, (n, out, height, width)))[0]
        if b.chance(2):
            b.same("Relu", y)
    elif kind == 2 and height > 1 and width > 1:
        pooled = (n, channels, height // 2, width // 2)
        second = (T.INT64, pooled) if b.chance(3) else None
        b.op("MaxPool", [x], (T.FLOAT, pooled), second, kernel_shape=[2, 2], strides=[2, 2])
    elif kind == 3 and height > 1 and width > 1:
        pooled = (n, channels, height - 1, width - 1)
        b.op("AveragePool", [x], (T.FLOAT, pooled), kernel_shape=[2, 2])
    else:
        b.op("GlobalAveragePool", [x], (T.FLOAT, (n, channels, 1, 1)))


def batch_norm(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) in (2, 4) and v.count > 0)
    channels = x.shape[1]
    training = b.chance(2)
    row = (channels,)
    scale, bias = b.weights(T.FLOAT, row), b.weights(T.FLOAT, row)
    source = b.chance(2)
    if source:
        mean, var = b.input(T.FLOAT, row), b.input(T.FLOAT, row)
    else:
        mean = b.weights(T.FLOAT, row)
        var = b.const(np.full(row, 0.5, np.float32))
    if training:
        b.traits.add("batch norm in training")
        # running statistics as outputs: they are not written over their inputs
        b.op("BatchNormalization", [x, scale, bias, mean, var], (T.FLOAT, x.shape),
             (T.FLOAT, row), (T.FLOAT, row), training_mode=1)  # fmt: skip
    else:
        b.op("BatchNormalization", [x, scale, bias, mean, var], (T.FLOAT, x.shape))


def quantized(b: Builder) -> None:
    b.traits.add("QDQ")
    x = b.pick((T.FLOAT,))
    scale = b.const(np.array(0.05, np.float32))
    zero = b.const(np.array(128, np.uint8)) if b.chance(2) else b.const(np.array(0, np.int8))
    q = b.op("QuantizeLinear", [x, scale, zero], (zero.dtype, x.shape), keep=False)[0]
    y = b.op("DequantizeLinear", [q, scale, zero], (T.FLOAT, x.shape))[0]
    if b.chance(2) and len(x.shape) == 2:
        w = b.weights(T.FLOAT, (x.shape[1], 8))
        qw = b.op("QuantizeLinear", [w, scale, zero], (zero.dtype, w.shape), keep=False)[0]
        dw = b.op("DequantizeLinear", [qw, scale, zero], (T.FLOAT, w.shape), keep=False)[0]
        z = b.op("MatMul", [y, dw], (T.FLOAT, (x.shape[0], 8)), keep=False)[0]
        qz = b.op("QuantizeLinear", [z, scale, zero], (zero.dtype, z.shape), keep=False)[0]
        b.op("DequantizeLinear", [qz, scale, zero], (T.FLOAT, z.shape))


def dropout(b: Builder) -> None:
    x = b.pick((T.FLOAT,))
    ratio = b.const(np.array(0.3, np.float32))
    switch = b.const(np.array(b.chance(2)), kind="initializer")
    mask = (T.BOOL, x.shape) if b.chance(2) else None
    b.traits.add("Dropout")
    attributes = {"seed": b.rng.randrange(100)} if b.chance(2) else {}
    b.op("Dropout", [x, ratio, switch], (T.FLOAT, x.shape), mask, **attributes)


def random_numbers(b: Builder) -> None:
    b.traits.add("random numbers")
    x = b.pick((T.FLOAT,))
    seed = {"seed": float(b.rng.randrange(100))} if b.chance(2) else {}
    kind = b.rng.randrange(4)
    if kind == 0:
        b.op("RandomNormalLike", [x], (T.FLOAT, x.shape), **seed)
    elif kind == 1:
        shape = list(x.shape) or [1]
        b.op("RandomUniform", [], (T.FLOAT, tuple(shape)), shape=shape, **seed)
    elif kind == 2:
        p = b.same("Sigmoid", x)
        b.op("Bernoulli", [p], (T.FLOAT, x.shape), **seed)
    else:
        b.op("RandomUniformLike", [x], (T.FLOAT, x.shape), **seed)


def clip(b: Builder) -> None:
    x = b.pick((T.FLOAT,))
    low = b.choose((None, b.const(np.array(-0.5, np.float32))))
    high = b.const(np.array(0.5, np.float32))
    b.op("Clip", [x, low, high], (x.dtype, x.shape))


def constants(b: Builder) -> None:
    """What folding takes away: nodes that read constants alone."""
    shape = b.choose(((8, 16), (16, 16), (128, 256)))
    b.traits.add("foldable")
    if b.chance(2):
        fill = h.make_tensor("value", T.FLOAT, [1], [0.0])
        zeros = b.op("ConstantOfShape", [b.ints(*shape)], (T.FLOAT, shape), value=fill)[0]
    else:
        w = b.weights(T.FLOAT, shape, kind="initializer")
        zeros = b.same("Neg", w)
    if b.chance(2):
        b.op("Add", [zeros, b.pick((T.FLOAT,), shape=shape)], (T.FLOAT, shape))


def twins(b: Builder) -> None:
    """The same node twice, which common-subexpression elimination merges."""
    x = b.pick((T.FLOAT,))
    op = b.choose(("Sigmoid", "Tanh", "Neg"))
    one, two = b.same(op, x), b.same(op, x)
    if b.chance(2):
        b.op("Add", [one, two], (x.dtype, x.shape))


def one_hot(b: Builder) -> None:
    ids = b.pick((T.INT64,), where=lambda v: len(v.shape) == 1)
    values = b.const(np.array([0.0, 1.0], np.float32))
    depth = b.const(np.array(4, np.int64))
    b.op("OneHot", [ids, depth, values], (T.FLOAT, (*ids.shape, 4)))


def einsum(b: Builder) -> None:
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) == 2)
    y = b.pick((T.FLOAT,), shape=x.shape)
    b.op("Einsum", [x, y], (T.FLOAT, (x.shape[0], x.shape[0])), equation="ij,kj->ik")


def dead(b: Builder) -> None:
    """Nodes that nobody reads and that are no outputs."""
    b.traits.add("dead node")
    x = b.pick((T.FLOAT,))
    y = b.op("Sin", [x], (x.dtype, x.shape), keep=False)[0]
    if b.chance(2):
        b.op("Cos", [y], (x.dtype, x.shape), keep=False)


def lstm(b: Builder) -> None:
    """A recurrent operator, most of whose inputs and outputs are optional."""
    x = b.pick((T.FLOAT,), where=lambda v: len(v.shape) == 3 and v.count > 0)
    steps, batch, width = x.shape
    w, r = b.weights(T.FLOAT, (1, 16, width)), b.weights(T.FLOAT, (1, 16, 4))
    whole: tuple[int, Shape] | None = (T.FLOAT, (steps, 1, batch, 4))
    last: tuple[int, Shape] | None = (T.FLOAT, (1, batch, 4))
    outs = b.choose(([whole], [None, last], [whole, last, last]))
    b.op("LSTM", [x, w, r], *outs, hidden_size=4)


def chain(b: Builder) -> None:
    """A forward pass and a backward pass that reads its activations, the latest first."""
    x = b.pick()
    kept = [x]
    for _ in range(b.rng.randint(2, 6)):
        kept.append(b.same(b.choose(("Tanh", "Sigmoid", "Sin", "Cos")), kept[-1]))
    gradient = kept[-1]
    for activation in reversed(kept[:-1]):
        gradient = b.op("Mul", [gradient, activation], (x.dtype, x.shape), keep=b.chance(3))[0]
    b.values.append(gradient)


TEMPLATES: dict[str, tuple[Template, int]] = {
    "unary": (unary, 8),
    "binary": (binary, 8),
    "variadic": (variadic, 2),
    "compare": (compare, 3),
    "integer": (integer, 2),
    "cast": (cast, 3),
    "half": (half, 1),
    "matmul": (matmul, 5),
    "gemm": (gemm, 3),
    "gelu": (gelu, 1),
    "norm": (norm, 2),
    "softmax": (softmax, 3),
    "reduce": (reduce, 4),
    "arg": (arg, 2),
    "views": (views, 6),
    "computed shape": (computed_shape, 3),
    "move": (move, 5),
    "gather": (gather, 3),
    "convolution": (convolution, 2),
    "batch norm": (batch_norm, 1),
    "quantized": (quantized, 1),
    "dropout": (dropout, 2),
    "random": (random_numbers, 1),
    "clip": (clip, 2),
    "constants": (constants, 2),
    "chain": (chain, 5),
    "twins": (twins, 2),
    "one hot": (one_hot, 1),
    "einsum": (einsum, 1),
    "dead": (dead, 1),
    "lstm": (lstm, 1),
}
"""Template and weight, by class."""
