"""The plan's decisions as metadata of the rewritten model's nodes, which viewers such as Netron show.

Each node that planner added states its purpose. Each producer of a tensor that leaves the device
states for how long, which node brings it back, and why. `NodeProto.metadata_props` came with version
10 of ONNX's IR. Older readers skip the field and keep its bytes (checked with onnx 1.14 and ONNX
Runtime 1.15): models of every IR version have it, and the version itself stays unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from planner.graph.model import Role
from planner.lower.rewrite import METADATA_PREFIX, Rewritten
from planner.plan.planfile import Decision
from planner.units import format_bytes

_PAST = {
    "recompute": "recomputed",
    "swap": "copied back from the host",
    "page-in": "copied to it again",
}


def annotate(rewritten: Rewritten, decisions: Sequence[Decision]) -> None:
    """Add the decisions to the nodes of `rewritten.model`, in place.

    Args:
        decisions: decisions of the plan; their steps are places in `rewritten.planned_order`.
    """
    nodes = {str(node.name): node for node in rewritten.model.graph}
    makes = {str(v.name): name for name, node in nodes.items() for v in node.outputs if v.name}
    by_end: dict[int, list[Decision]] = {}
    by_tensor: dict[str, list[Decision]] = {}
    for decision in sorted(decisions, key=lambda d: (d.start, d.end, d.tensor)):
        by_end.setdefault(decision.end, []).append(decision)
        by_tensor.setdefault(decision.tensor, []).append(decision)
    for step, name in enumerate(rewritten.planned_order):
        node = nodes[name]
        role = node.metadata_props.get(METADATA_PREFIX + "role")
        if role not in tuple(Role):
            continue
        _put(node, "step", str(step))
        if role in (Role.RECOMPUTE, Role.SWAP_IN, Role.PAGE_IN):
            here = by_end.get(step, [])
        elif role == Role.SWAP_OUT:
            here = by_tensor.get(node.metadata_props.get(METADATA_PREFIX + "tensor", ""), [])
            here = [d for d in here if d.action == "swap"]
        else:
            here = []
        _put_all(node, "why", list(dict.fromkeys(d.why for d in here)))
    told: dict[str, list[str]] = {}  # by producer: it may have several outputs
    for tensor, gone in by_tensor.items():
        if tensor in makes:
            told.setdefault(makes[tensor], []).extend(_sentence(d, rewritten) for d in gone)
    for name, sentences in told.items():
        _put_all(nodes[name], "decision", sentences)


def _sentence(decision: Decision, rewritten: Rewritten) -> str:
    by = rewritten.planned_order[decision.end]
    return (
        f"{decision.tensor} ({format_bytes(decision.bytes)}) leaves the device from step "
        f"{decision.start} to step {decision.end}, where it is {_PAST[decision.action]} by {by}: "
        f"{decision.why}"
    )


def _put(node: ir.Node, key: str, value: str) -> None:
    node.metadata_props[METADATA_PREFIX + key] = value


def _put_all(node: ir.Node, key: str, values: Sequence[str]) -> None:
    """Put one entry for each value: `key`, `key.2`, `key.3`, ..."""
    for number, value in enumerate(values, start=1):
        _put(node, key if number == 1 else f"{key}.{number}", value)
