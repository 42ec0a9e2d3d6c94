"""One graph of several runs of a loop: equal operators are one node, and `where` selects among runs.

Runs that split at a branch share everything before it, because the same operator on the same values is
one node. Nodes are interned (value numbering: Alpern, Wegman and Zadeck, 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from planner.export.update.redirect import plainly

_SAME = frozenset({"alias", "clone", "detach", "lift_fresh", "lift_fresh_copy"})
"""Operators whose result equals their operand in a graph without writes."""


class MergedGraph:
    """The merged graph and its constants.

    Attributes:
        root: module that holds the tensors of `get_attr` nodes.
    """

    def __init__(self) -> None:
        self.root = nn.Module()
        self.graph = fx.Graph()
        self._nodes: dict[Any, fx.Node] = {}
        self._constants: dict[int, str] = {}

    def placeholder(self, name: str, value: Tensor) -> fx.Node:
        """Return the input called `name`, described by a fake tensor."""
        key = ("placeholder", name, value.dtype, tuple(value.shape))
        return self._interned(key, lambda: self._placeholder(name, value))

    def _placeholder(self, name: str, value: Tensor) -> fx.Node:
        node = self.graph.placeholder(f"input_{len(self._nodes)}")
        node.meta["val"] = value
        return node

    def constant(self, value: Tensor) -> fx.Node:
        """Return a constant node for a tensor with values."""
        name = self._constants.setdefault(id(value), f"constant_{len(self._constants)}")
        setattr(self.root, name, value)

        def make() -> fx.Node:
            node = self.graph.get_attr(name)
            node.meta["val"] = value
            return node

        return self._interned(("get_attr", name), make)

    def call(self, target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
        """Return an operator's node on nodes of this graph.

        Args:
            value: its result, in fake tensors.
        """
        key = ("call", target, _hashable(args), _hashable(kwargs))

        def make() -> fx.Node:
            name = f"update_{getattr(target, '_opname', 'item')}"
            node = self.graph.create_node("call_function", target, args, kwargs, name=name)
            node.meta["val"] = value
            return node

        return self._interned(key, make)

    def full(self, number: float, value: Tensor) -> fx.Node:
        """Return a tensor filled with one number, of a fake tensor's shape and type."""
        target, kwargs = torch.ops.aten.full.default, {"dtype": value.dtype}
        return self.call(target, (list(value.shape), number), kwargs, value)

    def where(self, condition: fx.Node, one: fx.Node, other: fx.Node) -> fx.Node:
        """Return a node that selects `one` where the condition holds; `one` if both are the same."""
        if one is other:
            return one
        target = torch.ops.aten.where.self
        return self.call(target, (condition, one, other), {}, one.meta["val"])

    def value_of(
        self, node: fx.Node, given: Mapping[fx.Node, Tensor] | None = None
    ) -> Tensor | None:
        """Return a node's value if it depends on no inputs but the given ones, else None."""
        known = dict(given or {})
        needed = before(node)
        if any(part.op == "placeholder" and part not in known for part in needed):
            return None
        for part in node.graph.nodes:
            if part not in needed or part in known:
                continue
            if part.op == "get_attr":
                known[part] = getattr(self.root, cast(str, part.target))
                continue
            args, kwargs = fx.map_arg((part.args, part.kwargs), lambda operand: known[operand])
            with plainly():
                known[part] = cast(Any, part.target)(*args, **kwargs)
        return known[node]

    def _interned(self, key: Any, make: Callable[[], fx.Node]) -> fx.Node:
        if key not in self._nodes:
            self._nodes[key] = make()
        return self._nodes[key]


def before(*nodes: fx.Node) -> set[fx.Node]:
    """Return the given nodes and all their ancestors."""
    needed: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        part = waiting.pop()
        if part not in needed:
            needed.add(part)
            waiting += part.all_input_nodes
    return needed


