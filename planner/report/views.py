"""One model's view as JSON-able data: its timeline, residents and live ranges.

steps     positions in the schedule, 0-based; ranges are half-open: [start, end)
*_bytes   integer bytes
*_us      microseconds
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.files.structuring import fields_of
from planner.graph.liveness import LiveRange
from planner.graph.model import Category, Role, Tensor, TrainingGraph
from planner.plan.planfile import Decision, MicroBatches
from planner.results import ModelView, RegionLayout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_RESIDENTS = 200

TAXONOMY = {
    "model": (Category.PARAMETER, Category.CONSTANT),
    "optimizer": (Category.OPTIMIZER_STATE,),
    "gradients": (Category.GRADIENT,),
    "activations": (Category.ACTIVATION, Category.TEMPORARY),
    "workspace": (Category.WORKSPACE,),
    "inputs and outputs": (Category.INPUT, Category.OUTPUT),
}
"""The parts in which the literature on low-memory training counts (ZeRO, Rajbhandari et al. 2020,
section 3: model states and residual states; MONeT, Shah et al. 2021: workspace), from categories."""

KIND_OF_ROLE: dict[str, str] = {
    Role.RECOMPUTE: "recompute",
    Role.SWAP_OUT: "copy_out",
    Role.SWAP_IN: "copy_in",
    Role.PAGE_IN: "copy_in",
    Role.PAGE_OUT: "copy_out",
}
"""What a step's time goes into; "compute" for every other role."""


def number(value: float | None) -> float | str | None:
    """`value` as JSON allows it: not-a-number and infinities become "nan", "inf", "-inf"."""
    if value is None or math.isfinite(value):
        return value
    return str(float(value))


def picked(made: Any, *names: str, but: Container[str] = ()) -> dict[str, Any]:
    """Fields of a dataclass by name, as JSON allows them.

    Args:
        names: those that are wanted; all where there is none.
        but: those that are not.
    """
    found = {name: getattr(made, name) for name in names} if names else fields_of(made)
    return {name: _plain(value) for name, value in found.items() if name not in but}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    return list(value) if isinstance(value, tuple) else value


def taxonomy_of(composition: Mapping[Category, int]) -> dict[str, int]:
    """Bytes by the parts in which the literature counts, from bytes by category."""
    return {
        group: sum(composition.get(c, 0) for c in categories)
        for group, categories in TAXONOMY.items()
    }


def peak_payload(view: ModelView) -> dict[str, Any]:
    """What a view says of the peak: known as soon as the model is analysed."""
    graph, timeline = view.graph, view.timeline
    step, used = timeline.peak_step, _used(view)
    return {
        "steps": len(timeline.order),
        "peak_bytes": timeline.peak_bytes,
        "peak_step": step,
        "peak_operation": graph.operations[timeline.order[step]].name if timeline.order else "",
        "composition_at_peak": {
            str(c): int(a[step]) for c, a in sorted(used.items()) if int(a[step])
        },
        "residents_at_peak": residents_at(view, step),
    }


def _used(view: ModelView) -> dict[Category, npt.NDArray[np.int64]]:
    """Bytes by step of the categories that there are."""
    return {c: a for c, a in view.timeline.by_category.items() if len(a) and int(a.max())}


def view_payload(view: ModelView, decisions: Sequence[Decision] = ()) -> dict[str, Any]:
    """Everything the reports say of one model.

    `residents_at_peak` lists the largest `MAX_RESIDENTS` tensors, persistent ones included;
    what is left out is counted in `residents_at_peak_omitted`.
    """
    graph, timeline = view.graph, view.timeline
    step, peak = timeline.peak_step, peak_payload(view)
    residents = peak["residents_at_peak"]
    left_out = residents[MAX_RESIDENTS:]
    fates, used = _fates(decisions), _used(view)
    return {
        "name": graph.name,
        "operations": len(graph.operations),
        "tensors": len(graph.tensors),
        **{key: peak[key] for key in ("steps", "peak_bytes", "peak_step", "peak_operation")},
        "persistent_bytes": timeline.persistent_bytes,
        "time_us": number(view.time_us),
        "composition_at_peak": peak["composition_at_peak"],
        "taxonomy_at_peak": taxonomy_of({c: int(a[step]) for c, a in used.items()}),
        "time_by_kind_us": _time_by_kind(view),
        "residents_at_peak": residents[:MAX_RESIDENTS],
        "residents_at_peak_omitted": {
            "count": len(left_out),
            "bytes": sum(r["bytes"] for r in left_out),
        },
        "timeline": {
            "operation": [graph.operations[op].name for op in timeline.order],
            "op_type": [graph.operations[op].op_type for op in timeline.order],
            "role": [str(graph.operations[op].role) for op in timeline.order],
            "duration_us": [number(view.duration_us[op]) for op in timeline.order],
            "start_us": [number(start) for start in starts_us(view)],
            "live_bytes": timeline.live_bytes.tolist(),
            "by_category": {str(c): a.tolist() for c, a in sorted(used.items())},
        },
        "live_ranges": _ranges(view, fates),
        "arena": [
            {
                "options": a.options,
                "in_use_bytes": a.in_use_bytes,
                "held_bytes": a.held_bytes,
                "beside_bytes": a.beside_bytes,
            }
            for a in view.arena
        ],
        "one_region": _region(view.region),
    }


