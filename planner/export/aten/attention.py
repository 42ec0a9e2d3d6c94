"""Softmax, and the fused scaled-dot-product attention that PyTorch selects on the CPU.

The forward pass keeps only the logarithm of the softmax's denominators, as the fused kernel does, and the
gradient computes the probabilities again.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import (
    HALF,
    Dim,
    Lowering,
    Result,
    dtype_of,
    lowers,
    numpy_dtype,
    shape_of,
)
from planner.export.write.emit import Value


@lowers("_softmax")
def softmax(low: Lowering, x: fx.Node, axis: int, half_to_float: bool) -> Result:
    del half_to_float
    return low.op("Softmax", low.operand(x, low.dtype), axis=axis)


@lowers("_safe_softmax", wide=True)
def safe_softmax(low: Lowering, x: fx.Node, axis: int, dtype: torch.dtype | None = None) -> Result:
    """Lower softmax with zeros for a row of only -infinity (a query that may attend to nothing)."""
    if dtype not in (None, dtype_of(x)):
        raise low.unsupported("a result of another type")
    largest = low.reduce("Max", low.value(x), [axis], keep=True, tag="largest")
    hidden = low.op("Equal", largest, low.scalar(-math.inf), tag="hidden")
    weights = low.op("Softmax", low.value(x), tag="weights", axis=axis)
    return low.op("Where", hidden, low.scalar(0), weights)


@lowers("_softmax_backward_data", wide=True)
def softmax_backward(
    low: Lowering, dy: fx.Node, y: fx.Node, axis: int, dtype: torch.dtype
) -> Result:
    """Lower softmax's gradient from its result: `dy y - y sum(dy y)`."""
    del dtype
    product = low.op("Mul", low.value(dy), low.value(y), tag="product")
    total = low.reduce("Sum", product, [axis], keep=True, tag="total")
    return low.op("Sub", product, low.op("Mul", low.value(y), total, tag="share"))


@lowers("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    low: Lowering,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: fx.Node | None = None,
    scale: float | None = None,
) -> Result:
    """Lower attention to mixed values and the log of the softmax's denominators.

    Query, key and value are [batch, heads, seq, width]. Keys and values may have fewer heads, each shared
    by several query heads.
    """
    if dropout:
        raise low.unsupported("dropout inside fused attention")
    scores, _ = _scores(low, query, key, causal, attn_mask, scale)
    log_total = low.reduce("LogSumExp", scores, [-1], keep=True, tag="log_total")
    weights = low.op("Softmax", scores, tag="weights", axis=-1)
    weights = low.cast(weights, _inside(low), low.dtype, "weights_rounded")
    mixed = low.op("MatMul", weights, _shared(low, value, query, "value"))
    if attn_mask is None:
        return [mixed, log_total]
    hidden = _all_hidden(low, attn_mask)
    zero = low.scalar(0, _inside(low))
    return [
        low.op("Where", hidden, low.scalar(0), mixed, tag="seen"),
        # Their scores are -infinity: less 0, their weights are 0 in the gradient.
        low.op("Where", hidden, zero, log_total, tag="log_total_seen"),
    ]


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    low: Lowering,
    dy: fx.Node,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    result: fx.Node,
    log_total: fx.Node,
    dropout: float,
    causal: bool,
    *,
    attn_mask: fx.Node | None = None,
    scale: float | None = None,
) -> Result:
    """Lower attention's backward; return the gradients of query, key, value."""
    del dropout
    scores, factor = _scores(low, query, key, causal, attn_mask, scale)
    excess = low.op("Sub", scores, low.value(log_total), tag="excess")
    weights = low.op("Exp", excess, tag="weights")
    grad, kind = low.value(dy), _inside(low)
    rounded = low.cast(weights, kind, low.dtype, "weights_rounded")
    dvalue = low.op("MatMul", _turned(low, rounded, "weights_t"), grad, tag="dvalue")
    each = _shared(low, value, query, "value")
    dweights = low.op("MatMul", grad, _turned(low, each, "value_t"), tag="dweights")
    dweights = low.cast(dweights, low.dtype, kind, "dweights_as_float")
    agreement = low.op("Mul", low.operand(dy, kind), low.operand(result, kind), tag="agreement")
    offset = low.reduce("Sum", agreement, [-1], keep=True, tag="offset")
    residual = low.op("Sub", dweights, offset, tag="residual")
    unscaled = low.op("Mul", weights, residual, tag="dunscaled")
    dscores = low.op("Mul", unscaled, factor, tag="dscores")
    dscores = low.cast(dscores, kind, low.dtype, "dscores_rounded")
    dquery = low.op("MatMul", dscores, _shared(low, key, query, "key"))
    dkey = low.op("MatMul", _turned(low, dscores, "dscores_t"), low.value(query), tag="dkey")
    return [
        dquery,
        _gathered(low, dkey, key, query, "dkey"),
        _gathered(low, dvalue, value, query, "dvalue"),
    ]


