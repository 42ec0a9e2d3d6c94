"""Times of a rewritten model beyond its schedule: nodes that pin the order, and cache effects."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.measured import Cache
from planner.graph.model import OpId, TrainingGraph
from planner.pipeline.solve.planned import Planned
from planner.plan.problem import ActionKind
from planner.runtime.memory.missed import missed_bytes

_HAD = 0.5
"""Share of the last cache's predicted savings that is counted on.

Other programs use the cache too. On the GPT sample all of the savings were measured in one hour,
none in the next.
"""


def pins_of(planned: Planned) -> tuple[str, ...]:
    """Return the names of nodes that planner added to pin the order, and of views made again."""
    known = {op.name for op in planned.prepared.graph.operations}
    known.update(planned.rewritten.action_nodes)
    return tuple(op.name for op in planned.graph.operations if op.name not in known)


def cache_us(planned: Planned) -> float:
    """Predict the change of the operations' time by cache effects, in microseconds; negative is less.

    The processor's cache may still hold more or less of an operation's data than in the original; 0
    if the cache was not measured. Copies are left out: their bandwidth was measured with the cache
    misses of a step of that size.
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
    """Return the bytes that each node misses in the cache, by node name."""
    missed = missed_bytes(graph, order, cache_bytes=cache.bytes)
    return {op.name: missed[op.id] for op in graph.operations}