def _time_by_kind(view: ModelView) -> dict[str, Any]:
    """Microseconds of the step: operations for the first time, recomputes, copies each way, and how
    much of the copies runs beside operations."""
    total: dict[str, float] = dict.fromkeys(("compute", "recompute", "copy_out", "copy_in"), 0.0)
    for op in view.graph.operations:
        total[KIND_OF_ROLE.get(op.role, "compute")] += view.duration_us[op.id]
    # without starts of their own, all steps follow each other, as on ONNX Runtime's one stream
    beside = max(0.0, sum(total.values()) - view.time_us) if view.start_us else 0.0
    return {kind: number(us) for kind, us in total.items()} | {"copies_overlapped": number(beside)}


def starts_us(view: ModelView) -> list[float]:
    """When each step starts, in the order of the steps."""
    if view.start_us:
        return [view.start_us[op] for op in view.timeline.order]
    durations = (view.duration_us[op] for op in view.timeline.order)
    return list(itertools.accumulate(durations, initial=0.0))[:-1]


def _region(region: RegionLayout) -> dict[str, Any]:
    return {
        "bytes": region.bytes,
        "fragmentation": number(region.fragmentation),
        "alignment_bytes": region.alignment_bytes,
        "workspace": [
            {"step": step, "bytes": size, "offset": offset}
            for step, size, offset in region.workspace
        ],
    }


def residents_at(view: ModelView, step: int) -> list[dict[str, Any]]:
    """Tensors that occupy the device at `step`, persistent ones included, largest first."""
    end = len(view.timeline.order)
    rows = [
        _resident(t, t.bytes, 0, end)
        for t in view.graph.tensors
        if t.is_persistent and not t.on_host and t.buffer == t.id and t.bytes
    ]
    rows += [
        _resident(view.graph.tensors[r.tensor], r.bytes, r.start, r.end)
        for r in view.timeline.resident_at(step)
    ]
    return sorted(rows, key=lambda row: (-row["bytes"], row["tensor"]))


def _resident(tensor: Tensor, size: int, start: int, end: int) -> dict[str, Any]:
    return {
        "tensor": tensor.name,
        "bytes": size,
        "category": str(tensor.category),
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "start": start,
        "end": end,
        "persistent": tensor.is_persistent,
    }


def _fates(decisions: Sequence[Decision]) -> dict[str, str]:
    return {d.tensor: _PAST.get(d.action, d.action) for d in decisions}


_PAST = {"recompute": "recomputed", "swap": "swapped", "page-in": "swapped"}
_FATE_OF_ROLE = {
    Role.RECOMPUTE: "recomputed",
    Role.BARRIER: "recomputed",
    Role.SWAP_IN: "swapped",
    Role.SWAP_OUT: "swapped",
    Role.PAGE_IN: "swapped",
    Role.PAGE_OUT: "swapped",
}


def _ranges(view: ModelView, fates: dict[str, str]) -> list[dict[str, Any]]:
    """Live ranges; `fate` is kept, recomputed or swapped (the tensor's, or its copy's), `offset` in
    one region of the arena."""
    graph, line = view.graph, view.timeline
    places = zip(line.ranges, view.region.offsets, strict=True)
    return [_range(graph, r, fates, offset) for r, offset in places]


def _range(
    graph: TrainingGraph, r: LiveRange, fates: dict[str, str], offset: int
) -> dict[str, Any]:
    name = graph.tensors[r.tensor].name
    return {
        "tensor": name,
        "bytes": r.bytes,
        "start": r.start,
        "end": r.end,
        "offset": offset,
        "category": str(r.category),
        "fate": _FATE_OF_ROLE.get(r.role) or fates.get(name, "kept"),
    }


def micro_payload(micro: MicroBatches) -> dict[str, Any]:
    """How the runs of a step are made, with every total that is fed back."""
    pairs = [fields_of(accumulator) for accumulator in micro.accumulators]
    return {**fields_of(micro), "accumulators": pairs}
