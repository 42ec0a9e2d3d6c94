"""Unique names: each node has one, and planner's additions get names that nothing else in the model
has.

Every new name comes from `FreeNames`. It knows every name in the model, of whatever kind, and never
gives one twice: planner's additions cannot collide with names in the model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir


def name_nodes(model: ir.Model) -> int:
    """Give a unique name to each node that has none or shares one; return how many were named."""
    names: FreeNames | None = None  # most models have nothing to name
    seen: set[str] = set()
    count = 0
    for node in model.graph:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        names = names or FreeNames(model)
        made = next((str(v.name) for v in node.outputs if v.name), "none")
        node.name = names.fresh(node.name or f"{node.op_type}:{made}")
        seen.add(node.name)
        count += 1
    return count


def initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Add an initializer to a graph, under a name that nothing in the model has, and return it."""
    value = ir.val(name, const_value=ir.Tensor(array, name=name))
    graph.register_initializer(value)
    return value


class FreeNames:
    """Names that nothing in a model has: no value, node, dim or function, subgraphs included.

    The names that it gives depend only on the model and on the previous wishes.
    """

    def __init__(self, model: ir.Model) -> None:
        self._taken = set(_names(model))
        self._numbers: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        """Return `wish`, with a number appended if it is taken; the result counts as taken from then
        on."""
        name, number = wish, self._numbers.get(wish, 1)
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._numbers[wish] = number
        self._taken.add(name)
        return name


def _names(model: ir.Model) -> Iterator[str]:
    """Yield every name in the model, some of them more than once."""
    for function in model.functions.values():
        yield function.name
        yield from _within(function)
    yield from _within(model.graph)


def _within(graph: ir.Graph | ir.Function) -> Iterator[str]:
    for part in (graph, *graph.subgraphs()):
        yield from _of_values([*part.inputs, *part.outputs])
        if isinstance(part, ir.Graph):
            yield from _of_values(list(part.initializers.values()))
            yield str(part.name or "")
    for node in graph.all_nodes():
        yield str(node.name or "")
        yield from _of_values(list(node.outputs))


def _of_values(values: list[ir.Value]) -> Iterator[str]:
    for value in values:
        yield str(value.name or "")
        for dim in value.shape or ():
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                yield str(dim.value)
