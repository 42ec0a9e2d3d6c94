"""An accepted plan keeps its actions, its budget and its numbers with fewer nodes that pin its order."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from planner import clock, optimize
from planner.graph.schedule import default_order
from planner.lower.order.pins import pins_needed
from planner.pipeline.answer import optimizing
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import Settings, settings_of
from planner.pipeline.record.assemble import INTERRUPTED
from planner.pipeline.solve.fitting import loosened
from planner.pipeline.solve.orders import base_orders, with_pins
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import Means, make_plan
from planner.request import Costs, Request
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from tests.graphs import run_on_ort

ZOO = Path(__file__).parents[2] / "models" / "zoo"


@pytest.fixture(scope="module")
def planned() -> tuple[Prepared, Settings, Planned]:
    """A plan of the GPT sample as it is accepted, with times that no run has measured."""
    request = Request(
        model=ZOO / "gpt.onnx", budget="70%", costs=Costs(calibrate="never", hardware="cpu")
    )
    prepared = prepare(request)
    settings = replace(settings_of(prepared), time_limit_s=20.0)
    return prepared, settings, make_plan(prepared, settings, Means())


def test_fewer_nodes_pin_a_plan_that_is_the_same_otherwise(planned, tmp_path: Path) -> None:
    _, settings, plain = planned
    looser = loosened(plain, settings)
    assert looser.rewritten.anchors < 0.7 * plain.rewritten.anchors
    assert looser.pins_us < plain.pins_us
    assert looser.timeline.peak_bytes <= settings.budget_bytes
    assert looser.holds >= plain.holds
    assert looser.time_us == pytest.approx(plain.time_us)
    before, after = (
        sorted(
            (a.kind, p.formulation.ops[a.target] if a.kind == "run" else a.target) for a in actions
        )
        for p in (plain, looser)
        if p.solved.candidate is not None and (actions := p.solved.candidate.actions)
    )
    assert before == after

    feeds, _ = make_inputs(ZOO / "gpt.onnx", 0, {}, None)
    path = tmp_path / "looser.onnx"
    ir.save(looser.rewritten.model, path)
    ran, results = run_on_ort(str(path), feeds, tmp_path)
    _, expected = run_on_ort(str(ZOO / "gpt.onnx"), feeds, tmp_path)
    assert tuple(ran) == looser.rewritten.planned_order
    assert all(results[name].tobytes() == value.tobytes() for name, value in expected.items())


def test_nothing_is_loosened_where_it_is_not_worth_the_wait(planned) -> None:
    _, settings, plain = planned
    large = replace(plain, graph=replace(plain.graph, operations=plain.graph.operations * 8))
    assert loosened(large, settings) is large
    assert loosened(plain, replace(settings, order_target="priority")) is plain


def test_the_order_that_onnx_runtime_runs_anyway_needs_no_pins(planned) -> None:
    prepared, _, _ = planned
    assert pins_needed(prepared.graph, default_order(prepared.graph)) == 0
    priced = replace(prepared, pin_us=2.0)
    plain, end = base_orders(prepared, time_limit_s=60), time.monotonic() + 60
    orders = {o.name: o for o in with_pins(priced, plain, until=end)}
    assert orders["default"].pins_us == 0.0
    assert all(
        o.pins_us == pytest.approx(pins_needed(prepared.graph, o.order)) for o in orders.values()
    )
    assert any(o.pins_us > 0 for o in orders.values())
    assert all(o.pins_us == 0.0 for o in with_pins(prepared, plain, until=end))


@pytest.mark.parametrize("is_kept", [True, False])
def test_ctrl_c_while_a_plan_is_loosened_keeps_it(is_kept, monkeypatch, tmp_path: Path) -> None:
    """The plan is there already; where nobody wants it kept, the interrupt goes on."""

    def interrupted(planned: Planned, settings: Settings) -> Planned:
        assert settings.time_limit_s == 20.0
        raise KeyboardInterrupt

    caps: list[tuple[float, ...]] = []
    cap = clock.cap

    def noted(*seconds: float) -> None:
        caps.append(seconds)
        cap(*seconds)

    late = replace(ANSWERING, lead_s=-1e6)  # the time before the search is long over
    monkeypatch.setattr(optimizing, "ANSWERING", late)
    monkeypatch.setattr(optimizing, "loosened", interrupted)
    monkeypatch.setattr(clock, "cap", noted)

    def made() -> OptimizeResult:
        return optimize(
            ZOO / "mlp_adamw.onnx",
            budget="80%",
            output=tmp_path / "planned.onnx",
            calibrate=False,
            time_limit_s=20.0,
            search_context=nullcontext if is_kept else None,
        )

    if not is_kept:
        with pytest.raises(KeyboardInterrupt):
            made()
        assert caps == [(8.0, 20.0)]  # 40% of the machine's seconds, for all of the work
        assert not any(tmp_path.iterdir())
        return
    result = made()
    assert INTERRUPTED in result.plan.assumptions
    assert result.verification is not None and result.verification.passed


def test_a_time_limit_counts_what_comes_before_the_search() -> None:
    """The first ten seconds are free, and a part of the limit is always left."""
    limits_s = [ANSWERING.search_s(60.0, spent_s) for spent_s in (3, 30, 300)]
    assert limits_s == [60.0, 40.0, 24.0]
    assert ANSWERING.search_s(2.0, 300) == 2.0