def _scores(
    low: Lowering,
    query: fx.Node,
    key: fx.Node,
    causal: bool,
    mask: fx.Node | None,
    scale: float | None,
) -> tuple[Value, Value]:
    """Return masked, scaled products of queries and keys, and the scale, in the type of `_inside`."""
    width, steps, inside = int(shape_of(query)[-1]), shape_of(query)[-2], _inside(low)
    factor = low.scalar(1 / math.sqrt(width) if scale is None else scale, inside)
    each = _shared(low, key, query, "key")
    product = low.op("MatMul", low.value(query), _turned(low, each, "key_t"), tag="dot")
    product = low.cast(product, low.dtype, inside, "dot_as_float")
    scores = low.op("Mul", product, factor, tag="scaled")
    if causal:
        scores = _without_future(low, scores, steps, shape_of(key)[-2])
    if mask is not None and dtype_of(mask) == torch.bool:
        hidden = low.scalar(-math.inf, inside)
        scores = low.op("Where", low.value(mask), scores, hidden, tag="masked")
    elif mask is not None:
        scores = low.op("Add", scores, low.operand(mask, inside), tag="masked")
    return scores, factor


def _all_hidden(low: Lowering, mask: fx.Node) -> Value:
    """Return a mask of the queries that may attend to nothing.

    PyTorch returns zeros for them; softmax would give NaN.
    """
    is_bool = dtype_of(mask) == torch.bool
    kind, hidden = (torch.float32, 0.0) if is_bool else (_inside(low), -math.inf)
    most = low.reduce("Max", low.operand(mask, kind), [-1], keep=True, tag="most_shown")
    return low.op("Equal", most, low.scalar(hidden, kind), tag="all_hidden")


def _without_future(low: Lowering, scores: Value, steps: Dim, keys: Dim) -> Value:
    """Set scores to -infinity where a key comes after its query."""
    inside = _inside(low)
    if not isinstance(steps, torch.SymInt) and not isinstance(keys, torch.SymInt):
        future = np.triu(np.full((steps, keys), -np.inf, numpy_dtype(inside)), 1)
        return low.op("Add", scores, low.builder.constant(future), tag="causal")
    zero, one = (low.scalar(value, torch.int64) for value in (0, 1))
    ends = [low.op("Squeeze", low.extent(size), tag="length") for size in (steps, keys)]
    row, column = (low.op("Range", zero, end, one, tag="places") for end in ends)
    row = low.op("Unsqueeze", row, low.integers(1), tag="rows")
    future = low.op("Greater", column, row, tag="future")
    return low.op("Where", future, low.scalar(-math.inf, inside), scores, tag="causal")


def _inside(low: Lowering) -> torch.dtype:
    """Return the type of scores and softmax: float32 for half types, as in PyTorch's kernel."""
    return torch.float32 if low.dtype in HALF else low.dtype


def _shared(low: Lowering, value: fx.Node, query: fx.Node, tag: str) -> Value:
    """Repeat heads of keys or values to one per query head (Ainslie et al., 2023)."""
    batch, heads, steps, width = shape_of(value)
    if heads == shape_of(query)[1]:
        return low.value(value)
    group = int(shape_of(query)[1]) // int(heads)
    apart = low.reshape(low.value(value), [batch, heads, 1, steps, width], f"{tag}.apart")
    shape = low.shape_value([batch, heads, group, steps, width])
    wide = low.op("Expand", apart, shape, tag=f"{tag}.wide")
    return low.reshape(wide, [batch, int(heads) * group, steps, width], f"{tag}.each")


def _gathered(low: Lowering, grad: Value, value: fx.Node, query: fx.Node, tag: str) -> Value:
    """Return the gradient of `_shared`: the sum over the query heads that share a head."""
    batch, heads, steps, width = shape_of(value)
    if heads == shape_of(query)[1]:
        return grad
    group = int(shape_of(query)[1]) // int(heads)
    apart = low.reshape(grad, [batch, heads, group, steps, width], f"{tag}.apart")
    return low.reduce("Sum", apart, [2], tag=f"{tag}.sum")


def _turned(low: Lowering, value: Value, tag: str) -> Value:
    return low.transpose(value, [0, 1, 3, 2], tag)
