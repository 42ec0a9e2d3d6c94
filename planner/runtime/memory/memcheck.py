"""Bytes of one model: predicted, and measured by ONNX Runtime or replayed from its order.

The measured live bytes of a node are its event's `requested_in_use`, less the arena's bytes before
the first node (small initializers, packed weights), plus the graph's inputs and initializers, which
the CPU's arena does not hold, and the copies that it does hold of those that are outputs. The event
is read before the node's dead inputs are released: live bytes as `planner.graph.liveness` defines
them. They do not include workspace; `in_use_bytes`, the arena's own high-water mark, does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.results.verification import MemoryCheck
from planner.runtime.memory.arena import RECOMMENDED, SETTINGS, forecast, simulate
from planner.runtime.memory.paged import forecast_pool
from planner.runtime.options import Memory, Opening, most_threads
from planner.runtime.profile import Run
from planner.units import format_bytes

_WORST = 10

_NEAR = 1.001
"""The tolerance of held bytes: a session's reserve for constants lies beside the planned regions."""

NO_ROOM = "the rewritten model has no room within the budget"


def measured(
    runs: Sequence[Run],
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    model: str,
    opening: Opening,
) -> MemoryCheck:
    """Compare measured with predicted bytes of one or two consecutive runs under one set of options.

    Args:
        opening: options of the session, its threads included.
    """
    options, threads = opening.memory, opening.threads or 1
    line = timeline(graph, order)
    predicted_live = [int(b) for b in line.live_bytes]
    copied = sum(t.bytes for t in graph.output_copies)  # the arena holds these too
    fixed = line.persistent_bytes - copied
    if SETTINGS[options] is not RECOMMENDED:
        # with reuse, a dead buffer may stay allocated until its next user
        (first, *_) = simulate(graph, order, SETTINGS[options], runs=1)
        predicted_live = [fixed + b for b in first.requested]
    # the arena's bytes before the first node: constants, and copies of inputs that are outputs
    before = (runs[0][0].requested_in_use or 0) - (runs[0][0].requested_delta or 0)
    constants = before - copied  # the arena holds these besides the step
    live = [(e.requested_in_use or 0) - before + line.persistent_bytes for e in runs[0]]
    per_node = _pair(runs[0], graph, order, predicted_live, live)
    expected = forecast(graph, order, options, threads=threads, runs=len(runs))
    return MemoryCheck(
        model=model,
        options=options,
        how="measured",
        predicted_live_bytes=max(predicted_live),
        live_bytes=max(live),
        predicted_in_use_bytes=expected.in_use_bytes,
        in_use_bytes=max(e.in_use_peak or 0 for run in runs for e in run) - constants,
        predicted_held_bytes=expected.held_bytes,
        held_bytes=max(e.held or 0 for run in runs for e in run) - constants,
        beside_bytes=expected.beside_bytes,
        per_node=per_node,
        worst=_worst(per_node),
    )


def in_pool(
    check: MemoryCheck, graph: TrainingGraph, order: Sequence[OpId], held_bytes: int
) -> MemoryCheck:
    """Replace a check's in-use and held bytes by those of a pool.

    Args:
        held_bytes: peak of the pool's pages, in bytes.
    """
    expected = forecast_pool(graph, order, threads=most_threads())
    return replace(
        check,
        predicted_in_use_bytes=expected.in_use_bytes,
        in_use_bytes=held_bytes,
        predicted_held_bytes=expected.held_bytes,
        held_bytes=held_bytes,
        beside_bytes=expected.beside_bytes,
    )


def replayed(
    run: Run, graph: TrainingGraph, order: Sequence[OpId], *, model: str, options: str
) -> MemoryCheck:
    """Compare live bytes of the executed order with the planned one, for plans with host copies.

    Where the executed nodes are not the graph's, only the planned bytes are known.
    """
    by_name = {op.name: op.id for op in graph.operations}
    executed = [by_name[e.name] for e in run if e.name in by_name]
    planned = timeline(graph, order)
    seen = timeline(graph, executed) if len(executed) == len(order) else None
    live = [int(b) for b in seen.live_bytes] if seen is not None else []
    per_node = _pair(run, graph, order, [int(b) for b in planned.live_bytes], live)
    return MemoryCheck(
        model=model,
        options=options,
        how="replayed",
        predicted_live_bytes=planned.peak_bytes,
        live_bytes=max(live, default=0),
        per_node=per_node,
        worst=_worst(per_node),
    )


def off_notes(check: MemoryCheck, graph: TrainingGraph) -> tuple[str, ...]:
    """Return notes on nodes whose live bytes differ from the prediction.

    Where sizes depend on data, predictions are bounds, and lower bytes are correct.
    """
    is_bound = any(t.unsized for t in graph.tensors)
    off = [row for row in check.worst if not is_bound or row[2] > row[1]]
    where = f"{check.model}, {check.options} options"
    if not off:
        below = f"{where}: {check.how} live bytes are the predicted ones, which are bounds, or less"
        return (below,) if check.worst else ()
    node, predicted, found = off[0]
    return (
        f"{where}: {len(off)} or more nodes where {check.how} live bytes are not the predicted ones, "
        f"first {node!r} ({format_bytes(predicted)} predicted, {format_bytes(found)} {check.how})",
    )


def over_budget(check: MemoryCheck, budget_bytes: int) -> tuple[str, ...]:
    """Return a failure where a rewritten model exceeds the budget, under recommended options."""
    if check.model != "rewritten" or check.options != "recommended":
        return ()
    if check.live_bytes <= budget_bytes:
        return ()
    return (
        f"{check.how} live bytes of the rewritten model are {format_bytes(check.live_bytes)}, over the "
        f"budget of {format_bytes(budget_bytes)}",
    )


def over_held(check: MemoryCheck, budget_bytes: int, options: Memory) -> tuple[str, ...]:
    """Return a failure where a rewritten model's session holds more than the budget.

    Args:
        options: the options with which it is to be opened.
    """
    if check.model != "rewritten" or check.options != options or check.held_bytes is None:
        return ()
    held_bytes = check.held_bytes + check.beside_bytes
    if held_bytes <= _NEAR * budget_bytes:
        return ()
    return (f"{NO_ROOM}: {format_bytes(held_bytes)} are held",)


def _pair(
    run: Run,
    graph: TrainingGraph,
    order: Sequence[OpId],
    predicted: Sequence[int],
    found: Sequence[int],
) -> tuple[tuple[str, int, int], ...]:
    """Return (node, predicted, found) by position where as many nodes ran as planned, else by name."""
    if len(run) == len(order) == len(found):
        return tuple((e.name, p, f) for e, p, f in zip(run, predicted, found, strict=True))
    of = {graph.operations[op].name: p for op, p in zip(order, predicted, strict=True)}
    return tuple((e.name, of[e.name], f) for e, f in zip(run, found, strict=False) if e.name in of)


def _worst(
    per_node: Sequence[tuple[str, int, int]],
) -> tuple[tuple[str, int, int], ...]:
    off = [row for row in per_node if row[1] != row[2]]
    return tuple(sorted(off, key=lambda row: -abs(row[1] - row[2]))[:_WORST])
