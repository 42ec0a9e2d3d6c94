"""Short searches, here and in a process beside: which numbers they try, and what they find."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import clock
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve.orders import base_orders, formulate_in
from planner.pipeline.solve.quick import between, quickest
from planner.portfolio.race import rough_plan
from planner.request import Costs, Levers, Request

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


@given(tried=st.sets(st.integers(0, 200), min_size=1), data=st.data())
def test_what_is_tried_next_lies_beside_the_best_in_the_wider_gap_first(tried, data):
    best = data.draw(st.sampled_from(sorted(tried)))
    found = between(tried, best)
    assert len(found) <= 2
    below = max((n for n in tried if n < best), default=best)
    above = min((n for n in tried if n > best), default=best)
    assert all(below < n < above and n not in tried for n in found)
    assert bool(found) == (best - below > 1 or above - best > 1)
    if len(found) == 2 and best - below != above - best:
        assert (found[0] < best) == (best - below > above - best)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """A model whose parameters and state are most of it."""
    costs, levers = Costs(calibrate="never"), Levers(resident="auto")
    return prepare(Request(model=MODEL, budget="45%", costs=costs, levers=levers))


def test_the_quickest_of_a_few_orders_is_no_slower_than_a_rough_plan_in_any() -> None:
    model = prepare(Request(model=MODEL, budget="70%", costs=Costs(calibrate="never")))
    settings = settings_of(model)
    orders = base_orders(model, time_limit_s=60.0)
    assert len(orders) > 2
    with clock.counting():
        base, time_us = quickest(model, orders, settings, 60.0, most=len(orders))
        forms = (formulate_in(model, o.order, settings, settings.budget_bytes) for o in orders)
        rough = [rough_plan(form.problem, 1.0).candidate for form in forms]
    assert base in orders
    assert time_us <= min(plan.time_us + model.views_us for plan in rough if plan is not None)
    assert time_us >= sum(model.duration_us)
    # where nothing fits, there is an order all the same
    nothing = replace(settings, budget_bytes=1 << 10)
    assert quickest(model, orders[:1], nothing, 1.0) == (orders[0], math.inf)
