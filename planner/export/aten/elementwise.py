"""Elementwise arithmetic, comparison, logic and activations, with their gradients."""

from __future__ import annotations

import math

import torch
from torch import fx

from planner.export.aten.registry import ABSENT, Lowering, Result, Rule, lowers
from planner.export.write.emit import Value

Operand = fx.Node | float

UNARY = {
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "log": "Log",
    "neg": "Neg",
    "_neg_view": "Neg",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "sgn": "Sign",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}
ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
_OF_BOOLEANS = {"Add": "Or", "Mul": "And", "Max": "Or", "Min": "And"}


def _unary(op_type: str) -> Rule:
    def rule(low: Lowering, x: fx.Node) -> Result:
        return low.op(op_type, low.operand(x, low.dtype))

    return rule


def _arithmetic(op_type: str) -> Rule:
    def rule(low: Lowering, x: Operand, y: Operand, alpha: float = 1) -> Result:
        left, right = low.operand(x, low.dtype), low.operand(y, low.dtype)
        if low.dtype == torch.bool and op_type in _OF_BOOLEANS:
            return low.op(_OF_BOOLEANS[op_type], left, right)
        if alpha != 1:
            right = low.op("Mul", right, low.scalar(alpha), tag="scaled")
        return low.op(op_type, left, right)

    return rule


for _name, _op_type in UNARY.items():
    lowers(_name)(_unary(_op_type))
for _name, _op_type in ARITHMETIC.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_arithmetic(_op_type))
for _name, _op_type in (("minimum", "Min"), ("maximum", "Max")):
    lowers(_name)(_arithmetic(_op_type))


@lowers("eq.Tensor", "eq.Scalar")
def equal(low: Lowering, x: fx.Node, y: Operand) -> Result:
    other = y.meta["val"] if isinstance(y, fx.Node) else y
    common = torch.result_type(x.meta["val"], other)
    return low.op("Equal", low.operand(x, common), low.operand(y, common))


@lowers("isnan")
def is_nan(low: Lowering, x: fx.Node) -> Result:
    """Lower isnan; for integers to False by other operators, since ONNX's IsNaN takes floats only."""
    value, dtype = low.value(x), low.type_of(x)
    if dtype.is_floating_point:
        return low.op("IsNaN", value)
    return low.op("Not", low.op("Equal", value, value, tag="equal"))


@lowers("rsub.Scalar", "rsub.Tensor")
def reverse_subtract(low: Lowering, x: fx.Node, y: Operand, alpha: float = 1) -> Result:
    if alpha != 1:
        raise low.unsupported("alpha other than 1")
    return low.op("Sub", low.operand(y, low.dtype), low.operand(x, low.dtype))


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", wide=True)
def remainder(low: Lowering, x: Operand, y: Operand) -> Result:
    """Lower remainder, whose sign is the divisor's.

    ONNX's Mod of integers gives the same. Its Mod of floats (C's fmod, exact) has the dividend's sign,
    and is corrected.
    """
    return _remainder(low, low.operand(x, low.dtype), low.operand(y, low.dtype))


def _remainder(low: Lowering, left: Value, right: Value) -> Value:
    if not low.dtype.is_floating_point:
        return low.op("Mod", left, right)
    rest, is_other = _rest(low, left, right)
    return low.op("Where", is_other, low.op("Add", rest, right, tag="moved"), rest)


def _rest(low: Lowering, left: Value, right: Value) -> tuple[Value, Value]:
    """Return (truncated division's remainder, whether its sign is not the divisor's), for floats."""
    rest = low.op("Mod", left, right, fmod=1, tag="rest")
    signs = low.op("Mul", low.op("Sign", rest, tag="sign"), right, tag="signs")
    return rest, low.op("Less", signs, low.scalar(0), tag="other")


