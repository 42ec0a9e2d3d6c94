"""One graph of several runs of a loop: equal operators are one node, and `where` chooses among runs.

Runs that part at a branch share everything before it, since what is computed from the same values by the
same operator is the same node. Nodes are interned (value numbering: Alpern, Wegman and Zadeck, 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from planner.export.update.redirect import plainly

_SAME = frozenset({"alias", "clone", "detach", "lift_fresh", "lift_fresh_copy"})
"""Operators whose result is their operand, in a graph without writes."""


class MergedGraph:
    """The graph, and its constants.

    Attributes:
        root: holds the tensors of `get_attr` nodes.
    """

    def __init__(self) -> None:
        self.root = nn.Module()
        self.graph = fx.Graph()
        self._nodes: dict[Any, fx.Node] = {}
        self._constants: dict[int, str] = {}

    def placeholder(self, name: str, value: Tensor) -> fx.Node:
        """The input called `name`, a fake tensor."""
        key = ("placeholder", name, value.dtype, tuple(value.shape))
        return self._interned(key, lambda: self._placeholder(name, value))

    def _placeholder(self, name: str, value: Tensor) -> fx.Node:
        node = self.graph.placeholder(f"input_{len(self._nodes)}")
        node.meta["val"] = value
        return node

    def constant(self, value: Tensor) -> fx.Node:
        """A tensor with its values."""
        name = self._constants.setdefault(id(value), f"constant_{len(self._constants)}")
        setattr(self.root, name, value)

        def make() -> fx.Node:
            node = self.graph.get_attr(name)
            node.meta["val"] = value
            return node

        return self._interned(("get_attr", name), make)

    def call(self, target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
        """An operator on nodes of this graph.

        Args:
            value: what it makes, in fake tensors.
        """
        key = ("call", target, _hashable(args), _hashable(kwargs))

        def make() -> fx.Node:
            name = f"update_{getattr(target, '_opname', 'item')}"
            node = self.graph.create_node("call_function", target, args, kwargs, name=name)
            node.meta["val"] = value
            return node

        return self._interned(key, make)

    def full(self, number: float, value: Tensor) -> fx.Node:
        """A tensor of one number, in the shape and type of a fake one."""
        target, kwargs = torch.ops.aten.full.default, {"dtype": value.dtype}
        return self.call(target, (list(value.shape), number), kwargs, value)

    def where(self, condition: fx.Node, one: fx.Node, other: fx.Node) -> fx.Node:
        """`one` where the condition holds; the node itself where both are the same."""
        if one is other:
            return one
        target = torch.ops.aten.where.self
        return self.call(target, (condition, one, other), {}, one.meta["val"])

    def value_of(
        self, node: fx.Node, given: Mapping[fx.Node, Tensor] | None = None
    ) -> Tensor | None:
        """A node's value, where it follows from no input but those given."""
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
    """Nodes and all that leads to them."""
    needed: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        part = waiting.pop()
        if part not in needed:
            needed.add(part)
            waiting += part.all_input_nodes
    return needed


class Imported:
    """Nodes of a run's graph as nodes of the merged one.

    Attributes:
        made: by node of the run; the caller adds its placeholders.
    """

    def __init__(self, merged: MergedGraph, root: nn.Module) -> None:
        self._merged, self._root = merged, root
        self.made: dict[fx.Node, Any] = {}
        self._last: fx.Node | None = None

    def node(self, wanted: fx.Node) -> fx.Node:
        """The node in the merged graph."""
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
            return None  # a placeholder that nothing stands for
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: self.made[operand])
        if _is_same(node):
            return args[0]
        filled = _filled_with(node, args)
        if filled is not None:
            return self._merged.full(filled, node.meta["val"])
        return self._merged.call(node.target, args, kwargs, node.meta.get("val"))


def _is_same(node: fx.Node) -> bool:
    """Whether a node hands on its operand, but for its place in memory."""
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
    """The number that a node fills a tensor with; None where it is no such node."""
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
"""Operators that fill a tensor, with what; or with which of their arguments."""


def substituted(
    merged: MergedGraph,
    nodes: Mapping[Any, fx.Node],
    put: Mapping[fx.Node, fx.Node],
    *,
    is_simplified: bool,
) -> dict[Any, fx.Node]:
    """The nodes with others in the place of some inputs, written out anew.

    Args:
        is_simplified: `0 * x` is zeros, and `0 + x` is x.
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
    """What `where` gives, where the condition is a constant scalar."""
    known = merged.value_of(condition) if not condition.meta["val"].dim() else None
    return None if known is None else one if bool(known) else other


def is_zeros(node: Any) -> bool:
    """Whether a node is a tensor of zeros."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    return node.target is torch.ops.aten.full.default and bool(node.args[1] == 0)


def _without_zeros(node: fx.Node, args: Any, kwargs: Any) -> fx.Node | None:
    """`0 * x` and `0 + x`, where x has the shape and type of the result."""
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
