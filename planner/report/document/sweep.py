"""The document of `planner sweep`: the cost of each budget, and the largest size that fits it."""

from __future__ import annotations

from typing import Literal

from planner import __version__
from planner.report.document import Document, told
from planner.report.document.budgets import FrontierDocument, dims_text, frontier_document
from planner.results import Largest, Sweep
from planner.units import format_bytes, format_percent


class SweepDocument(Document, kw_only=True, frozen=True):
    """The document of `planner sweep`."""

    schema: Literal["planner.sweep/1"] = "planner.sweep/1"
    planner_version: str = __version__
    model: str
    model_sha256: str
    hardware: str
    cost_source: str
    copies: str
    resident: str
    seed: int
    seconds: float
    swap: str
    dim: str | None
    sentence: str
    frontiers: tuple[FrontierDocument, ...]
    largest: tuple[Largest, ...]
    assumptions: tuple[str, ...]


def sweep_document(sweep: Sweep) -> SweepDocument:
    """Make the document of `planner sweep`."""
    return told(
        SweepDocument,
        sweep,
        model=str(sweep.model_path),
        swap=sweep.swap_mode,
        dim=sweep.dim or None,
        sentence=_sentence(sweep),
        frontiers=[frontier_document(f) for f in sweep.frontiers],
        assumptions=(
            "each point is a plan replayed by the simulator: live bytes, without ONNX Runtime's "
            "fragmentation; `planner optimize` lowers and verifies one",
            "a bound holds for plans that first run the operations in one of the base orders named",
            *sweep.assumptions,
        ),
    )


def _sentence(sweep: Sweep) -> str:
    """Describe the frontier of the largest size in a sentence."""
    frontier = sweep.frontiers[-1]
    with_plan = [p for p in frontier.points if p.plan is not None]
    start = f"The model's own peak is {format_bytes(frontier.baseline_bytes)}"
    if frontier.dims:
        start += f" at {dims_text(frontier.dims)}"
    if not with_plan:
        return f"{start}; nothing fits any of the budgets."
    least = with_plan[0]
    free = [p for p in with_plan if not frontier.slowdown(p)]
    text = f"{start}. "
    if free:
        text += f"{format_bytes(free[0].capacity_bytes, up=True)} cost no time; "
    return (
        f"{text}{format_bytes(least.capacity_bytes, up=True)}, the least budget here with a plan, cost "
        f"{format_percent(frontier.slowdown(least) or 0.0)} more time (predicted)."
    )
