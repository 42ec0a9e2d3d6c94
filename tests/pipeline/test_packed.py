"""One arena for a timeline: persistent tensors below, everything else packed above them."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from planner.graph.liveness import timeline
from planner.graph.model import OpId
from planner.graph.schedule import default_order
from planner.pipeline.prepare.packed import ALIGNMENT_BYTES, packed_arena
from tests.graphs import graph_of, onnx_graphs


@given(proto=onnx_graphs())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_arena_holds_the_peak_and_at_most_everything_at_once(proto):
    _, graph = graph_of(proto)
    order = default_order(graph)
    workspace = {OpId(op.id): 100 * op.id for op in graph.operations}
    line = timeline(graph, order, workspace_bytes=workspace)

    packed = packed_arena(line)

    sizes = [r.bytes for r in line.ranges] + list(workspace.values())
    rounded = sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)
    assert packed.peak_bytes == line.peak_bytes
    assert line.peak_bytes <= packed.bytes <= line.persistent_bytes + rounded
    assert packed.fragmentation >= 0
