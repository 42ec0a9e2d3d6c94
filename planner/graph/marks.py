"""How nodes that planner adds are marked."""

from __future__ import annotations

import re

import onnx_ir as ir

from planner.graph.model import Role

PLANNER_ATTRIBUTE = "__planner"
"""Attribute of every node planner adds, `"<role>:<number>"`; unique, so that ONNX Runtime's
common-subexpression elimination never merges two of them (onnx allows attributes that start with
`__` on any node)."""

_MARK = re.compile(r"([a-z-]+):([0-9]{1,18})")


def mark_of(value: object) -> tuple[Role, int] | None:
    """Role and number in a `__planner` attribute; None where planner wrote no such thing.

    The attribute may be a stranger's and hold anything. A number of more than 18 digits is one: planner
    counts on from the highest and never gets there.
    """
    mark = _MARK.fullmatch(value) if isinstance(value, str) else None
    known = mark is not None and mark[1] in tuple(Role)
    return (Role(mark[1]), int(mark[2])) if mark is not None and known else None


def role_of(node: ir.Node) -> Role:
    """Why the node is in the graph, by its mark."""
    mark = _mark(node)
    return mark[0] if mark is not None else Role.ORIGINAL


def number_of(node: ir.Node) -> int:
    """The number in its mark; 0 where it has none."""
    mark = _mark(node)
    return mark[1] if mark is not None else 0


def _mark(node: ir.Node) -> tuple[Role, int] | None:
    attribute = node.attributes.get(PLANNER_ATTRIBUTE)
    return mark_of(plain(attribute)) if attribute is not None else None


def plain(attribute: ir.Attr) -> object | None:
    """Plain Python value of an attribute; None for tensors, graphs and types."""
    kinds = ir.AttributeType
    if attribute.type in (kinds.INT, kinds.FLOAT, kinds.STRING):
        return attribute.value
    if attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
        return list(attribute.value)
    return None
