"""ONNX operators as operations of `planner.fused::Pointwise`: one row each.

A row is exact on a device where every step is IEEE-exact and in the order of ONNX Runtime's kernel
there: the bits are then the same. Other rows differ in last bits: their functions have other terms,
or their sums another order. The largest of a row with a NaN is a NaN; ONNX Runtime's kernel for the CPU
drops it or not, by its place. tests/fuse/test_operators.py compares each row with ONNX Runtime on the
CPU, special values included. For other targets the rows follow the sources of their kernels, and have
not run on a card yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.graph.effects import ONNX_DOMAINS
from planner.targets.target import FusedKernels

FLOATS = frozenset({"float", "double"})
NUMBERS = FLOATS | {"int32", "int64"}
BOOL = frozenset({"bool"})
TYPES = NUMBERS | BOOL
"""Element types of a program's values, as `planner.graph.model.Tensor` names them."""
HALVES = frozenset({"float16", "bfloat16"})
"""Half types, which programs have on some targets; none of their operations is called exact."""

Emit = Callable[["Writer", Sequence[str], str, Mapping[str, object]], tuple[str, ...]]
"""Writes the steps of one operator, and returns its results: (writer, its inputs, type of its first
input, attributes)."""


@dataclass(slots=True)
class Writer:
    """The lines of a program that is being written."""

    lines: list[str] = field(default_factory=list)
    _count: int = 0

    def step(self, operation: str, *values: str) -> str:
        """Add a step, and return the name of its result."""
        name = f"t{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {operation} {' '.join(values)}")
        return name

    def constant(self, dtype: str, value: str) -> str:
        """Add a constant, and return its name."""
        return self.step("constant", dtype, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An operator's steps in a program, and the known properties of its numbers.

    Attributes:
        emit: writes its steps.
        types: element types of its inputs, except for a condition or an exponent.
        exact: whether the bits are those of ONNX Runtime's kernel, unless the target's row says otherwise
            (`FusedKernels.inexact`).
        reduces: whether its steps reduce over its first input's last axes.
        reads_one: whether its steps read the first input alone: the second is known beforehand.
    """

    emit: Emit
    types: frozenset[str] = NUMBERS
    exact: bool = True
    reduces: bool = False
    reads_one: bool = False

    def takes(self, dtype: str) -> bool:
        """Tell whether the operator takes values of a type; it takes halves where it takes other
        floats."""
        return dtype in self.types or (dtype in HALVES and bool(self.types & FLOATS))


def _plain(operation: str) -> Emit:
    return lambda writer, values, _type, _attributes: (writer.step(operation, *values),)


def _folded(operation: str) -> Emit:
    """Write a binary operation over any number of inputs, from the first on."""

    def emit(
        writer: Writer, values: Sequence[str], _type: str, _attributes: object
    ) -> tuple[str, ...]:
        result = values[0]
        for value in values[1:]:
            result = writer.step(operation, result, value)
        return (result,)

    return emit


def _cast(
    writer: Writer, values: Sequence[str], _type: str, attributes: Mapping[str, object]
) -> tuple[str, ...]:
    return (writer.step("cast", (CASTS | _HALF_CASTS)[int(str(attributes["to"]))], values[0]),)


def _hard_sigmoid(
    writer: Writer, values: Sequence[str], dtype: str, attributes: Mapping[str, object]
) -> tuple[str, ...]:
    """Write max(0, min(1, alpha x + beta))."""
    alpha = writer.constant(dtype, _single(attributes.get("alpha", 0.2)))
    beta = writer.constant(dtype, _single(attributes.get("beta", 0.5)))
    line = writer.step("add", writer.step("mul", values[0], alpha), beta)
    low = writer.step("minimum", line, writer.constant(dtype, "1"))
    return (writer.step("maximum", low, writer.constant(dtype, "0")),)


def _single(value: object) -> str:
    """Return an attribute rounded to float32, the type of attributes in every kernel."""
    return repr(float(np.float32(str(value))))


def _reciprocal(
    writer: Writer, values: Sequence[str], dtype: str, _attributes: object
) -> tuple[str, ...]:
    return (writer.step("div", writer.constant(dtype, "1"), values[0]),)


def _power(
    writer: Writer, values: Sequence[str], _type: str, attributes: Mapping[str, object]
) -> tuple[str, ...]:
    """Write x x or x (x x), as ONNX Runtime's kernel does where the exponent alone is a scalar to it
    (`is_scalar`; core/providers/cpu/math/element_wise_ops.cc)."""
    square = writer.step("mul", values[0], values[0])
    return (square if attributes["exponent"] == 2 else writer.step("mul", values[0], square),)


def _softmax(writer: Writer, values: Sequence[str], dtype: str, _attributes: object) -> tuple[str]:
    wide = "float" if dtype in HALVES else dtype
    _, exps, total = _exponentials(writer, _wide(writer, values[0], dtype))
    scale = writer.step("div", writer.constant(wide, "1"), total)  # once a row: divisions are slow
    return (_narrow(writer, writer.step("mul", exps, scale), dtype),)


def _log_softmax(
    writer: Writer, values: Sequence[str], dtype: str, _attributes: object
) -> tuple[str]:
    gap, _, total = _exponentials(writer, _wide(writer, values[0], dtype))
    return (_narrow(writer, writer.step("sub", gap, writer.step("log", total)), dtype),)


def _exponentials(writer: Writer, x: str) -> tuple[str, str, str]:
    """Write what is left of a row where its largest is taken off, the exponentials and their sum."""
    gap = writer.step("sub", x, writer.step("max", x))
    exps = writer.step("exp", gap)
    return gap, exps, writer.step("sum", exps)


def _layer_norm(
    writer: Writer, values: Sequence[str], dtype: str, attributes: Mapping[str, object]
) -> tuple[str, ...]:
    """Write the result, each row's mean, and one over its deviation."""
    x, *affine = (_wide(writer, value, dtype) for value in values)
    mean = writer.step("mean", x)
    gap = writer.step("sub", x, mean)
    variance = writer.step("mean", writer.step("mul", gap, gap))
    epsilon = writer.constant("float", _single(attributes.get("epsilon", 1e-5)))
    deviation = writer.step("sqrt", writer.step("add", variance, epsilon))
    one_over = writer.step("div", writer.constant("float", "1"), deviation)
    result = writer.step("mul", gap, one_over)
    for operation, value in zip(("mul", "add"), affine, strict=False):
        result = writer.step(operation, result, value)
    return _narrow(writer, result, dtype), mean, one_over


def _wide(writer: Writer, value: str, dtype: str) -> str:
    """Return a half as a float, which kernels of whole operators compute in."""
    return writer.step("cast", "float", value) if dtype in HALVES else value


def _narrow(writer: Writer, value: str, dtype: str) -> str:
    return writer.step("cast", dtype, value) if dtype in HALVES else value


POWERS = (2.0, 3.0)
"""Exponents that are written as products; a Pow with another one is not fused."""

CASTS = {1: "float", 11: "double", 6: "int32", 7: "int64", 9: "bool"}
"""Element types by number (onnx.TensorProto.DataType)."""
_HALF_CASTS = {10: "float16", 16: "bfloat16"}

OPERATORS: Mapping[str, Row] = {
    "Add": Row(emit=_plain("add")),
    "Sub": Row(emit=_plain("sub")),
    "Mul": Row(emit=_plain("mul")),
    "Div": Row(emit=_plain("div"), types=FLOATS),
    "Sum": Row(emit=_folded("add"), types=FLOATS),
    "Max": Row(emit=_plain("maximum")),
    "Min": Row(emit=_plain("minimum")),
    "Pow": Row(emit=_power, types=FLOATS, reads_one=True),
    "Neg": Row(emit=_plain("neg")),
    "Abs": Row(emit=_plain("abs")),
    "Sqrt": Row(emit=_plain("sqrt"), types=FLOATS),
    "Reciprocal": Row(emit=_reciprocal, types=FLOATS),
    "Relu": Row(emit=_plain("relu"), types=FLOATS),
    "Equal": Row(emit=_plain("equal"), types=TYPES),
    "Less": Row(emit=_plain("less")),
    "LessOrEqual": Row(emit=_plain("less_equal")),
    "Greater": Row(emit=_plain("greater")),
    "GreaterOrEqual": Row(emit=_plain("greater_equal")),
    "And": Row(emit=_plain("and"), types=BOOL),
    "Or": Row(emit=_plain("or"), types=BOOL),
    "Xor": Row(emit=_plain("xor"), types=BOOL),
    "Not": Row(emit=_plain("not"), types=BOOL),
    "Where": Row(emit=_plain("where")),
    "Cast": Row(emit=_cast, types=TYPES),
    "Exp": Row(emit=_plain("exp"), types=FLOATS, exact=False),
    "Log": Row(emit=_plain("log"), types=FLOATS, exact=False),
    "Tanh": Row(emit=_plain("tanh"), types=FLOATS, exact=False),
    "Erf": Row(emit=_plain("erf"), types=frozenset({"float"}), exact=False),
    "Sigmoid": Row(emit=_plain("sigmoid"), types=FLOATS, exact=False),
    "HardSigmoid": Row(emit=_hard_sigmoid, types=FLOATS),
    "ReduceSum": Row(emit=_plain("sum"), types=FLOATS, exact=False, reduces=True, reads_one=True),
    "ReduceMean": Row(emit=_plain("mean"), types=FLOATS, exact=False, reduces=True, reads_one=True),
    "ReduceMax": Row(emit=_plain("max"), types=FLOATS, exact=False, reduces=True, reads_one=True),
    "Softmax": Row(emit=_softmax, types=FLOATS, exact=False, reduces=True),
    "LogSoftmax": Row(emit=_log_softmax, types=FLOATS, exact=False, reduces=True),
    "LayerNormalization": Row(
        emit=_layer_norm, types=frozenset({"float"}), exact=False, reduces=True
    ),
}


def types_of(kernels: FusedKernels, *, only_exact: bool) -> frozenset[str]:
    """Return the element types that programs may have on a target."""
    return TYPES | HALVES if kernels.halves and not only_exact else TYPES


def is_scalar(first: Sequence[int], second: Sequence[int]) -> bool:
    """Tell whether the host's kernels take the first operand for a scalar, which they ask before they
    ask it of the second.

    They look at the last axis that both have and that is not 1 in both (`Broadcaster` in
    core/providers/cpu/math/element_wise_ops.h); a shape () has the other's last axis.
    """
    for one, other in zip(reversed(first or (1,)), reversed(second or (1,)), strict=False):
        if one != 1 or other != 1:
            return one == 1
    return True


def row_of(op_type: str, domain: str) -> Row | None:
    """Return the operator's row; None where it has none."""
    return OPERATORS.get(op_type) if domain in ONNX_DOMAINS else None
