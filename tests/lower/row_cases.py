"""Single nodes of every operator that has a row rule, with random shapes and attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper as h
from onnx import numpy_helper as nh

Draw = Callable[[st.SearchStrategy[Any]], Any]
Arrays = dict[str, np.ndarray]

DIMS = st.sampled_from([1, 2, 3, 4, 5, 6, 9])


@dataclass(slots=True, kw_only=True)
class Case:
    """One node: the arrays that it reads, those of them that are constants, and its attributes."""

    op_type: str
    feeds: Arrays
    constants: Arrays = field(default_factory=dict)
    attributes: dict[str, object] = field(default_factory=dict)
    domain: str = ""
    outputs: int = 1
    opset: int = 18
    order: tuple[str, ...] = ()

    def model(self) -> onnx.ModelProto:
        """The node as a model; outputs have no declared shapes."""
        names = self.order or (*self.feeds, *self.constants)
        made = [f"y{i}" for i in range(self.outputs)]
        node = h.make_node(
            self.op_type, list(names), made, name="node", domain=self.domain, **self.attributes
        )
        inputs = [
            h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.feeds.items()
        ]
        constants = [nh.from_array(a, n) for n, a in self.constants.items()]
        wanted = [onnx.ValueInfoProto(name=n) for n in made]
        graph = h.make_graph([node], "case", inputs, wanted, constants)
        opsets = [h.make_opsetid("", self.opset), h.make_opsetid("com.microsoft", 1)]
        return h.make_model(graph, opset_imports=opsets, ir_version=10)


def rng_of(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 1 << 16)))


def floats(draw: Draw, *shape: int) -> np.ndarray:
    return np.asarray(rng_of(draw).standard_normal(shape), dtype=np.float32)


def shape_of(draw: Draw, low: int = 1, high: int = 4) -> tuple[int, ...]:
    return tuple(draw(st.lists(DIMS, min_size=low, max_size=high)))


def broadcast(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that is broadcast to another."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) and draw(st.booleans()) else dim for dim in kept)


def unary(op_type: str, **more: object) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        x = floats(draw, *shape_of(draw))
        return Case(op_type=op_type, feeds={"x": x}, **more)  # pyright: ignore[reportArgumentType]

    return case


def binary(op_type: str, kind: str = "float32", count: int = 2) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        shape, rng = shape_of(draw), rng_of(draw)
        feeds: Arrays = {}
        for i in range(count):
            own = shape if i == 0 else broadcast(draw, shape)
            raw = rng.standard_normal(own)
            is_float = kind == "float32"
            feeds[f"x{i}"] = np.asarray(raw if is_float else np.abs(raw * 4), dtype=kind)
        more = {"direction": "LEFT"} if op_type == "BitShift" else {}
        more = {"fmod": 1} if op_type == "Mod" and kind == "float32" else more
        return Case(op_type=op_type, feeds=feeds, attributes=more)

    return case


def where(draw: Draw) -> Case:
    shape = shape_of(draw)
    mask = np.asarray(floats(draw, *broadcast(draw, shape)) > 0)
    feeds = {"c": mask, "x": floats(draw, *shape), "y": floats(draw, *broadcast(draw, shape))}
    return Case(op_type="Where", feeds=feeds)


def clip(draw: Draw) -> Case:
    bounds = {"lo": np.float32(-0.5), "hi": np.float32(0.5)}
    constants = {k: np.array(v) for k, v in bounds.items()}
    return Case(op_type="Clip", feeds={"x": floats(draw, *shape_of(draw))}, constants=constants)


def cast(draw: Draw) -> Case:
    to = onnx.TensorProto.DOUBLE
    return Case(op_type="Cast", feeds={"x": floats(draw, *shape_of(draw))}, attributes={"to": to})


def along_axis(op_type: str) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        shape = shape_of(draw)
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        attributes: dict[str, object] = {"axis": axis}
        if op_type.startswith("Arg"):
            attributes["keepdims"] = draw(st.integers(0, 1))
        return Case(op_type=op_type, feeds={"x": floats(draw, *shape)}, attributes=attributes)

    return case


def normalization(op_type: str, opset: int = 18) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        shape = shape_of(draw, 2)
        axis = draw(st.integers(1, len(shape) - 1))
        feeds = {"x": floats(draw, *shape), "scale": floats(draw, *shape[axis:])}
        outputs = 1
        if op_type == "LayerNormalization":
            feeds["bias"] = floats(draw, *shape[axis:])
            outputs = 3
        return Case(
            op_type=op_type, feeds=feeds, attributes={"axis": axis}, outputs=outputs, opset=opset
        )

    return case


def skip_normalization(op_type: str) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        shape = (draw(DIMS), draw(DIMS), draw(st.sampled_from([4, 8])))
        feeds = {n: floats(draw, *shape) for n in ("x", "skip")}
        feeds["gamma"] = floats(draw, shape[-1])
        return Case(op_type=op_type, feeds=feeds, domain="com.microsoft")

    return case


def bias_gelu(op_type: str) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        shape = shape_of(draw, 2)
        feeds = {"x": floats(draw, *shape), "b": floats(draw, shape[-1])}
        return Case(op_type=op_type, feeds=feeds, domain="com.microsoft")

    return case


def reduce(op_type: str) -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        shape = shape_of(draw, 2)
        axes = draw(st.sets(st.integers(0, len(shape) - 1), max_size=len(shape) - 1))
        constants = {"axes": np.array(sorted(axes), dtype=np.int64)} if axes else {}
        x = np.abs(floats(draw, *shape)) + np.float32(0.1)
        return Case(
            op_type=op_type,
            feeds={"x": x},
            constants=constants,
            attributes={"keepdims": draw(st.integers(0, 1))},
        )

    return case


def batched(batch: tuple[int, ...], matrix: tuple[int, int], behind: int) -> tuple[int, ...]:
    """The shape of a stack of matrices, with the batch behind the first axis where that is asked."""
    return (matrix[0], *batch, matrix[1]) if behind else (*batch, *matrix)


def product(op_type: str, domain: str = "") -> Callable[[Draw], Case]:
    def case(draw: Draw) -> Case:
        rows, inner, columns = (draw(st.integers(1, 40)) for _ in range(3))
        batch = () if op_type.endswith("Gemm") else shape_of(draw, 0, 2)
        swaps = [0, 0] if op_type == "MatMul" else [draw(st.integers(0, 1)) for _ in range(2)]
        first = (inner, rows) if swaps[0] else (rows, inner)
        second = (columns, inner) if swaps[1] else (inner, columns)
        few = batch if draw(st.booleans()) else ()
        has_behind = op_type == "FusedMatMul" and bool(batch) and few == batch
        behind = [draw(st.integers(0, 1)) if has_behind else 0 for _ in range(2)]
        feeds = {
            "a": floats(draw, *batched(batch, first, behind[0])),
            "b": floats(draw, *batched(few, second, behind[1])),
        }
        attributes: dict[str, object] = {}
        if op_type != "MatMul":
            attributes.update(transA=swaps[0], transB=swaps[1], alpha=0.5)
        if any(behind):
            attributes.update(transBatchA=behind[0], transBatchB=behind[1])
        if op_type.endswith("Gemm") and draw(st.booleans()):
            feeds["c"] = floats(draw, *broadcast(draw, (rows, columns)))
            attributes["beta"] = 2.0
        if op_type == "FusedGemm":
            attributes["activation"] = "Relu"
        return Case(op_type=op_type, feeds=feeds, attributes=attributes, domain=domain)

    return case


def transpose(draw: Draw) -> Case:
    shape = shape_of(draw)
    order = draw(st.permutations(range(len(shape))))
    return Case(op_type="Transpose", feeds={"x": floats(draw, *shape)}, attributes={"perm": order})


def reshape(draw: Draw) -> Case:
    factors = [draw(st.sampled_from([1, 2, 3, 4])) for _ in range(4)]
    groups = [draw(st.booleans()) for _ in range(3)], [draw(st.booleans()) for _ in range(3)]
    before, after = (_grouped(factors, joins) for joins in groups)
    constants = {"shape": np.array(after, dtype=np.int64)}
    return Case(op_type="Reshape", feeds={"x": floats(draw, *before)}, constants=constants)


def _grouped(factors: list[int], joins: list[bool]) -> list[int]:
    """Factors, each multiplied with the one before it where they are joined."""
    dims = [factors[0]]
    for factor, join in zip(factors[1:], joins, strict=True):
        if join:
            dims[-1] *= factor
        else:
            dims.append(factor)
    return dims


def flatten(draw: Draw) -> Case:
    shape = shape_of(draw, 2)
    axis = draw(st.integers(0, len(shape)))
    return Case(op_type="Flatten", feeds={"x": floats(draw, *shape)}, attributes={"axis": axis})


def squeeze(draw: Draw) -> Case:
    shape = (draw(DIMS), 1, draw(DIMS))
    constants = {"axes": np.array([1], dtype=np.int64)}
    if min(shape[0], shape[2]) > 1 and draw(st.booleans()):
        constants = {}  # each dim of 1, which a chunk may have more of
    return Case(op_type="Squeeze", feeds={"x": floats(draw, *shape)}, constants=constants)


def unsqueeze(draw: Draw) -> Case:
    shape = shape_of(draw)
    axes = np.array([draw(st.integers(0, len(shape)))], dtype=np.int64)
    return Case(op_type="Unsqueeze", feeds={"x": floats(draw, *shape)}, constants={"axes": axes})


def gather(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    indices = rng_of(draw).integers(0, shape[axis], shape_of(draw, 0, 2))
    return Case(
        op_type="Gather",
        feeds={"x": floats(draw, *shape), "i": np.asarray(indices, dtype=np.int64)},
        attributes={"axis": axis},
    )


def gather_elements(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    own = tuple(draw(DIMS) if i == axis else dim for i, dim in enumerate(shape))
    indices = rng_of(draw).integers(0, shape[axis], own)
    return Case(
        op_type="GatherElements",
        feeds={"x": floats(draw, *shape), "i": indices},
        attributes={"axis": axis},
    )


def scatter_elements(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    own = tuple(draw(DIMS) if i == axis else dim for i, dim in enumerate(shape))
    indices = rng_of(draw).integers(0, shape[axis], own)
    return Case(
        op_type="ScatterElements",
        feeds={"x": floats(draw, *shape), "i": indices, "u": floats(draw, *own)},
        attributes={"axis": axis, "reduction": "add"},
    )


def one_hot(draw: Draw) -> Case:
    shape = shape_of(draw, 1, 3)
    axis = draw(st.integers(-1, len(shape)))
    return Case(
        op_type="OneHot",
        feeds={"i": rng_of(draw).integers(0, 5, shape), "levels": floats(draw, 2)},
        constants={"depth": np.array([5], dtype=np.int64)},
        attributes={"axis": axis},
        order=("i", "depth", "levels"),
    )


def slices(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    numbers = {"starts": 0, "ends": max(1, shape[axis] // 2), "axes": axis}
    constants = {k: np.array([v], dtype=np.int64) for k, v in numbers.items()}
    return Case(op_type="Slice", feeds={"x": floats(draw, *shape)}, constants=constants)


def pad(draw: Draw) -> Case:
    shape = shape_of(draw)
    pads = [draw(st.sampled_from([0, 0, 2])) for _ in range(2 * len(shape))]
    constants = {"pads": np.array(pads, dtype=np.int64)}
    return Case(op_type="Pad", feeds={"x": floats(draw, *shape)}, constants=constants)


def concat(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    feeds = {f"x{i}": floats(draw, *shape) for i in range(2)}
    return Case(op_type="Concat", feeds=feeds, attributes={"axis": axis})


def split(draw: Draw) -> Case:
    shape = list(shape_of(draw))
    axis = draw(st.integers(0, len(shape) - 1))
    shape[axis] = 4
    attributes: dict[str, object] = {"axis": axis, "num_outputs": 2}
    return Case(
        op_type="Split", feeds={"x": floats(draw, *shape)}, attributes=attributes, outputs=2
    )


def expand(draw: Draw) -> Case:
    shape = shape_of(draw)
    constants = {"shape": np.array(shape, dtype=np.int64)}
    x = floats(draw, *broadcast(draw, shape))
    return Case(op_type="Expand", feeds={"x": x}, constants=constants)


def tile(draw: Draw) -> Case:
    shape = shape_of(draw)
    repeats = [draw(st.integers(1, 2)) for _ in shape]
    constants = {"repeats": np.array(repeats, dtype=np.int64)}
    return Case(op_type="Tile", feeds={"x": floats(draw, *shape)}, constants=constants)


def triangle(draw: Draw) -> Case:
    return Case(op_type="Trilu", feeds={"x": floats(draw, *shape_of(draw, 2))})


def running_sum(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = np.array(draw(st.integers(0, len(shape) - 1)), dtype=np.int64)
    return Case(op_type="CumSum", feeds={"x": floats(draw, *shape)}, constants={"axis": axis})


_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish
    Identity IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"""

