"""Replay the launches of a step as one graph: the conditions for ONNX Runtime's graph capture.

A captured session records a step's launches in its first steps, each of which it may run several times,
and replays them afterwards with the addresses that they had. A record has no values: numbers that the
host computes, copies or draws between launches would be those of the recorded step, without an error.
Files with such operations are refused by name, before there is a session.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import UsageError
from planner.graph.effects import Effect, effect_of, is_training
from planner.graph.rules import SWAP_DOMAIN
from planner.runtime.opened import Needs, needs_of

if TYPE_CHECKING:
    import onnx_ir as ir

REFUSED = "cannot use the graph capture feature"
"""ONNX Runtime's words where nodes are not on the device (core/session/inference_session.cc)."""
_NAMED = 3

_WHY = {
    Effect.CONTROL_FLOW: "chooses on the host what runs",
    Effect.STATE_UPDATE: "updates its inputs, and a step is run several times while it is recorded",
    Effect.RUNNING_STATISTICS: "updates statistics, and a step is run several times while it is recorded",
    Effect.CONTAINER: "is computed on the host",
    Effect.COMPILED: "is a compiled graph, which may do anything",
    Effect.OUTSIDE: "reaches outside of the graph",
}
_UNKNOWN = "is an operator whose effects planner does not know"
_RANDOM = "draws random numbers, and each replay would have those of the recorded step"


def with_capture(needs: Needs, model: Path | str | bytes) -> Needs:
    """Return a file's needs with the provider option for graph capture.

    Raises:
        UsageError: the file cannot be captured; the message names the node, input or output.
    """
    target = needs.target
    if not target.capture:
        raise UsageError(
            f"{needs.where}: {target.title} has no graph capture: open it without graph_capture"
        )
    why = why_not_captured(_graph_of(model))
    if why:
        raise UsageError(f"{needs.where} cannot be captured: {why}. Open it without graph_capture")
    return replace(needs, target=replace(target, options={**target.options, target.capture: "1"}))


def why_not_captured(graph: ir.Graph) -> str:
    """Return the first thing in a graph that a record would lose; "" where there is none."""
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is None or not value.shape.is_static():
            return f"{value.name!r} has open dims, and a record has those of its step"
    for value in graph.outputs:
        if value.producer() is None:
            return f"the output {value.name!r} is an input, which no launch writes"
    for node in graph:
        if said := _lost(node):
            return f"{node.op_type} {node.name!r} {said}"
    return ""


def _lost(node: ir.Node) -> str:
    """Say what of a node a record would lose; "" for nothing."""
    from planner.onnxio.bodies import has_bodies

    if node.domain == SWAP_DOMAIN:
        return "copies beside the operations, on streams that the record does not have"
    effect = effect_of(
        node.op_type,
        node.domain,
        {name: attribute.value for name, attribute in node.attributes.items()},
        training=is_training(node),
        has_subgraph=has_bodies(node),
    )
    if not effect.is_known:
        return _UNKNOWN
    return _RANDOM if effect.is_random else _WHY.get(effect, "")


def on_the_host(model: Path | str | bytes) -> str:
    """Say which nodes of a file that ONNX Runtime does not capture lie on the CPU."""
    from planner.runtime.device.placement import placement_of

    needs = needs_of(model)
    found = () if isinstance(model, bytes) else placement_of(Path(model), needs.target).on_cpu
    named = ", ".join(map(repr, sorted(found)[:_NAMED])) or "some of its nodes"
    more = f" and {len(found) - _NAMED:,} more nodes" if len(found) > _NAMED else ""
    return (
        f"{needs.where} cannot be captured: {named}{more} run on the CPU, which a record of "
        f"{needs.target.title}'s launches does not have. Open it without graph_capture"
    )


def _graph_of(model: Path | str | bytes) -> ir.Graph:
    import onnx
    import onnx_ir as ir

    source = io.BytesIO(model) if isinstance(model, bytes) else str(model)
    return ir.from_proto(onnx.load(source, load_external_data=False)).graph
