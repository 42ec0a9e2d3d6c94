"""Marks on nodes that are added before a model is planned, like those that lowering puts on its own
nodes."""

from __future__ import annotations

import onnx_ir as ir

from planner.graph.marks import PLANNER_ATTRIBUTE, number_of
from planner.graph.model import Role
from planner.lower.rewrite import METADATA_PREFIX


class Marks:
    """Gives each added node a number that no other node of the model has."""

    def __init__(self, model: ir.Model) -> None:
        self._number = max((number_of(node) for node in model.graph), default=0)

    def put(self, node: ir.Node, role: Role, **facts: str) -> None:
        """Mark a node with its role: the mark keeps common-subexpression elimination from merging it.

        Its metadata states its purpose.
        """
        self._number += 1
        mark = f"{role.value}:{self._number}"
        node.attributes[PLANNER_ATTRIBUTE] = ir.AttrString(PLANNER_ATTRIBUTE, mark)
        said = {"role": role.value, **facts}
        node.metadata_props.update((METADATA_PREFIX + key, fact) for key, fact in said.items())
