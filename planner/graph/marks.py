"""The attribute that marks nodes added by planner."""

from __future__ import annotations

import re

import onnx_ir as ir

from planner.graph.model import Role

PLANNER_ATTRIBUTE = "__planner"
"""Attribute of every node that planner adds: `"<role>:<number>"`.

Its value is unique, which keeps ONNX Runtime's common-subexpression elimination from merging two of
these nodes. onnx allows attributes that start with `__` on any node.
"""

_MARK = re.compile(r"([a-z-]+):([0-9]{1,18})")


def mark_of(value: object) -> tuple[Role, int] | None:
    """Parse the role and number of a `__planner` attribute; None if planner did not write it.

    Another program may have written the attribute, with any value. A number of more than 18 digits
    is not planner's: planner counts on from the highest number and never gets there.
    """
    mark = _MARK.fullmatch(value) if isinstance(value, str) else None
    known = mark is not None and mark[1] in tuple(Role)
    return (Role(mark[1]), int(mark[2])) if mark is not None and known else None


def role_of(node: ir.Node) -> Role:
    """Return the role in the node's mark; `Role.ORIGINAL` without a mark."""
    mark = _mark(node)
    return mark[0] if mark is not None else Role.ORIGINAL


def number_of(node: ir.Node) -> int:
    """Return the number in the node's mark; 0 without a mark."""
    mark = _mark(node)
    return mark[1] if mark is not None else 0


def _mark(node: ir.Node) -> tuple[Role, int] | None:
    attribute = node.attributes.get(PLANNER_ATTRIBUTE)
    return mark_of(plain(attribute)) if attribute is not None else None


def plain(attribute: ir.Attr) -> object | None:
    """Return the attribute's value as plain Python; None for tensors, graphs and types."""
    kinds = ir.AttributeType
    if attribute.type in (kinds.INT, kinds.FLOAT, kinds.STRING):
        return attribute.value
    if attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
        return list(attribute.value)
    return None
