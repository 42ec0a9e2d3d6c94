"""Names: a plan names nodes, so each must have one of its own, and so must what is added."""

from __future__ import annotations

import onnx_ir as ir


def name_nodes(model: ir.Model) -> int:
    """Give a unique name to each node that has none or shares one; return how many were named."""
    taken = {node.name for node in model.graph if node.name}
    seen: set[str] = set()
    count = 0
    for node in model.graph:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        stem = node.name or f"{node.op_type}:{node.outputs[0].name or 'none'}"
        name, number = stem, 1
        while name in taken or name in seen:
            name, number = f"{stem}_{number}", number + 1
        node.name = name
        seen.add(name)
        count += 1
    return count


class FreeNames:
    """Names that no value and no node of the graph has."""

    def __init__(self, graph: ir.Graph) -> None:
        self._taken = {str(value.name) for value in (*graph.inputs, *graph.initializers.values())}
        for node in graph:
            self._taken.add(str(node.name))
            self._taken.update(str(value.name) for value in node.outputs)

    def fresh(self, wish: str) -> str:
        """`wish`, or with a number behind it, which is taken from then on."""
        name, count = wish, 1
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name