@lowers("floor_divide", "div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(
    low: Lowering, x: Operand, y: Operand, rounding_mode: str | None = "floor"
) -> Result:
    """Lower division with rounding.

    Floor: `(x - rest) / y`, less 1 if signs differ, as in PyTorch's kernel; `floor(x / y)` gives another
    result (1 // 0.1). Truncation of integers is ONNX's division.
    """
    left, right = low.operand(x, low.dtype), low.operand(y, low.dtype)
    is_float = low.dtype.is_floating_point
    if rounding_mode == "floor" and is_float:
        rest, is_other = _rest(low, left, right)
        multiple = low.op("Div", low.op("Sub", left, rest, tag="multiple"), right, tag="times")
        less = low.op("Sub", multiple, low.cast(is_other, torch.bool, low.dtype, "one"), tag="less")
        plain = low.op("Div", left, right, tag="plain")
        by_zero = low.op("Equal", right, low.scalar(0), tag="by_zero")
        return low.op("Where", by_zero, plain, low.op("Round", less, tag="whole"))
    if rounding_mode == "floor":
        left = low.op("Sub", left, _remainder(low, left, right), tag="multiple")
    found = low.op("Div", left, right, tag="quotient")
    if not is_float or rounding_mode is None:
        return found
    size = low.op("Floor", low.op("Abs", found, tag="size"), tag="whole")
    return low.op("Mul", low.op("Sign", found, tag="sign"), size)


@lowers("sigmoid")
def sigmoid(low: Lowering, x: fx.Node) -> Result:
    """Lower sigmoid; if a steep operator such as a logarithm reads it, by `1 / (1 + exp(-x))`.

    ONNX Runtime's Sigmoid has an error of 6e-8, and is 0 below -18.
    """
    value = low.operand(x, low.dtype)
    if low.dtype != torch.float32 or not _has_steep_reader(low.node):
        return low.op("Sigmoid", value)
    power = low.op("Exp", low.op("Neg", value, tag="turned"), tag="power")
    return low.op("Reciprocal", low.op("Add", power, low.scalar(1), tag="above"))


@lowers("log1p", wide=True)
def log_one_plus(low: Lowering, x: fx.Node) -> Result:
    """Lower log1p to `log(u)` with u = 1 + x.

    If a reader is steep at 0, use `log(u) x / (u - 1)`, which corrects the rounding of u (Kahan), and x
    where u is 1.
    """
    value = low.operand(x, low.dtype)
    above = low.op("Add", value, low.scalar(1), tag="above")
    if not _has_steep_reader(low.node):
        return low.op("Log", above)
    log, kept = low.op("Log", above, tag="log"), low.op("Sub", above, low.scalar(1), tag="kept")
    share = low.op("Div", value, kept, tag="share")
    is_all = low.op("Equal", share, low.scalar(1), tag="is_all")
    mended = low.op("Where", is_all, log, low.op("Mul", log, share, tag="mended"), tag="found")
    return low.op("Where", low.op("Equal", kept, low.scalar(0), tag="is_none"), value, mended)


@lowers("expm1", wide=True)
def power_less_one(low: Lowering, x: fx.Node) -> Result:
    """Lower expm1 to `(u - 1) x / log(u)` with u = exp(x), which corrects the rounding of u (Kahan).

    Where u is 1 the result is x, and where |x| is above 1 it is `u - 1`.
    """
    value = low.operand(x, low.dtype)
    power = low.op("Exp", value, tag="power")
    less = low.op("Sub", power, low.scalar(1), tag="less")
    mended = low.op(
        "Div", low.op("Mul", less, value, tag="scaled"), low.op("Log", power, tag="log")
    )
    is_far = low.op("Greater", low.op("Abs", value, tag="size"), low.scalar(1), tag="is_far")
    found = low.op("Where", is_far, less, mended, tag="found")
    return low.op("Where", low.op("Equal", less, low.scalar(0), tag="is_none"), value, found)


@lowers("rsqrt", wide=True)
def reciprocal_root(low: Lowering, x: fx.Node) -> Result:
    return low.op("Reciprocal", low.op("Sqrt", low.value(x), tag="root"))


@lowers("pow.Tensor_Scalar")
def power(low: Lowering, x: fx.Node, exponent: float) -> Result:
    base = low.operand(x, low.dtype)
    if exponent == 2:
        return low.op("Mul", base, base)
    return low.op("Pow", base, low.scalar(exponent))


@lowers("pow.Scalar", "pow.Tensor_Tensor")
def power_of_tensor(low: Lowering, x: Operand, exponent: fx.Node) -> Result:
    return low.op("Pow", low.operand(x, low.dtype), low.operand(exponent, low.dtype))


@lowers("clamp")
def clamp(
    low: Lowering, x: fx.Node, minimum: float | None = None, maximum: float | None = None
) -> Result:
    """Lower clamp with infinite default bounds: ONNX Runtime's are the largest finite numbers."""
    if low.dtype.is_floating_point:
        minimum = -math.inf if minimum is None else minimum
        maximum = math.inf if maximum is None else maximum
    bounds = [ABSENT if bound is None else low.scalar(bound) for bound in (minimum, maximum)]
    return low.op("Clip", low.value(x), *bounds)


