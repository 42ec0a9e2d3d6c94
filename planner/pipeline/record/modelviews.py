"""Views of rewritten models for the reports: graph, timeline, durations; times beyond the schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.cost.measured import Cache
from planner.graph.marks import role_of
from planner.graph.model import OpId, Role, TrainingGraph
from planner.graph.rules import COMING_IN, SWAP_TOKENS
from planner.graph.schedule import default_order, priority_order
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import full_timeline, view_of
from planner.pipeline.solve.planned import Planned
from planner.pipeline.target.targeting import check_target
from planner.plan.planfile import Plan
from planner.plan.problem import ActionKind
from planner.results import ModelView
from planner.runtime.device.placement import placement_of
from planner.runtime.memory.missed import missed_bytes
from planner.targets import Target

_LIKE_INPUT = frozenset(
    {Role.BARRIER, Role.SWAP_OUT, Role.SWAP_IN, Role.SWAP_IN_DONE, Role.SCRATCH}
)
"""Roles of nodes whose output has the type of their input."""


def rewritten_view(planned: Planned, plan: Plan, target: Target) -> ModelView:
    """Build the view of an accepted plan's model."""
    durations = _durations_after(planned)
    view = view_of(
        planned.graph,
        planned.timeline,
        durations,
        target,
        plan.arena,
        in_pool=plan.pool is not None,
    )
    return replace(view, time_us=plan.planned.time_us, start_us=_starts_after(planned))


def _durations_after(planned: Planned) -> tuple[float, ...]:
    """Return the durations of the rewritten graph by OpId, including those of copies and pins."""
    problem = planned.formulation.problem
    us: dict[ActionKind, Callable[[int], float]] = {
        ActionKind.RUN: lambda op: problem.ops[op].duration_us,
        ActionKind.SWAP_OUT: problem.swap_out_us,
        ActionKind.SWAP_IN: problem.swap_in_us,
        ActionKind.SWAP_OUT_DONE: lambda _: 0.0,
    }
    actions = zip(planned.rewritten.action_nodes, planned.solved.found.actions, strict=True)
    by_node = {node: us[action.kind](action.target) for node, action in actions}
    pins = dict.fromkeys(pins_of(planned), planned.prepared.pin_us)
    durations = planned.prepared.duration_us
    original = {op.name: durations[op.id] for op in planned.prepared.graph.operations}
    known = {**original, **pins, **by_node}
    return tuple(known[op.name] for op in planned.graph.operations)


def _starts_after(planned: Planned) -> tuple[float, ...]:
    """Return the start of each node of the rewritten graph, if copies run beside the operations.

    Nodes that pin the order take no time: each starts when the node before it ends.
    """
    timeline = planned.solved.found.replay.timeline
    if timeline is None:
        return ()
    nodes = planned.rewritten.action_nodes
    when = {
        node: (start, end)
        for node, start, end in zip(nodes, timeline.start_us, timeline.end_us, strict=True)
    }
    starts = [0.0] * len(planned.graph.operations)
    now = 0.0
    for op in planned.order:
        name = planned.graph.operations[op].name
        starts[op], now = when.get(name, (now, now))
    return tuple(starts)


def file_view(
    path: Path, dims: Mapping[str, int], order_target: str, original: Prepared
) -> ModelView:
    """Build the view of a rewritten model's file, with ONNX Runtime's placement and without durations."""
    loaded = load_model(path, dims=dims)
    check_target(loaded.model, path, original.target)
    known = dict(original.types)
    for node in loaded.model.graph:  # a copy has the type of its source
        if node.op_type in (*SWAP_TOKENS, *COMING_IN):
            continue
        if role_of(node) in _LIKE_INPUT and node.inputs[0] is not None:
            kind = known.get(str(node.inputs[0].name))
            if kind is not None:
                known.setdefault(str(node.outputs[0].name), kind)
        if role_of(node) is not Role.RECOMPUTE:
            continue
        for value in node.outputs:
            stem = re.sub(r"__recompute_\d+(_\d+)?\Z", "", str(value.name))
            if stem in known:
                known.setdefault(str(value.name), known[stem])
    target = original.target
    placement = placement_of(path, target) if target.own_memory else None
    graph = analysed_graph(loaded.model, loaded.dims, known=known, placement=placement)
    order = priority_order(graph) if order_target == "priority" else default_order(graph)
    durations = (0.0,) * len(graph.operations)
    return view_of(graph, full_timeline(graph, order, target), durations, target)


_HAD = 0.5
"""Share of the last cache's predicted savings that is counted on.

Other programs use the cache too. On the GPT sample all of the savings were measured in one hour,
none in the next.
"""

_MOST = 0.1
"""The largest share of a step that the last cache saves, as measured (`reports/predictions.md`).

The bandwidth of its misses varies tenfold with what other programs do while it is measured.
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
    return max(_HAD * cache.added_us(missed), -_MOST * planned.formulation.problem.base_duration_us)


def _missed(graph: TrainingGraph, order: Sequence[OpId], cache: Cache) -> dict[str, int]:
    """Return the bytes that each node misses in the cache, by node name."""
    missed = missed_bytes(graph, order, cache_bytes=cache.bytes)
    return {op.name: missed[op.id] for op in graph.operations}