_BINARY = "Add Div Mod Mul PRelu Pow Sub Equal Greater GreaterOrEqual Less LessOrEqual"
_SEVERAL, _BOOLEAN = "Max Mean Min Sum", "And Or Xor"
_BITWISE = "BitShift BitwiseAnd BitwiseOr BitwiseXor"
_ALONG = "Softmax LogSoftmax Hardmax ArgMax ArgMin"
_REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare"""
_SKIPS = "SkipLayerNormalization SkipSimplifiedLayerNormalization"

CASES: dict[tuple[str, str], Callable[[Draw], Case]] = {
    **{("", n): unary(n) for n in _UNARY.split()},
    ("", "Gelu"): unary("Gelu", opset=20),
    **{("", n): binary(n) for n in _BINARY.split()},
    **{("", n): binary(n, count=3) for n in _SEVERAL.split()},
    **{("", n): binary(n, "bool") for n in _BOOLEAN.split()},
    **{("", n): binary(n, "uint32") for n in _BITWISE.split()},
    ("", "Not"): binary("Not", "bool", count=1),
    ("", "BitwiseNot"): binary("BitwiseNot", "uint32", count=1),
    ("", "Where"): where,
    ("", "Clip"): clip,
    ("", "Cast"): cast,
    **{("", n): along_axis(n) for n in _ALONG.split()},
    ("", "LayerNormalization"): normalization("LayerNormalization"),
    ("", "SimplifiedLayerNormalization"): normalization("SimplifiedLayerNormalization"),
    ("", "RMSNormalization"): normalization("RMSNormalization", opset=23),
    **{("", n): reduce(n) for n in _REDUCTIONS.split()},
    ("", "MatMul"): product("MatMul"),
    ("", "Gemm"): product("Gemm"),
    ("com.microsoft", "FusedMatMul"): product("FusedMatMul", "com.microsoft"),
    ("com.microsoft", "FusedGemm"): product("FusedGemm", "com.microsoft"),
    ("", "Transpose"): transpose,
    ("", "Reshape"): reshape,
    ("", "Flatten"): flatten,
    ("", "Squeeze"): squeeze,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "ScatterElements"): scatter_elements,
    ("", "OneHot"): one_hot,
    ("", "Slice"): slices,
    ("", "Pad"): pad,
    ("", "Concat"): concat,
    ("", "Split"): split,
    ("", "Expand"): expand,
    ("", "Tile"): tile,
    ("", "Trilu"): triangle,
    ("", "CumSum"): running_sum,
    **{("com.microsoft", n): skip_normalization(n) for n in _SKIPS.split()},
    ("com.microsoft", "BiasGelu"): bias_gelu("BiasGelu"),
    ("com.microsoft", "FastGelu"): bias_gelu("FastGelu"),
    ("com.microsoft", "Gelu"): unary("Gelu", domain="com.microsoft"),
    ("com.microsoft", "QuickGelu"): unary("QuickGelu", domain="com.microsoft"),
}
