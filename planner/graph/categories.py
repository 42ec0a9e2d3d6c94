"""The role of each tensor in a training step: parameter, gradient, activation, ...

A training graph shows this only through its names and its structure. The rules:

    parameter        a graph input p with an output named like its gradient or its new value, or an
                     input named like its accumulation buffer; a floating-point initializer
    optimizer state  a graph input with an output named like its new value, that belongs to a
                     parameter by prefix (`weight_m`, `weight.exp_avg`)
    input, constant  the other graph inputs; the other initializers
    activation       computed on the way to the loss; the backward pass reads it or a view of it
    temporary        computed on the way to the loss and read only there; or not floating point
    gradient         floating point, computed after the loss; a graph input that is an accumulation
                     buffer (`weight_grad.accumulation.buffer`, of onnxruntime-training)
    output           a graph output that is no gradient
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

from planner.graph.model import Category

_GRADIENT = re.compile(r"(?:(.+?)(?:_grad|\.grad|_gradient|@GRAD)|(?:grad_|d_)(.+))\Z")
_UPDATED = re.compile(r"(?:(.+?)(?:_new|_updated|_next|\.new|_out)|(?:new_|updated_)(.+))\Z")
_BUFFER = "_grad.accumulation.buffer"
_STATE_SUFFIX = re.compile(
    r"(?:[._](?:m|v|mom|momentum|velocity|exp_avg|exp_avg_sq|moment_?[12]|state\d*|momentum_buffer|"
    r"max_exp_avg_sq|square_avg|acc_delta|exp_inf|grad_avg|row_var|col_var))\Z"
)


def gradient_of(output: str) -> str | None:
    """Parse a gradient's name: `"w_grad"` -> `"w"`, the parameter; None for other names."""
    match = _GRADIENT.match(output)
    return (match[1] or match[2]) if match else None


def updated_value_of(output: str) -> str | None:
    """Parse an updated value's name: `"w_new"` -> `"w"`, the old value; None for other names."""
    match = _UPDATED.match(output)
    return (match[1] or match[2]) if match else None


def loss_among(outputs: Iterable[tuple[str, bool, int]]) -> list[str]:
    """Return the output that is the loss, or all outputs if none qualifies.

    The loss is the floating-point scalar whose name contains "loss", else the first floating-point
    scalar.

    Args:
        outputs: name, whether it is floating point, and bytes of each graph output.
    """
    found = list(outputs)
    floats = [name for name, is_float, size in found if is_float and size <= 8]
    named = [name for name in floats if "loss" in name.lower()]
    return (named or floats)[:1] or [name for name, _, _ in found]


def input_categories(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, Category]:
    """Categorize each graph input by the names of the graph outputs."""
    names = set(inputs)
    with_gradient = {p for o in outputs if (p := gradient_of(o)) in names}
    with_gradient |= {p for n in inputs if (p := n.removesuffix(_BUFFER)) != n and p in names}
    updated = {p for o in outputs if (p := updated_value_of(o)) in names}
    categories: dict[str, Category] = {}
    for name in inputs:
        base = _STATE_SUFFIX.sub("", name)
        if name.endswith(_BUFFER) and name.removesuffix(_BUFFER) in names:
            categories[name] = Category.GRADIENT
        elif name in updated and base != name and base in updated | with_gradient:
            categories[name] = Category.OPTIMIZER_STATE
        elif name in with_gradient or name in updated:
            categories[name] = Category.PARAMETER
        else:
            categories[name] = Category.INPUT
    return categories


def produced_category(
    *,
    is_output: bool,
    name: str,
    is_float: bool,
    forward: bool,
    read_after_loss: bool,
    inputs: Set[str],
) -> Category:
    """Categorize a tensor that a node produces.

    Args:
        forward: the loss depends on the tensor's producer.
        read_after_loss: an operation that the loss does not depend on reads the tensor's buffer.
        inputs: names of the graph inputs.
    """
    if is_output and gradient_of(name) in inputs:
        return Category.GRADIENT
    if is_output:
        return Category.OUTPUT
    if forward:
        return Category.ACTIVATION if read_after_loss else Category.TEMPORARY
    return Category.GRADIENT if is_float else Category.TEMPORARY