class Imported:
    """Import of a run's nodes into the merged graph.

    Attributes:
        made: merged nodes by node of the run; the caller adds those of placeholders.
    """

    def __init__(self, merged: MergedGraph, root: nn.Module) -> None:
        self._merged, self._root = merged, root
        self.made: dict[fx.Node, Any] = {}
        self._last: fx.Node | None = None

    def node(self, wanted: fx.Node) -> fx.Node:
        """Return the node in the merged graph, importing the nodes up to it."""
        at = self._last or wanted.graph._root
        while at.next.op != "root":
            at = at.next
            if at not in self.made:
                self.made[at] = self._import(at)
        self._last = at
        return cast(fx.Node, self.made[wanted])

    def _import(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._merged.constant(getattr(self._root, cast(str, node.target)))
        if node.op != "call_function":
            return None  # a placeholder without a counterpart
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: self.made[operand])
        if _is_same(node):
            return args[0]
        filled = _filled_with(node, args)
        if filled is not None:
            return self._merged.full(filled, node.meta["val"])
        return self._merged.call(node.target, args, kwargs, node.meta.get("val"))


def _is_same(node: fx.Node) -> bool:
    """Tell whether a node returns its operand unchanged, apart from its memory."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    name = target._schema.name.removeprefix("aten::")
    if name in _SAME:
        return True
    source = node.args[0] if node.args else None
    if name not in ("_to_copy", "view", "expand") or not isinstance(source, fx.Node):
        return False
    old, new = source.meta.get("val"), node.meta.get("val")
    return (
        isinstance(old, Tensor)
        and isinstance(new, Tensor)
        and (old.dtype, old.shape) == (new.dtype, new.shape)
    )


def _filled_with(node: fx.Node, args: Any) -> float | None:
    """Return the number that a node fills a tensor with; None if it fills none."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name = target._schema.name.removeprefix("aten::")
    if name in _FILLS:
        return _FILLS[name]
    if name not in _FILLED:
        return None
    number = args[_FILLED[name]]
    return number if isinstance(number, int | float) else None


_FILLS = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
}  # fmt: skip
_FILLED = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}
"""Position of the fill value among the arguments, by operator; `_FILLS` has fixed values."""


def substituted(
    merged: MergedGraph,
    nodes: Mapping[Any, fx.Node],
    put: Mapping[fx.Node, fx.Node],
    *,
    is_simplified: bool,
) -> dict[Any, fx.Node]:
    """Return the nodes rebuilt with other nodes in place of some inputs.

    Args:
        is_simplified: replace `0 * x` by zeros, and `0 + x` by x.
    """
    made: dict[fx.Node, Any] = dict(put)
    needed = before(*nodes.values())
    for node in [node for node in merged.graph.nodes if node in needed and node not in put]:
        if node.op != "call_function":
            made[node] = node
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: made[operand])
        simple = _without_zeros(node, args, kwargs) if is_simplified else None
        if node.target is torch.ops.aten.where.self:
            simple = _chosen(merged, *args)
        if simple is not None:
            made[node] = simple
        elif all(made[operand] is operand for operand in node.all_input_nodes):
            made[node] = node
        else:
            made[node] = merged.call(node.target, args, kwargs, node.meta.get("val"))
    return {key: made[node] for key, node in nodes.items()}


def _chosen(
    merged: MergedGraph, condition: fx.Node, one: fx.Node, other: fx.Node
) -> fx.Node | None:
    """Return the branch that `where` selects if its condition is a constant scalar, else None."""
    known = merged.value_of(condition) if not condition.meta["val"].dim() else None
    return None if known is None else one if bool(known) else other


def is_zeros(node: Any) -> bool:
    """Tell whether a node is a tensor of zeros."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    return node.target is torch.ops.aten.full.default and bool(node.args[1] == 0)


def _without_zeros(node: fx.Node, args: Any, kwargs: Any) -> fx.Node | None:
    """Simplify `0 * x` and `0 + x`, if x has the shape and type of the result; else return None."""
    name = str(node.target)
    if len(args) != 2 or kwargs or not any(map(is_zeros, args)):
        return None
    zeros, other = args if is_zeros(args[0]) else (args[1], args[0])

    def fits(operand: Any) -> bool:
        if not isinstance(operand, fx.Node):
            return False
        made, held = node.meta["val"], operand.meta["val"]
        return (made.shape, made.dtype) == (held.shape, held.dtype)

    if name == "aten.mul.Tensor" and fits(zeros):
        return zeros
    return other if name == "aten.add.Tensor" and fits(other) else None


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(part)) for key, part in value.items())
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return (type(value), repr(value) if isinstance(value, float) else value)
