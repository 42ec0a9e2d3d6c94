"""Of several least plans, any that is within the budget will do."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from planner.errors import InfeasibleBudgetError
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.least_plan import LeastPlan, NoPlan, least_plan
from planner.pipeline.solve.orders import base_orders, formulate_in
from planner.request import Request
from planner.search.evaluate import Evaluator

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[32, 16] x, float[64, 16] z) => (float[32, 1] a, float[64, 1] b)
<int64[1] axes = {1}>
{
  x1 = Sin(x) x2 = Cos(x1) x3 = Mul(x1, x2)
  z1 = Sin(z) z2 = Cos(z1) z3 = Mul(z1, z2)
  a = ReduceSum <keepdims = 1, noop_with_empty_axes = 0> (x3, axes)
  b = ReduceSum <keepdims = 1, noop_with_empty_axes = 0> (z3, axes)
}
"""


def test_plans_of_two_orders_are_two_though_their_actions_read_alike(tmp_path: Path) -> None:
    """In each, the operations run once, as numbered: in the numbers of another order."""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    prepared = prepare(Request(model=path))
    orders = base_orders(prepared, time_limit_s=1.0)
    room = Settings(budget_bytes=1 << 40)
    found: list[LeastPlan] = []
    for base in orders:
        form = formulate_in(prepared, base.order, room, room.budget_bytes)
        found.append(LeastPlan(base, form, Evaluator(form.problem).base))
    assert len({tuple(p.candidate.actions) for p in found}) == 1
    peaks = {least_plan(prepared, room, [[p]], orders, NoPlan()).timeline.peak_bytes for p in found}
    assert len(peaks) > 1
    for given in (found, found[::-1]):
        tight = Settings(budget_bytes=min(peaks))
        plan = least_plan(prepared, tight, [given], orders, NoPlan())
        assert plan.timeline.peak_bytes == min(peaks)
        one_by_one = least_plan(prepared, tight, ([p] for p in given), orders, NoPlan())
        assert one_by_one.timeline.peak_bytes == min(peaks)
        with pytest.raises(InfeasibleBudgetError) as refused:
            none = Settings(budget_bytes=min(peaks) - 1)
            least_plan(prepared, none, [given], orders, NoPlan())
        assert refused.value.least_peak_bytes >= min(peaks)
