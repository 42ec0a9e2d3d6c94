"""The problem of a model in each of its base orders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.formulate import formulate
from planner.onnxio.kinds import GRANULARITY_BYTES
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import (
    BaseOrder,
    base_orders,
    formulate_in,
    one_of_each_first,
)
from planner.request import Request

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


@pytest.mark.parametrize("barred", [False, True])
def test_a_problem_in_another_order_is_what_is_formulated_in_it(barred: bool) -> None:
    prepared = prepare(Request(model=MODEL))
    settings = Settings(
        budget_bytes=1 << 30,
        reserve_bytes=100,
        swap_out_bytes_per_s=1e9,
        swap_in_bytes_per_s=2e9,
        recompute=False,
    )
    orders = base_orders(prepared, time_limit_s=60)
    if barred:  # another graph has other problems
        operations = tuple(
            replace(op, effect=op.effect, inplace=()) for op in prepared.graph.operations
        )
        prepared = replace(prepared, graph=replace(prepared.graph, operations=operations))
    unit = GRANULARITY_BYTES
    assert len(orders) > 2
    for base in orders:
        found = formulate_in(prepared, base.order, settings, 1 << 20)
        form = formulate(
            prepared.graph, base.order, prepared.costs, granularity=unit, allowed=settings
        )
        fixed_bytes = form.problem.fixed_bytes + 100
        limited = replace(form.problem, fixed_bytes=fixed_bytes, capacity_bytes=1 << 20)
        assert found == replace(form, problem=limited)


def test_no_more_orders_are_made_once_one_is_well_within_the_room() -> None:
    prepared = prepare(Request(model=MODEL))
    every = base_orders(prepared, time_limit_s=60)
    roomy = base_orders(prepared, time_limit_s=60, room_bytes=2 * every[-1].peak_bytes)
    assert len(roomy) < len(every)
    assert "default" in {base.name for base in roomy}
    assert not any(base.name.endswith(("moved", "outputs late")) for base in roomy)
    assert base_orders(prepared, time_limit_s=60, room_bytes=every[0].peak_bytes) == every


def test_orders_of_every_kind_have_their_turn_before_a_second_one_of_any() -> None:
    names = (
        "late, moved",
        "late",
        "eager, moved",
        "default, moved",
        "file",
        "default",
        "file, moved",
    )
    given = [
        BaseOrder(name=name, order=(i,), peak_bytes=i, least_bound_bytes=0)
        for i, name in enumerate(names)
    ]
    assert [base.name for base in one_of_each_first(given)] == [
        *("default", "file", "late, moved", "eager, moved"),
        *("default, moved", "file, moved", "late"),
    ]
