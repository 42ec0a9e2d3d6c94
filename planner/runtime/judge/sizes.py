"""Compare data-dependent sizes in a run with the upper bounds that were planned."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from planner.graph.model import Operation, TrainingGraph
from planner.onnxio.kinds import SEQUENCE, ValueType
from planner.runtime.profile import NodeEvent, Run
from planner.units import format_bytes


def exceeded(graph: TrainingGraph, run: Run, model: str) -> list[str]:
    """Return a sentence for each tensor, and each node with bodies, that took more than planned.

    Only tensors whose shapes ONNX Runtime learns at run time are compared.

    Args:
        model: "original" or "rewritten".
    """
    by_name = {op.name: op for op in graph.operations}
    return [
        f"{what} takes {format_bytes(found)} in this run of the {model} model, more than the "
        f"{format_bytes(most)} that it was planned with; plan with a larger --bound"
        for event in run
        if event.name in by_name
        for what, most, found in _larger(graph, by_name[event.name], event)
    ]


def _larger(
    graph: TrainingGraph, op: Operation, event: NodeEvent
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, planned bytes, measured bytes) of whatever exceeded its bound."""
    made = [graph.tensors[t] for t in op.outputs]
    tensors = [t for t in made if t.dtype != SEQUENCE]
    if len(tensors) < len(made):  # a profile has no shapes of sequences
        most, found = sum(t.bytes for t in made), event.requested_delta or 0
        if found > most:
            yield f"sequence {made[0].name!r}", most, found
    if len(event.output_shapes) == len(tensors):
        for tensor, shape in zip(tensors, event.output_shapes, strict=True):
            found = ValueType(dtype=ir.DataType[tensor.dtype.upper()], shape=shape).bytes
            if tensor.unsized and found > tensor.bytes:
                yield f"tensor {tensor.name!r}", tensor.bytes, found
    if op.inner_bytes and event.inner_requested is not None:
        most = op.inner_bytes + sum(graph.tensors[t].bytes for t in op.outputs)
        found = event.inner_requested - (event.requested_in_use or 0) + (event.requested_delta or 0)
        if found > most:
            yield f"node {op.name!r}, with what its bodies hold,", most, found
