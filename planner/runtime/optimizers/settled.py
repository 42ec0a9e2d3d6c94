"""Make a graph with blocked images (NCHWc) the same each time ONNX Runtime writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.onnxio.names import name_nodes
from planner.onnxio.shape_rules.blocked import DOMAIN
from planner.runtime.profile import Run
from planner.units import format_bytes

_OUTPUT = "ReorderOutput"


def settle(model: ir.Model, source: ir.Model) -> None:
    """Give ReorderOutput nodes names, and all nodes an order, that depend on the model alone.

    ONNX Runtime adds the ReorderOutput nodes in the order of a map from pointers (`Finalize` in
    core/optimizer/nchwc_transformer.cc): their names, and with them the order in which a session runs
    nodes, may differ each time. Each gets a name from its output, and nodes follow the order of
    `source`.

    Args:
        model: `source` as the level ALL leaves it; changed in place.
    """
    graphs = (model.graph, *model.graph.subgraphs())
    added = [n for graph in graphs for n in graph if n.domain == DOMAIN and n.op_type == _OUTPUT]
    for node in added:
        node.name = f"{node.op_type}:{node.outputs[0].name}"
    if not added:
        return
    name_nodes(model)
    nodes = source.graph.all_nodes()
    place = {str(v.name): i for i, node in enumerate(nodes) for v in node.outputs if v.name}
    for graph in graphs:
        _put_in_order(graph, place)


def _put_in_order(graph: ir.Graph, place: Mapping[str, int]) -> None:
    """Sort nodes by the place of their outputs in the source; new nodes follow directly after their
    inputs."""
    plain = {n.inputs[0]: str(n.outputs[0].name) for n in graph if n.op_type == _OUTPUT}
    keys: dict[ir.Node, tuple[int, int, str]] = {}
    for node in graph:
        behind = [keys[made] for v in node.inputs if v and (made := v.producer()) in keys]
        names = [plain.get(v, str(v.name)) for v in node.outputs]
        known = [place[name] for name in names if name in place]
        after, steps, _ = max(behind, default=(-1, 0, ""))
        if known and node.op_type != _OUTPUT:
            after, steps = max(known), -1
        keys[node] = (after, steps + 1, str(node.name))
    nodes = sorted(keys, key=lambda node: keys[node])
    graph.remove(nodes)
    graph.extend(nodes)
    graph.sort()


def is_settled_order(run: Run, graph: TrainingGraph, order: Sequence[OpId]) -> bool:
    """Tell whether a run's order is this one, apart from nodes whose names differ from session to
    session."""
    ops = [graph.operations[op] for op in order]
    planned = [op.name for op in ops if op.op_type != _OUTPUT]
    ran = [event.name for event in run if event.op_type != _OUTPUT]
    return len(planned) < len(ops) == len(run) and planned == ran


def executed_order(
    run: Run, graph: TrainingGraph, expected: tuple[OpId, ...]
) -> tuple[tuple[OpId, ...] | None, tuple[str, ...]]:
    """Return the order in which an original model ran, and a note where it is not the expected one.

    Return None where other nodes ran than the graph's.
    """
    by_name = {op.name: op.id for op in graph.operations}
    executed = tuple(by_name[e.name] for e in run if e.name in by_name)
    if executed == expected or is_settled_order(run, graph, expected):
        return expected, ()
    if len(executed) != len(run) or len(executed) != len(expected):
        note = (
            f"the original model ran {len(run)} nodes, which are not the {len(expected)} of "
            "its analysed graph: predicted and measured bytes are of two graphs"
        )
        return None, (note,)
    before, after = (timeline(graph, order).peak_bytes for order in (expected, executed))
    note = (
        f"the original model ran in another order than predicted: live peak "
        f"{format_bytes(after)} in the executed order, {format_bytes(before)} in the "
        "predicted one"
    )
    return executed, (note,)
