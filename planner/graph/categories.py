"""What each tensor is to a training step: parameter, gradient, activation, ...

A training graph says this only through its names and its shape, so the rules are stated here once:

    parameter        a graph input p with an output named like its gradient or its new value, or an
                     input named like its accumulation buffer; a floating-point initializer
    optimizer state  a graph input with an output named like its new value, that belongs to a
                     parameter by prefix (`weight_m`, `weight.exp_avg`)
    input, constant  the other graph inputs; the other initializers
    activation       computed on the way to the loss, and read again after it, itself or a view of it
    temporary        computed on the way to the loss and read only there; not floating point
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
    """`"w_grad"` -> `"w"`; None where the name is not one of a gradient."""
    match = _GRADIENT.match(output)
    return (match[1] or match[2]) if match else None


def updated_value_of(output: str) -> str | None:
    """`"w_new"` -> `"w"`; None where the name is not one of an updated value."""
    match = _UPDATED.match(output)
    return (match[1] or match[2]) if match else None


def loss_among(outputs: Iterable[tuple[str, bool, int]]) -> list[str]:
    """The output that is the loss: the floating-point scalar named so, else the first one; all outputs,
    where there is no such scalar.

    Args:
        outputs: name, whether it is floating point, and bytes of each graph output.
    """
    found = list(outputs)
    floats = [name for name, is_float, size in found if is_float and size <= 8]
    named = [name for name in floats if "loss" in name.lower()]
    return (named or floats)[:1] or [name for name, _, _ in found]


def input_categories(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, Category]:
    """Category of each graph input, from the names of the graph outputs."""
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
    """Category of a tensor that a node produces.

    Args:
        forward: its producer lies on the way to the loss.
        read_after_loss: some reader of its buffer does not.
        inputs: names of the graph inputs.
    """
    if is_output and gradient_of(name) in inputs:
        return Category.GRADIENT
    if is_output:
        return Category.OUTPUT
    if forward:
        return Category.ACTIVATION if read_after_loss else Category.TEMPORARY
    return Category.GRADIENT if is_float else Category.TEMPORARY
