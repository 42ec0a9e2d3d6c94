"""What a rewritten model takes besides its schedule: nodes that pin the order, and less or more in the
caches."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.measured import Cache
from planner.graph.model import OpId, TrainingGraph
from planner.pipeline.solve.planned import Planned
from planner.plan.problem import ActionKind
from planner.runtime.memory.missed import missed_bytes

_HAD = 0.5
"""Of what the last cache saves where nothing else uses it, so much is predicted: whatever else runs on
the processor uses it too. On the GPT sample all of it was measured in one hour, nothing in the next."""


def pins_of(planned: Planned) -> tuple[str, ...]:
    """Names of the nodes that planner added to pin the order, and of views that it had to make again."""
    known = {op.name for op in planned.prepared.graph.operations}
    known.update(planned.rewritten.action_nodes)
    return tuple(op.name for op in planned.graph.operations if op.name not in known)


def cache_us(planned: Planned) -> float:
    """Microseconds that operations are predicted to take less (negative) or more than in the original,
    since the processor's cache still holds more or less of what they touch; 0 where nobody measured that.

    Copies are left out: their rate was measured as a step of that size finds them in the caches.
    """
    cache, candidate = planned.prepared.cache, planned.solved.candidate
    if cache is None or candidate is None:
        return 0.0
    baseline = planned.prepared.baseline
    before = _missed(baseline.graph, baseline.order, cache)
    after = _missed(planned.graph, planned.order, cache)
    operations, ops = planned.prepared.graph.operations, planned.formulation.ops
    missed = 0
    nodes = planned.rewritten.action_nodes
    for action, node in zip(candidate.actions, nodes, strict=True):
        if action.kind is not ActionKind.RUN:
            continue
        name = operations[ops[action.target]].name
        if name in before:
            missed += after[node] - before[name]
    return _HAD * cache.added_us(missed)


def _missed(graph: TrainingGraph, order: Sequence[OpId], cache: Cache) -> dict[str, int]:
    """Bytes that each node misses, by its name."""
    missed = missed_bytes(graph, order, cache_bytes=cache.bytes)
    return {op.name: missed[op.id] for op in graph.operations}