@lowers("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def clamp_by_tensors(
    low: Lowering, x: fx.Node, *bounds: fx.Node | None, **named: fx.Node
) -> Result:
    only_max = "clamp_max" in str(low.node.target)
    least, most = (None, *bounds) if only_max else (*bounds, None, None)[:2]
    least, most = named.get("min", least), named.get("max", most)
    value = low.operand(x, low.dtype)
    for bound, op_type in ((least, "Max"), (most, "Min")):
        if bound is not None:
            value = low.op(op_type, value, low.operand(bound, low.dtype), tag=op_type.lower())
    return value


@lowers("clamp_min")
def clamp_min(low: Lowering, x: fx.Node, minimum: float) -> Result:
    return clamp(low, x, minimum)


@lowers("clamp_max")
def clamp_max(low: Lowering, x: fx.Node, maximum: float) -> Result:
    return clamp(low, x, None, maximum)


@lowers("gelu", wide=True)
def gelu(low: Lowering, x: fx.Node, approximate: str = "none") -> Result:
    """Lower GELU to `x * cdf(x)`, with the normal distribution's cdf or its tanh approximation."""
    source = low.value(x)
    cdf = _normal_cdf(low, source) if approximate == "none" else _tanh_cdf(low, source)[0]
    return low.op("Mul", source, cdf)


_STEEP = 3e38
"""A slope close to the largest float32."""

# -- gradients: `dy` is the gradient of the result -------------------------------------------------


@lowers("threshold_backward")
def threshold_backward(low: Lowering, dy: fx.Node, y: fx.Node, threshold: float) -> Result:
    """Lower relu's gradient from its result: `dy` where the result is above the threshold.

    A relu's result is not negative: its sign is the mask. A HardSigmoid of maximal slope is the sign of
    all but the smallest numbers (0 to 3e-39, which have no full precision). It takes a fifth of the time
    of ONNX Runtime's Sign on a CPU, and WebGPU has a kernel for it. `Where` is slower still: it expands
    both branches to full size on the CPU. If `dy` may be infinite at 0, as behind a square root, a
    product with the mask would be NaN, and `Where` is used.
    """
    if threshold == 0 and not _has_steep_reader(y):
        with low.builder.ahead_of(low.value(dy)):
            if low.dtype == torch.float32:
                passed = low.op("HardSigmoid", low.value(y), tag="passed", alpha=_STEEP, beta=0.0)
            else:  # the CPU has no HardSigmoid in other types
                passed = low.op("Sign", low.value(y), tag="passed")
        return low.op("Mul", low.value(dy), passed)
    stopped = low.op("LessOrEqual", low.value(y), low.scalar(threshold), tag="stopped")
    return low.op("Where", stopped, low.scalar(0), low.value(dy))


_STEEP_AT_ZERO = frozenset(
    {"div", "log", "log2", "log10", "logit", "pow", "reciprocal", "rsqrt", "sqrt"}
)
"""Operators whose slope is, or may be, infinite at 0."""

_KEEP_ZEROS = frozenset(
    {
        "_to_copy", "abs", "add", "amax", "amin", "avg_pool2d", "cat", "clone", "expand", "max", "mean",
        "min", "mul", "neg", "permute", "relu", "select", "sgn", "slice", "squeeze", "sum", "t",
        "transpose", "unsqueeze", "view", "where",
    }
)  # fmt: skip
"""Operators whose result may be 0 where an input is."""


def _has_steep_reader(y: fx.Node) -> bool:
    """Tell whether an operator steep at 0 reads `y`, or a value that may be 0 where `y` is."""
    queue, seen = [y], {y}
    while queue:
        for reader in queue.pop().users:
            name = str(reader.target).removeprefix("aten.").partition(".")[0]
            if name in _STEEP_AT_ZERO:
                return True
            if name in _KEEP_ZEROS and reader not in seen:
                seen.add(reader)
                queue.append(reader)
    return False


