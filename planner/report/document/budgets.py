"""Frontiers between memory and time: other budgets, and their cost."""

from __future__ import annotations

from planner.plan.points import Point
from planner.report.document import Document, told
from planner.results import BindingStep, BudgetPreview, Frontier


class PointRow(Document, kw_only=True, frozen=True):
    """One budget of a frontier; the plan's figures are None where it has none."""

    budget_bytes: int
    budget_share: float
    impossible: bool
    slowdown: float | None
    least_slowdown: float | None
    least_slowdown_in_order: float | None
    peak_bytes: int | None = None
    time_us: float | None = None
    engine: str | None = None
    order: str | None = None
    recomputed_ops: int | None = None
    recompute_us: float | None = None
    swap_out_bytes: int | None = None
    swap_in_bytes: int | None = None

    @property
    def copied_bytes(self) -> int:
        """Bytes copied both ways."""
        return (self.swap_out_bytes or 0) + (self.swap_in_bytes or 0)


class FrontierDocument(Document, frozen=True):
    """Time over budget at one size of the model."""

    dims: dict[str, int]
    baseline_peak_bytes: int
    order_alone_peak_bytes: int
    least_peak_bound_bytes: int
    base_time_us: float
    orders: tuple[str, ...]
    points: tuple[PointRow, ...]

    @property
    def at(self) -> str:
        """The size, written as `batch=8, seq=128`."""
        return dims_text(self.dims)

    @property
    def planned(self) -> list[tuple[int, float, float]]:
        """Each budget that has a plan, its slowdown, and the proved least slowdown in its base order."""
        return [
            (p.budget_bytes, p.slowdown, p.least_slowdown_in_order or 0.0)
            for p in self.points
            if p.slowdown is not None
        ]


class PreviewDocument(Document, frozen=True):
    """Other budgets, and their cost; `binds` and `us_per_mib` are None where they are unknown."""

    frontier: FrontierDocument
    us_per_mib: float | None
    binds: tuple[BindingStep, ...] | None
    seconds: float


def dims_text(dims: dict[str, int]) -> str:
    """Write sizes as `batch=8, seq=128`."""
    return ", ".join(f"{name}={size}" for name, size in dims.items())


def frontier_document(frontier: Frontier) -> FrontierDocument:
    """Make the document of a frontier."""
    return FrontierDocument(
        dims=frontier.dims,
        baseline_peak_bytes=frontier.baseline_bytes,
        order_alone_peak_bytes=frontier.order_alone_bytes,
        least_peak_bound_bytes=frontier.least_bound_bytes,
        base_time_us=frontier.base_us,
        orders=frontier.orders,
        points=tuple(_point(frontier, p) for p in frontier.points),
    )


def _point(frontier: Frontier, point: Point) -> PointRow:
    plan = point.plan
    return told(
        PointRow,
        plan,
        budget_bytes=point.capacity_bytes,
        budget_share=point.capacity_bytes / (frontier.baseline_bytes or 1),
        impossible=point.is_impossible,
        slowdown=frontier.slowdown(point),
        least_slowdown=frontier.least_slowdown(point),
        least_slowdown_in_order=frontier.least_slowdown_in_order(point),
        order=None if plan is None else frontier.orders[plan.order],
        recompute_us=None if plan is None else plan.recomputed_us,
    )


def preview_document(preview: BudgetPreview | None) -> PreviewDocument | None:
    """Make the document of a budget preview; None without one."""
    if preview is None:
        return None
    return told(
        PreviewDocument,
        preview,
        frontier=frontier_document(preview.frontier),
        us_per_mib=None if preview.binds is None else sum(b.us_per_mib for b in preview.binds),
    )
