"""Choice of the planned graph if a second pass of ONNX Runtime's optimizers changes the first's result.

A session of the file runs the result of the first pass (`Normalized.first`). A rewritten model goes
through the optimizers again; by default planner therefore plans on the graph that no further pass
changes. If later passes fuse nodes, that graph computes other last bits than a session of the file.
The first pass's graph is then planned, provided that it is stable: pinned as rewritten models are
(`planner.runtime.optimizers.fusion_pins`), it must leave the optimizers unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from planner.errors import ModelError
from planner.formulate import OpCosts, formulate
from planner.graph.build import build_graph
from planner.graph.schedule import default_order
from planner.lower.rewrite import Rewritten, rewrite
from planner.onnxio.load import LoadedModel, ValueType
from planner.plan.problem import run_actions
from planner.runtime.optimizers.fusion_pins import pin_against_fusion


def held(loaded: LoadedModel, first: ir.Model, types: Mapping[str, ValueType]) -> bool:
    """Tell whether the first pass's graph, written as a plan would be, survives the optimizers.

    Args:
        types: of the values of `first`.
    """
    graph = build_graph(first, types)
    nothing_us = [0.0] * len(graph.operations)
    form = formulate(graph, default_order(graph), OpCosts(duration_us=nothing_us))
    actions = run_actions(range(len(form.problem.ops)))

    def lower(pinned: frozenset[str]) -> Rewritten:
        return rewrite(first, graph, form, actions, pinned=pinned)

    try:
        pin_against_fusion(lower, loaded)
    except ModelError:
        return False
    return True
