"""Live ranges in one region: nothing overlaps, and the region holds the peak."""

from __future__ import annotations

from itertools import combinations

from hypothesis import HealthCheck, given, settings

from planner.graph.liveness import timeline
from planner.graph.model import OpId
from planner.graph.schedule import default_order
from planner.runtime.memory.one_region import one_region
from tests.graphs import graph_of, onnx_graphs


@given(proto=onnx_graphs())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_live_together_lies_apart(proto):
    _, graph = graph_of(proto)
    workspace = {OpId(op.id): 100 * op.id for op in graph.operations}
    line = timeline(graph, default_order(graph), workspace_bytes=workspace)

    region = one_region(line)

    placed = [
        (r.start, r.end, offset, offset + r.bytes)
        for r, offset in zip(line.ranges, region.offsets, strict=True)
        if r.bytes
    ]
    placed += [(step, step + 1, at, at + size) for step, size, at in region.workspace]
    for (start, end, low, high), (start2, end2, low2, high2) in combinations(placed, 2):
        assert end <= start2 or end2 <= start or high <= low2 or high2 <= low
    tops = [line.persistent_bytes, *(high for *_, high in placed)]
    assert min((low for _, _, low, _ in placed), default=tops[0]) >= line.persistent_bytes
    assert region.bytes == max(tops) >= region.peak_bytes == line.peak_bytes
    assert region.fragmentation >= 0
