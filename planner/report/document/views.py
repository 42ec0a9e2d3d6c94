"""One model's view: its timeline, residents and live ranges.

Steps are positions in the schedule, from 0; ranges are half-open: [start, end).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from planner.graph.model import Category, Role, Tensor
from planner.plan.planfile import Decision
from planner.report.document import Document, told
from planner.results import ArenaForecast, ModelView

MAX_RESIDENTS = 200

TAXONOMY = {
    "model": (Category.PARAMETER, Category.CONSTANT),
    "optimizer": (Category.OPTIMIZER_STATE,),
    "gradients": (Category.GRADIENT,),
    "activations": (Category.ACTIVATION, Category.TEMPORARY),
    "workspace": (Category.WORKSPACE,),
    "inputs and outputs": (Category.INPUT, Category.OUTPUT),
}
"""The groups of categories in which the literature on low-memory training counts (ZeRO, Rajbhandari
et al. 2020, section 3: model states and residual states; MONeT, Shah et al. 2021: workspace)."""

KIND_OF_ROLE: dict[str, str] = {
    Role.RECOMPUTE: "recompute",
    Role.SWAP_OUT: "copy_out",
    Role.SWAP_IN: "copy_in",
    Role.PAGE_IN: "copy_in",
    Role.PAGE_OUT: "copy_out",
}
"""The kind of time that a step of each role takes; "compute" for every other role."""


class ResidentRow(Document, frozen=True):
    """A tensor on the device at the peak, and its steps there."""

    tensor: str
    bytes: int
    category: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    persistent: bool


class PeakDocument(Document, frozen=True):
    """The peak, known as soon as a model is analysed; `residents_at_peak` lists the largest first."""

    steps: int
    peak_bytes: int
    peak_step: int
    peak_operation: str
    composition_at_peak: dict[str, int]
    residents_at_peak: tuple[ResidentRow, ...]

    @property
    def parts(self) -> list[tuple[str, int, float]]:
        """Category, bytes and share of the peak, largest first."""
        return parts_of(self.composition_at_peak)


class LeftOut(Document, frozen=True):
    """The residents at the peak that are not listed."""

    count: int
    bytes: int


class TimelineColumns(Document, frozen=True):
    """The steps, as columns."""

    operation: tuple[str, ...]
    op_type: tuple[str, ...]
    role: tuple[str, ...]
    duration_us: tuple[float, ...]
    start_us: tuple[float, ...]
    live_bytes: tuple[int, ...]
    by_category: dict[str, tuple[int, ...]]


class RangeRow(Document, frozen=True):
    """A buffer: its live range, and its place in one region of the arena.

    `fate` (kept, recomputed or swapped) is that of the tensor or its copy.
    """

    tensor: str
    bytes: int
    start: int
    end: int
    offset: int
    category: str
    fate: str


class WorkspaceRow(Document, frozen=True):
    """A kernel's workspace, and its place in one region of the arena."""

    step: int
    bytes: int
    offset: int


class RegionFigures(Document, frozen=True):
    """The layout of all live ranges in one region of the arena."""

    bytes: int
    fragmentation: float
    alignment_bytes: int
    workspace: tuple[WorkspaceRow, ...]


class ViewDocument(PeakDocument, frozen=True):
    """One model; `residents_at_peak` lists at most `MAX_RESIDENTS`."""

    name: str
    operations: int
    tensors: int
    persistent_bytes: int
    time_us: float
    taxonomy_at_peak: dict[str, int]
    time_by_kind_us: dict[str, float]
    residents_at_peak_omitted: LeftOut
    timeline: TimelineColumns
    live_ranges: tuple[RangeRow, ...]
    arena: tuple[ArenaForecast, ...]
    one_region: RegionFigures

    @property
    def residents(self) -> int:
        """The number of tensors on the device at the peak."""
        return len(self.residents_at_peak) + self.residents_at_peak_omitted.count


def peak_document(view: ModelView) -> PeakDocument:
    """Make the document of a model's peak."""
    line = view.timeline
    peak = view.graph.operations[line.order[line.peak_step]].name if line.order else ""
    return PeakDocument(
        steps=len(line.order),
        peak_bytes=line.peak_bytes,
        peak_step=line.peak_step,
        peak_operation=peak,
        composition_at_peak=composition_at_peak(view),
        residents_at_peak=tuple(_residents(view)),
    )


def parts_of(composition: dict[str, int]) -> list[tuple[str, int, float]]:
    """Return each category with its bytes and its share of all, largest first."""
    whole = sum(composition.values()) or 1
    parts = sorted(composition.items(), key=lambda item: -item[1])
    return [(name, size, size / whole) for name, size in parts]


def composition_at_peak(view: ModelView) -> dict[str, int]:
    """Return the bytes at the peak, by category, without categories that have none there."""
    line = view.timeline
    parts = sorted(
        (c, int(part[line.peak_step])) for c, part in line.by_category.items() if len(part)
    )
    return {str(category): size for category, size in parts if size}


