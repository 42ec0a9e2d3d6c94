"""What budgets cost where inputs and outputs may be on the host: two ways, and one frontier of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import zoo
from planner import api, clock
from planner.api_sweep import sweep
from planner.errors import UsageError
from planner.pipeline.answer.budgets.budget_preview import preview_budgets
from planner.pipeline.answer.budgets.frontier import merged, way_of
from planner.pipeline.levers.host.hosting import ways_of
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve.orders import base_orders, least_found
from planner.plan.points import Point, PointPlan
from planner.request import Costs, Levers, Request
from planner.results import Frontier

ZOO = Path(zoo.__file__).parent
BASE_US = 100.0


@st.composite
def points(draw: st.DrawFn, budgets: list[int]) -> tuple[Point, ...]:
    """A plan or none at each budget, and a bound below it; nothing fits the small ones."""
    impossible = draw(st.integers(0, len(budgets) - 1))
    found = []
    for i, budget in enumerate(budgets):
        time_us = draw(st.none() | st.floats(BASE_US, 3 * BASE_US)) if i >= impossible else None
        bound_us = float("inf")
        if i >= impossible:
            bound_us = draw(st.floats(BASE_US, time_us or 3 * BASE_US))
        plan = None
        if time_us is not None:
            plan = PointPlan(peak_bytes=budget, time_us=time_us, engine="any", order=0)
        found.append(Point(capacity_bytes=budget, plan=plan, bound_us=bound_us))
    return tuple(found)


def frontier(name: str, found: tuple[Point, ...]) -> Frontier:
    return Frontier(
        dims={},
        baseline_bytes=1000,
        base_us=BASE_US,
        order_alone_bytes=900,
        least_bound_bytes=min(p.capacity_bytes for p in found),
        orders=(name,),
        points=found,
    )


@given(points([10, 20, 30, 40]), points([5, 20, 40]))
def test_one_frontier_has_the_best_plan_of_both_and_no_bound_above_it(
    device: tuple[Point, ...], host: tuple[Point, ...]
) -> None:
    found = merged([frontier("here", device), frontier("there", host)])
    assert [p.capacity_bytes for p in found.points] == [5, 10, 20, 30, 40]
    plans = [p.plan for p in (*device, *host) if p.plan is not None]
    for point in found.points:
        fitting = [plan.time_us for plan in plans if plan.peak_bytes <= point.capacity_bytes]
        assert (point.plan is None) == (not fitting)
        if point.plan is not None:
            assert point.plan.time_us == min(fitting)
            assert point.bound_us <= point.plan.time_us
            name = found.orders[point.plan.order]
            mine = host if name == "there, on the host" else device
            assert point.plan.time_us in [p.plan.time_us for p in mine if p.plan is not None]


def test_only_what_may_be_there_is_on_the_host() -> None:
    def resident(**levers: str) -> list[int]:
        request = Request(model=ZOO / "mlp_adamw.onnx", levers=Levers(**levers))  # pyright: ignore
        prepared = prepare(request)
        return [len(way.resident) for way in ways_of(prepared, settings_of(prepared))]

    assert resident(resident="device") == [0]
    assert resident(resident="auto", swap="none") == [0]
    nothing, everything = resident(resident="auto", feeds="device")
    assert nothing == 0 and everything > 0
    assert resident(resident="auto", feeds="host") == [everything]
    assert resident(resident="host", feeds="device") == [everything]


def test_a_sweep_goes_below_what_the_device_alone_can_and_a_plan_confirms_it(
    tmp_path: Path,
) -> None:
    model = ZOO / "mlp_adamw.onnx"
    alone = api.analyze(model, resident="device", time_limit_s=1.0)
    both = api.analyze(model, resident="auto", time_limit_s=1.0)
    assert alone.on_host is None and both.on_host is not None
    least = both.on_host.peak_bytes
    assert both.on_host.bound_bytes <= least < alone.least_peak_bound_bytes
    budget = f"{alone.least_peak_bound_bytes - 1}B"
    device = sweep(model, budgets=[budget], resident="device", jobs=1, time_limit_s=1)
    assert device.frontiers[0].points[0].is_impossible
    anywhere = sweep(model, budgets=[budget], resident="auto", jobs=1, time_limit_s=1.0)
    plan = anywhere.frontiers[0].points[0].plan
    assert plan is not None and plan.peak_bytes <= alone.least_peak_bound_bytes
    assert any("live on the host" in text for text in anywhere.assumptions)
    result = api.optimize(
        model, budget=budget, resident="auto", output=tmp_path / "o.onnx", time_limit_s=2
    )
    assert result.verification is not None and result.verification.passed


def test_a_residence_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--resident is auto, device or host"):
        sweep(ZOO / "mlp_adamw.onnx", resident="disk")  # pyright: ignore[reportArgumentType]


def test_the_peak_by_order_alone_is_the_least_whatever_order_comes_first() -> None:
    """Once it was the first order's, which need not be the least."""
    model = prepare(Request(model=ZOO / "mlp_adamw.onnx", costs=Costs(calibrate="never")))
    settings = settings_of(model, budget_bytes=model.baseline.peak_bytes)
    orders = sorted(base_orders(model, time_limit_s=60.0), key=lambda base: -base.peak_bytes)
    least_bytes = orders[-1].peak_bytes
    assert least_bytes < orders[0].peak_bytes
    assert way_of(model, settings, orders=tuple(orders)).order_alone_bytes == least_bytes
    with clock.counting():
        least = least_found(model, settings, orders, time_limit_s=1.0)
        preview = preview_budgets(model, settings, orders, least)
    assert preview.frontier.order_alone_bytes == least_bytes