@lowers("hardtanh_backward", wide=True)
def hardtanh_backward(low: Lowering, dy: fx.Node, x: fx.Node, least: float, most: float) -> Result:
    """Lower hardtanh's gradient: `dy` between the bounds, and 0 at and beyond them."""
    above = low.op("Greater", low.value(x), low.scalar(least), tag="above")
    below = low.op("Less", low.value(x), low.scalar(most), tag="below")
    inside = low.op("And", above, below, tag="inside")
    return low.op("Where", inside, low.value(dy), low.scalar(0))


@lowers("tanh_backward", wide=True)
def tanh_backward(low: Lowering, dy: fx.Node, y: fx.Node) -> Result:
    """Lower tanh's gradient from its result: `dy * (1 - y²)`."""
    return low.op("Mul", low.value(dy), _one_minus_square(low, low.value(y)))


@lowers("sigmoid_backward", wide=True)
def sigmoid_backward(low: Lowering, dy: fx.Node, y: fx.Node) -> Result:
    """Lower sigmoid's gradient from its result: `dy * y (1 - y)`."""
    rest = low.op("Sub", low.scalar(1), low.value(y), tag="rest")
    slope = low.op("Mul", low.value(y), rest, tag="slope")
    return low.op("Mul", low.value(dy), slope)


@lowers("silu_backward", wide=True)
def silu_backward(low: Lowering, dy: fx.Node, x: fx.Node) -> Result:
    """Lower SiLU's gradient: `dy * s (1 + x (1 - s))` with s = sigmoid(x)."""
    gate = low.op("Sigmoid", low.value(x), tag="gate")
    rest = low.op("Sub", low.scalar(1), gate, tag="rest")
    bend = low.op("Add", low.op("Mul", low.value(x), rest, tag="bent"), low.scalar(1), tag="bend")
    return low.op("Mul", low.value(dy), low.op("Mul", gate, bend, tag="slope"))


@lowers("gelu_backward", wide=True)
def gelu_backward(low: Lowering, dy: fx.Node, x: fx.Node, approximate: str = "none") -> Result:
    """Lower GELU's gradient: `dy * (cdf(x) + x pdf(x))`, with the pdf as the cdf's derivative."""
    source = low.value(x)
    if approximate == "none":
        cdf = _normal_cdf(low, source)
        square = low.op("Mul", source, source, tag="square")
        exponent = low.op("Mul", square, low.scalar(-0.5), tag="exponent")
        bell = low.op("Exp", exponent, tag="bell")
        pdf = low.op("Mul", bell, low.scalar(1 / math.sqrt(2 * math.pi)), tag="pdf")
    else:
        cdf, tanh = _tanh_cdf(low, source)
        square = low.op("Mul", source, source, tag="square2")
        rise = low.op("Mul", square, low.scalar(1.5 * _CUBIC * _SCALE), tag="rise")
        rise = low.op("Add", rise, low.scalar(0.5 * _SCALE), tag="rise_at")
        pdf = low.op("Mul", rise, _one_minus_square(low, tanh), tag="pdf")
    slope = low.op("Add", cdf, low.op("Mul", source, pdf, tag="tilt"), tag="slope")
    return low.op("Mul", low.value(dy), slope)


_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _normal_cdf(low: Lowering, x: Value) -> Value:
    """Append `(1 + erf(x / √2)) / 2`."""
    scaled = low.op("Div", x, low.scalar(math.sqrt(2)), tag="scaled")
    shifted = low.op("Add", low.op("Erf", scaled, tag="erf"), low.scalar(1), tag="shifted")
    return low.op("Mul", shifted, low.scalar(0.5), tag="cdf")


def _tanh_cdf(low: Lowering, x: Value) -> tuple[Value, Value]:
    """Append and return `(1 + t) / 2` and t, with t = tanh(√(2/π) (x + 0.044715 x³))."""
    square = low.op("Mul", x, x, tag="square")
    factor = low.op("Mul", square, low.scalar(_CUBIC * _SCALE), tag="factor")
    factor = low.op("Add", factor, low.scalar(_SCALE), tag="factor_at")
    tanh = low.op("Tanh", low.op("Mul", x, factor, tag="angle"), tag="tanh")
    shifted = low.op("Add", tanh, low.scalar(1), tag="shifted")
    return low.op("Mul", shifted, low.scalar(0.5), tag="cdf"), tanh


def _one_minus_square(low: Lowering, y: Value) -> Value:
    square = low.op("Mul", y, y, tag="squared")
    return low.op("Sub", low.scalar(1), square, tag="rest")