def view_document(view: ModelView, decisions: Sequence[Decision] = ()) -> ViewDocument:
    """Make the document of one model, with the fates that the decisions give its tensors."""
    graph, line, peak = view.graph, view.timeline, peak_document(view)
    left_out, at_peak = peak.residents_at_peak[MAX_RESIDENTS:], peak.composition_at_peak
    return told(
        ViewDocument,
        view,
        peak,
        name=graph.name,
        operations=len(graph.operations),
        tensors=len(graph.tensors),
        persistent_bytes=line.persistent_bytes,
        taxonomy_at_peak={
            group: sum(at_peak.get(c, 0) for c in categories)
            for group, categories in TAXONOMY.items()
        },
        time_by_kind_us=_time_by_kind(view),
        residents_at_peak=peak.residents_at_peak[:MAX_RESIDENTS],
        residents_at_peak_omitted=LeftOut(len(left_out), sum(r.bytes for r in left_out)),
        timeline=_columns(view),
        live_ranges=_ranges(view, decisions),
        one_region=told(
            RegionFigures,
            view.region,
            workspace=[WorkspaceRow(*row) for row in view.region.workspace],
        ),
    )


def _columns(view: ModelView) -> TimelineColumns:
    line = view.timeline
    ops = [view.graph.operations[op] for op in line.order]
    used = {str(c): a.tolist() for c, a in sorted(line.by_category.items()) if a.any()}
    return TimelineColumns(
        operation=tuple(op.name for op in ops),
        op_type=tuple(op.op_type for op in ops),
        role=tuple(str(op.role) for op in ops),
        duration_us=tuple(view.duration_us[op.id] for op in ops),
        start_us=tuple(starts_us(view)),
        live_bytes=tuple(line.live_bytes.tolist()),
        by_category={category: tuple(sizes) for category, sizes in used.items()},
    )


def _time_by_kind(view: ModelView) -> dict[str, float]:
    """Add up microseconds of the step by kind.

    The kinds are first runs of operations, recomputes, copies each way, and the part of the copies
    that runs beside operations.
    """
    total: dict[str, float] = dict.fromkeys(("compute", "recompute", "copy_out", "copy_in"), 0.0)
    for op in view.graph.operations:
        total[KIND_OF_ROLE.get(op.role, "compute")] += view.duration_us[op.id]
    # without starts of their own, all steps follow each other, as on ONNX Runtime's one stream
    beside = max(0.0, sum(total.values()) - view.time_us) if view.start_us else 0.0
    return total | {"copies_overlapped": beside}


def starts_us(view: ModelView) -> list[float]:
    """List the start time of each step, in the order of the steps."""
    if view.start_us:
        return [view.start_us[op] for op in view.timeline.order]
    durations = (view.duration_us[op] for op in view.timeline.order)
    return list(itertools.accumulate(durations, initial=0.0))[:-1]


def _residents(view: ModelView) -> list[ResidentRow]:
    """List the tensors that occupy the device at the peak, persistent ones included, largest first."""
    tensors, line = view.graph.tensors, view.timeline
    rows = [
        _resident(t, t.bytes, 0, len(line.order))
        for t in tensors
        if t.is_persistent and not t.on_host and t.buffer == t.id and t.bytes
    ]
    rows += [
        _resident(tensors[r.tensor], r.bytes, r.start, r.end)
        for r in line.resident_at(line.peak_step)
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.tensor))


def _resident(tensor: Tensor, size: int, start: int, end: int) -> ResidentRow:
    return ResidentRow(
        tensor=tensor.name,
        bytes=size,
        category=str(tensor.category),
        dtype=tensor.dtype,
        shape=tensor.shape,
        start=start,
        end=end,
        persistent=tensor.is_persistent,
    )


_PAST = {"recompute": "recomputed", "swap": "swapped", "page-in": "swapped"}
_FATE_OF_ROLE = {
    Role.RECOMPUTE: "recomputed",
    Role.BARRIER: "recomputed",
    Role.SWAP_IN: "swapped",
    Role.SWAP_OUT: "swapped",
    Role.PAGE_IN: "swapped",
    Role.PAGE_OUT: "swapped",
}


def _ranges(view: ModelView, decisions: Sequence[Decision]) -> tuple[RangeRow, ...]:
    fates = {d.tensor: _PAST[d.action] for d in decisions}
    rows = []
    for r, offset in zip(view.timeline.ranges, view.region.offsets, strict=True):
        name = view.graph.tensors[r.tensor].name
        rows.append(
            RangeRow(
                tensor=name,
                bytes=r.bytes,
                start=r.start,
                end=r.end,
                offset=offset,
                category=str(r.category),
                fate=_FATE_OF_ROLE.get(r.role) or fates.get(name, "kept"),
            )
        )
    return tuple(rows)
