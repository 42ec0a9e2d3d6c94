"""Store some of the tensors saved for the backward pass in half precision."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

import onnx_ir as ir

from planner.choices import HALF_DTYPE, HALF_OPSET, CastSaved, least_exact
from planner.cost.model import durations_of_changed
from planner.errors import UsageError
from planner.graph.model import Category, OpId, Role, TensorId, TrainingGraph
from planner.graph.saved import Saved, may_be_halved
from planner.lower.halved import with_halves
from planner.pipeline.levers.lever import as_before
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import workspace_of
from planner.runtime.device.predict.table import kernel_table
from planner.targets import Target, devices
from planner.units import format_bytes


def halved(prepared: Prepared, names: Set[str], kind: CastSaved) -> Prepared:
    """Return the model with the named buffers in half precision from forward to backward.

    Args:
        names: of tensors that own a buffer that may be stored like this
            (`planner.graph.saved.may_be_halved`).
        kind: "bf16" or "fp16".
    """
    if not names:
        return prepared
    saved = [s for s in may_be_halved(prepared.graph) if name_of(prepared, s) in names]
    dtype = ir.DataType[HALF_DTYPE[kind].upper()]
    made = with_halves(prepared.model, prepared.types, prepared.graph, saved, dtype)
    placement = prepared.placement
    graph = typed_graph(made.model, made.types, placement=placement)
    added = (
        replace(t, category=Category.ACTIVATION) if t.name in made.made else t
        for t in graph.tensors
    )
    graph = as_before(replace(graph, tensors=tuple(added)), prepared.graph)
    order = (prepared.graph.operations[op].name for op in prepared.order)
    return replace(
        prepared,
        model=made.model,
        types=made.types,
        graph=replace(graph, assumptions=(*prepared.graph.assumptions, _note(graph, kind))),
        order=in_order(graph, order),
        workspace_bytes=workspace_of(graph, prepared.target),
        duration_us=durations_of_changed(
            graph, prepared.graph, prepared.duration_us, prepared.hardware
        ),
        numbers=least_exact(prepared.numbers, "lossy"),
        halved=tuple(sorted(names)),
    )


def name_of(prepared: Prepared, saved: Saved) -> str:
    """Return the name of the tensor that owns a buffer."""
    return prepared.graph.tensors[saved.buffer].name


def check_can_halve(prepared: Prepared) -> None:
    """Raise UsageError if the request asks for saved tensors in half precision and none can be."""
    kind = prepared.request.levers.cast_saved
    if kind == "none":
        return
    opset = prepared.model.graph.opset_imports.get("", 1)
    if opset < HALF_OPSET[kind]:
        raise UsageError(
            f"--cast-saved {kind} needs operator set {HALF_OPSET[kind]}, whose Cast knows "
            f"{HALF_DTYPE[kind]}; the model has {opset}: convert it, or use --cast-saved fp16"
        )
    if not _has_casts(prepared.target, kind, opset):
        raise UsageError(
            f"--cast-saved {kind}: {prepared.target.title} has no kernel that casts to "
            f"{HALF_DTYPE[kind]}; leave it out" + (", or use fp16" if kind == "bf16" else "")
        )
    if not may_be_halved(prepared.graph):
        raise UsageError(
            f"--cast-saved {kind}: the model has no 32-bit floating-point tensor that the forward pass "
            "makes, the backward pass reads and nothing leaves out; indices, masks and outputs are never "
            "cast: use --cast-saved none"
        )


def _has_casts(target: Target, kind: str, opset: int) -> bool:
    """Tell whether the device has kernels that cast a float to the type, and back."""
    if target.is_host:
        return True
    asked = devices() if target.everywhere else (target,)
    half = ir.DataType[HALF_DTYPE[kind].upper()]
    return all(
        any(
            all(half in constraint.types for constraint in kernel.constraints)
            for kernel in kernel_table(one).serving("Cast", "", opset)
        )
        for one in asked
    )


def _note(graph: TrainingGraph, kind: str) -> str:
    """Return a note on the halved tensors for the plan's assumptions."""
    halves = [graph.tensors[op.outputs[0]] for op in graph.operations if op.role is Role.HALF]
    size = format_bytes(sum(t.bytes for t in halves))
    return (
        f"lossy, as asked for (--cast-saved {kind}): {len(halves):,} tensors are stored in "
        f"{HALF_DTYPE[kind]} from forward to backward ({size}, half their size); the backward "
        "pass reads rounded values, and gradients differ"
    )


def in_order(graph: TrainingGraph, names: Iterable[str]) -> tuple[OpId, ...]:
    """Order all operations of a graph, given the order of those that are not casts.

    A tensor's cast to half precision follows its last reader before the halved value is needed. Its
    cast back comes right before the operation that needs it.

    Args:
        names: operations other than casts, in order.
    """
    ids = {op.name: op.id for op in graph.operations}
    plain = [ids[name] for name in names]
    place = {op: i for i, op in enumerate(plain)}
    wholes = {t: op for op in graph.operations if op.role is Role.WHOLE for t in op.outputs}
    behind: dict[OpId, list[OpId]] = {}
    halves = [op for op in graph.operations if op.role is Role.HALF]
    read_at: dict[TensorId, list[int]] = {}
    for tensor in graph.tensors:
        read_at.setdefault(tensor.buffer, []).extend(
            place[c] for c in tensor.consumers if c in place
        )
    needed = _first_needs(graph, place)
    for half in halves:
        source = graph.tensors[graph.tensors[half.inputs[0]].buffer]
        assert source.producer is not None
        first = needed[half.outputs[0]]
        last = max([place[source.producer], *(i for i in read_at[source.id] if i < first)])
        behind.setdefault(plain[last], []).append(half.id)
    order: dict[OpId, None] = {}

    def bring(op: OpId) -> None:
        for t in graph.operations[op].inputs:
            made = wholes.get(t)
            if made is not None and made.id not in order:
                bring(made.id)
                order[made.id] = None

    for op in plain:
        bring(op)
        order[op] = None
        order.update((half, None) for half in behind.get(op, ()))
    return tuple(order)


def _first_needs(graph: TrainingGraph, place: dict[OpId, int]) -> dict[int, int]:
    """Return the place of the first operation that needs each halved tensor, or a cast back of it."""
    found: dict[int, int] = {}
    for op in reversed([op for op in graph.operations if op.role in (Role.HALF, Role.WHOLE)]):
        for t in op.outputs:
            readers = graph.tensors[t].consumers
            mine = [place[c] for c in readers if c in place]
            made = [
                found[o] for c in readers if c not in place for o in graph.operations[c].outputs
            ]
            found[t] = min([*mine, *made])
    return found
