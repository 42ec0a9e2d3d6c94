"""Add page-ins and page-outs to a model, for tensors that live on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from planner.cost.model import durations_of_changed
from planner.graph.model import OpId, Role, TrainingGraph
from planner.graph.reasons import WhyStay
from planner.lower.residence import Resided, with_residence
from planner.pipeline.levers.lever import as_before
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import workspace_of
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.units import format_duration


def resided(prepared: Prepared, names: Set[str]) -> Prepared:
    """Return the model with the named inputs, initializers and outputs on the host.

    Page-ins come right before the first reader, page-outs right after the producer.

    Args:
        names: of tensors that may live there (`planner.lower.residence.may_live_on_host`).
    """
    if not names:
        return prepared
    placement = prepared.placement
    on_cpu = placement.on_cpu if placement is not None else frozenset[str]()
    made = with_residence(prepared.model, prepared.types, names, on_cpu=on_cpu)
    graph = typed_graph(made.model, made.types, placement=placement)
    graph = _as_before(graph, prepared.graph, made)
    durations = durations_of_changed(graph, prepared.graph, prepared.duration_us, prepared.hardware)
    return replace(
        prepared,
        baseline=replace(prepared.baseline, fed_us=_fed_us(prepared, graph, made, durations)),
        model=made.model,
        types=made.types,
        graph=replace(graph, assumptions=prepared.graph.assumptions),
        order=in_order(graph, (prepared.graph.operations[op].name for op in prepared.order)),
        workspace_bytes=workspace_of(graph, prepared.target),
        duration_us=durations,
        resident=tuple(sorted(names)),
    )


def around_taken(prepared: Prepared, error: TakenError) -> frozenset[str]:
    """Return the tensors to keep on the device because ONNX Runtime's optimizers remove their neighbours.

    The optimizers keep a node that does nothing only if it makes an output. Returns all tensors on
    the host if the error names none of them.
    """
    graph = prepared.graph
    found: set[str] = set()
    for op in graph.operations:
        if op.role is Role.PAGE_OUT:
            here, host = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
            beside = [here.producer]
        elif op.role is Role.PAGE_IN:
            here, host = graph.tensors[op.outputs[0]], graph.tensors[op.inputs[0]]
            beside = [*here.consumers]
        else:
            continue
        names = {graph.operations[o].name for o in beside if o is not None}
        if names & error.nodes or here.name in error.copied:
            found.add(host.name)
    return frozenset(found or prepared.resident)


def feeds_are_copied(prepared: Prepared) -> bool:
    """Tell whether a session copies the caller's inputs to the device, and its results back."""
    feeds = prepared.request.levers.feeds
    apart = prepared.target.own_memory or not prepared.hardware.is_host
    return feeds == "host" or (feeds == "auto" and apart)


def is_paged_at_a_price(prepared: Prepared) -> bool:
    """Tell whether some tensor on the host needs a copy that a session would not make in any case."""
    mine = prepared.loaded.model.graph.initializers
    is_added = not feeds_are_copied(prepared)
    return any(is_added or name in mine for name in prepared.resident)


def most_bound_us(prepared: Prepared, *, overlap: bool) -> float:
    """Return the cap on every bound on a time, in microseconds.

    With other tensors on the host there may be quicker plans, and copies that the bound counts
    between the operations may hide beside them.

    Args:
        overlap: copies run beside the operations.
    """
    if overlap and prepared.resident:
        return prepared.baseline.time_us - prepared.baseline.fed_us
    return prepared.baseline.time_us if is_paged_at_a_price(prepared) else float("inf")


def residence_note(prepared: Prepared) -> tuple[str, ...]:
    """Return a note on the assumed feeds of the caller, if tensors live on the host."""
    if not prepared.resident:
        return ()
    count = f"{len(prepared.resident):,} inputs, initializers and outputs live on the host"
    if feeds_are_copied(prepared):
        fed = format_duration(prepared.baseline.fed_us)
        return (
            f"{count}: the caller keeps them on the host, so a session copies each once in any "
            f"case ({fed}, also in the time of the original model); use --feeds device if the "
            "caller binds device memory",
        )
    return (f"{count}; every copy of them adds to the step (--feeds)",)


def _fed_us(
    prepared: Prepared, graph: TrainingGraph, made: Resided, durations: Sequence[float]
) -> float:
    """Return the time of the copies that a session also makes for the original's inputs and outputs."""
    if not feeds_are_copied(prepared):
        return 0.0
    mine = {v.name for v in prepared.model.graph.initializers.values()}
    named = {**made.page_ins, **made.page_outs}
    return sum(
        durations[op.id]
        for op in graph.operations
        if op.name in named and named[op.name] not in mine
    )


def _as_before(graph: TrainingGraph, before: TrainingGraph, made: Resided) -> TrainingGraph:
    """Restore categories and bars.

    Categories follow from names, and tensors on the device have new ones. These need no copy to the
    host, either.
    """
    tensors, known = list(graph.tensors), {t.name: t.category for t in before.tensors}
    for op in graph.operations:
        host = made.page_ins.get(op.name) or made.page_outs.get(op.name)
        for t in (*op.inputs, *op.outputs) if host is not None else ():
            tensors[t] = replace(tensors[t], category=known[str(host)])
    graph = as_before(replace(graph, tensors=tuple(tensors)), before)
    paged = (t for op in graph.operations if op.name in made.page_ins for t in op.outputs)
    return graph.with_bars(dict.fromkeys(paged, WhyStay.PAGED))


def in_order(graph: TrainingGraph, names: Iterable[str]) -> tuple[OpId, ...]:
    """Order all operations of a graph, with each copy right beside the operation that it serves.

    Args:
        names: the other operations, in order.
    """
    ids = {op.name: op.id for op in graph.operations}
    page_in = {op.outputs[0]: op.id for op in graph.operations if op.role is Role.PAGE_IN}
    page_out = {op.inputs[0]: op.id for op in graph.operations if op.role is Role.PAGE_OUT}
    order: dict[OpId, None] = {}
    for name in names:
        op = graph.operations[ids[name]]
        order.update((page_in[t], None) for t in op.inputs if t in page_in)
        order[op.id] = None
        order.update((page_out[t], None) for t in op.outputs if t in page_out)
    return tuple(order)
