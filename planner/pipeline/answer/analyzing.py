"""`planner.api.analyze`: where the memory goes, and what a budget would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner import clock
from planner.native import library_path
from planner.pipeline.answer.budgets.budget_preview import preview_budgets
from planner.pipeline.answer.budgets.frontier import merged
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.levers.host.hosting import ways_of
from planner.pipeline.levers.host.residence import residence_note
from planner.pipeline.prepare.prepared import Prepared, Progress, prepare
from planner.pipeline.prepare.settings import noted_copies, settings_of
from planner.pipeline.solve.orders import (
    base_orders,
    least_found,
    least_found_peak,
    least_possible_peak,
    pinned_peak,
)
from planner.plan.planfile import PredictedCost
from planner.request import Request
from planner.results import (
    Analysis,
    BudgetPreview,
    LeastPeak,
    ModelView,
)


def analyzed(
    request: Request,
    progress: Progress,
    *,
    on_model: Callable[[ModelView], None] | None = None,
) -> Analysis:
    """Analyse the model as it is, search for the least budget, and preview the costs of budgets.

    Args:
        on_model: called with the model as it is, before any search.
    """
    library_path()  # fails early: searches need the library
    prepared = prepare(request, progress=progress, to_rewrite=False)
    if on_model is not None:
        on_model(prepared.baseline.view)
    clock.cap(request.limits.time_limit_s)
    share_s = ANSWERING.looking * request.limits.time_limit_s
    order_s = min(ANSWERING.better_order_s, share_s)
    least_s = min(ANSWERING.least_budget_s, share_s)
    progress("searching for a better order")
    orders = base_orders(prepared, time_limit_s=order_s)
    settings = settings_of(prepared)
    ways = ways_of(prepared, settings)
    least_bytes = prepared.baseline.peak_bytes
    if ways[0].resident:  # no way has all tensors on the device
        progress("searching for the least budget")
        found = least_found_peak(prepared, settings, orders, time_limit_s=least_s)
        least_bytes = min(least_bytes, found)
    previews: list[BudgetPreview] = []
    on_host, notes = None, []
    for way in ways:
        notes += residence_note(way)
        way_orders = base_orders(way, time_limit_s=order_s) if way.resident else orders
        progress("searching for the least budget")
        least = least_found(way, settings, way_orders, time_limit_s=least_s)
        progress("comparing base orders")
        previews.append(preview_budgets(way, settings, way_orders, least, progress))
        found = _least_bytes(way, previews[-1])
        if way.resident:
            on_host = LeastPeak(peak_bytes=found, bound_bytes=least_possible_peak(way))
        else:
            least_bytes = min(least_bytes, found)
    return Analysis(
        model_path=request.model,
        model_sha256=prepared.loaded.sha256,
        dims=dict(prepared.loaded.dims),
        hardware=prepared.hardware.name,
        cost_source=prepared.cost_source,
        ort_optimized=prepared.ort_optimized,
        default=prepared.baseline.view,
        best_order=PredictedCost(
            peak_bytes=orders[0].peak_bytes, time_us=sum(prepared.duration_us)
        ),
        best_order_name=orders[0].name,
        least_peak_bound_bytes=least_possible_peak(prepared),
        least_peak_bytes=least_bytes,
        levers=settings.levers,
        assumptions=(*prepared.graph.assumptions, *noted_copies(prepared, settings), *notes),
        on_host=on_host,
        budget_preview=_together(previews),
    )


def _together(previews: Sequence[BudgetPreview]) -> BudgetPreview:
    """Return one preview of all ways, their frontiers merged."""
    return replace(
        previews[0],
        frontier=merged([preview.frontier for preview in previews]),
        seconds=sum(preview.seconds for preview in previews),
    )


def _least_bytes(way: Prepared, preview: BudgetPreview) -> int:
    """Return the least budget that one of a preview's plans fits, its pins included."""
    plans = [point.plan for point in preview.frontier.points if point.plan is not None]
    return min(pinned_peak(way, plan.peak_bytes, plan.actions) for plan in plans)
