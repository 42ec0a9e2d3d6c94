"""The public functions on the samples: what they return, and what ONNX Runtime says of it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

import planner
from planner import analyze, optimize, verify
from planner.errors import InfeasibleBudgetError, ModelError, UsageError
from planner.report.document.outcome import optimize_document
from planner.results import Frontier, OptimizeResult
from planner.results.verification import Verification

ZOO = Path(__file__).parents[1] / "models" / "zoo"
CASES = [("mlp_adamw", "90%", "auto"), ("gpt", "80%", "none")]


def test_public_names():
    assert sorted(planner.__all__) == [
        "Plan",
        "PlannerError",
        "__version__",
        "analyze",
        "apply",
        "bind",
        "differentiate",
        "export_training_graph",
        "fit_devices",
        "open_session",
        "optimize",
        "session_options",
        "sweep",
        "verify",
    ]
    has_torch = importlib.util.find_spec("torch") is not None
    for name in planner.__all__:
        if has_torch or name != "export_training_graph":
            assert getattr(planner, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = planner.nothing_of_the_kind


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def result(request, tmp_path_factory) -> OptimizeResult:
    name, budget, swap = request.param
    folder = tmp_path_factory.mktemp(f"{name}_{swap}")
    return optimize(
        ZOO / f"{name}.onnx",
        budget=budget,
        swap=swap,
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
        report_path=folder / "report.html",
        time_limit_s=0.5,
        reproducible=True,
        verify="thorough",
    )


def confirmed(result: OptimizeResult) -> Verification:
    assert result.verification is not None
    return result.verification


def test_the_verification_passes(result):
    assert confirmed(result).passed
    assert confirmed(result).failures == ()


def test_outputs_are_the_same_bits(result):
    outputs = confirmed(result).outputs
    assert outputs
    assert all(o.identical and o.max_abs_diff == 0 for o in outputs)


def test_the_order_is_the_planned_one_at_every_level(result):
    orders = confirmed(result).orders
    assert [o.level for o in orders] == ["disabled", "extended", "all"]
    assert all(o.equal and o.executed == o.planned for o in orders)


def test_live_bytes_are_as_predicted_and_within_the_budget(result):
    checks = [
        m for m in confirmed(result).memory if m.model == "rewritten" and m.options == "recommended"
    ]
    assert checks
    for check in checks:
        assert check.live_bytes <= result.plan.budget_bytes
        assert abs(check.live_bytes - check.predicted_live_bytes) <= 0.01 * check.live_bytes
        assert check.predicted_live_bytes <= result.plan.planned.peak_bytes


def test_the_plan_is_within_the_budget_and_says_what_it_costs(result):
    plan = result.plan
    assert not plan.unchanged
    assert plan.planned.peak_bytes <= plan.budget_bytes < plan.baseline.peak_bytes
    assert plan.best_order.peak_bytes <= plan.baseline.peak_bytes
    assert plan.least_peak_bound_bytes <= plan.planned.peak_bytes
    assert plan.planned.time_us >= (plan.bound_us or 0) * (1 - 1e-6)
    if plan.swap_mode == "none":
        assert plan.planned.swapped_tensors == 0
    runs = sum(a.kind == "run" for a in plan.schedule)
    ops = len({a.target for a in plan.schedule if a.kind == "run"})
    assert plan.planned.recomputed_ops == runs - ops
    assert all(0 <= d.start <= d.end for d in plan.decisions)


def test_views_are_those_of_both_models(result):
    assert result.before.timeline.peak_bytes == result.plan.baseline.peak_bytes
    assert result.after.timeline.peak_bytes == result.plan.planned.peak_bytes
    for view in (result.before, result.after):
        assert len(view.duration_us) == len(view.graph.operations)


def test_files_are_written(result):
    for path in (result.output_path, result.plan_path, result.report_path):
        assert path is not None
        assert path.stat().st_size > 0
    names = {p.name for p in result.output_path.parent.iterdir()}
    assert names == {"out.onnx", "plan.json", "report.html"}


def test_verify_confirms_what_optimize_wrote(tmp_path):
    model = ZOO / "mlp_adamw.onnx"
    done = optimize(
        model,
        budget="90%",
        swap="none",
        output=tmp_path / "out.onnx",
        plan_path=tmp_path / "plan.json",
        time_limit_s=0.5,
        verify=False,
    )
    assert done.verification is None
    assert verify(model, tmp_path / "out.onnx", plan=tmp_path / "plan.json").passed
    assert verify(model, tmp_path / "out.onnx", fast=True).passed
    # the plan of one model says nothing about another
    with pytest.raises(ModelError, match="belongs to another model"):
        verify(ZOO / "gpt.onnx", tmp_path / "out.onnx", plan=tmp_path / "plan.json")


def test_verify_sees_a_budget_that_is_not_met():
    model = ZOO / "mlp_adamw.onnx"
    found = verify(model, model, budget="80%", fast=True)
    assert not found.passed
    assert found.failures


@pytest.mark.parametrize(("budget", "budget_of"), [("100%", "live"), ("1TB", "held")])
def test_a_budget_above_the_baseline_changes_nothing(budget, budget_of, tmp_path):
    model = tmp_path / "model.onnx"
    shutil.copyfile(ZOO / "mlp_adamw.onnx", model)
    done = optimize(
        model, budget=budget, budget_of=budget_of, output=tmp_path / "out.onnx", verify=False
    )
    assert done.plan.unchanged
    assert done.plan.planned == done.plan.baseline
    assert done.plan.schedule == done.plan.decisions == ()
    assert (tmp_path / "out.onnx").read_bytes() == model.read_bytes()


def test_an_unchanged_model_is_confirmed_and_holds_what_a_plain_session_does(tmp_path):
    done = optimize(ZOO / "mlp_adamw.onnx", budget="1GB", output=tmp_path / "out.onnx")
    assert done.plan.unchanged and confirmed(done).passed
    head = optimize_document(done).headline
    assert head.verdict == "Fits as it is"
    assert head.held_bytes == head.default_held_bytes > head.peak_after_bytes
    assert head.measured_held_bytes == head.measured_default_held_before_bytes


def test_a_model_whose_plain_session_holds_more_than_the_budget_is_planned(tmp_path):
    """Its peak of live bytes is within it."""
    output = tmp_path / "out.onnx"
    done = optimize(ZOO / "mlp_adamw.onnx", budget="100%", output=output, time_limit_s=0.5)
    assert not done.plan.unchanged and confirmed(done).passed
    head = optimize_document(done).headline
    assert head.measured_default_held_before_bytes > head.budget_bytes
    assert head.measured_held_bytes <= 1.001 * head.budget_bytes


def test_a_dry_run_writes_nothing(tmp_path):
    done = optimize(
        ZOO / "mlp_adamw.onnx",
        budget="90%",
        output=tmp_path / "out.onnx",
        plan_path=tmp_path / "plan.json",
        time_limit_s=0.5,
        dry_run=True,
    )
    assert done.plan.schedule
    assert done.output_path is done.plan_path is done.verification is None
    assert not list(tmp_path.iterdir())


def test_an_infeasible_budget_says_what_binds_and_the_least_peak_found_is_feasible(tmp_path):
    model, settings = ZOO / "mlp_adamw.onnx", {"swap": "none", "time_limit_s": 0.5}
    with pytest.raises(InfeasibleBudgetError) as caught:
        optimize(model, budget="5%", output=tmp_path / "out.onnx", **settings)
    assert caught.value.bound_bytes <= caught.value.least_peak_bytes
    assert caught.value.least_peak_bytes > 0
    assert caught.value.binding
    assert not list(tmp_path.iterdir())
    least = caught.value.least_peak_bytes
    done = optimize(model, budget=f"{int(least * 1.05)}B", dry_run=True, **settings)
    assert done.plan.planned.peak_bytes <= least * 1.05


def test_analyze_says_where_the_memory_goes():
    found = analyze(ZOO / "gpt.onnx", time_limit_s=0.5)
    line = found.default.timeline
    assert found.best_order.peak_bytes <= line.peak_bytes
    assert found.least_peak_bound_bytes <= found.best_order.peak_bytes
    total = sum(part[line.peak_step] for part in line.by_category.values())
    assert total == line.peak_bytes
    assert {f.options for f in found.default.arena} == {"default", "recommended"}


def check_frontier(found: Frontier) -> None:
    """Every point within its budget; more budget never costs more; no plan beats its bound."""
    points = found.points
    assert [p.capacity_bytes for p in points] == sorted({p.capacity_bytes for p in points})
    slower = [found.slowdown(p) for p in points if p.plan is not None]
    assert slower == sorted(slower, reverse=True) and slower[-1] == 0
    for point in points:
        if point.plan is not None:
            assert point.plan.peak_bytes <= point.capacity_bytes
            assert found.least_slowdown(point) <= found.slowdown(point) + 1e-9


def test_analyze_says_what_a_budget_would_cost():
    found = analyze(ZOO / "mlp_adamw.onnx", time_limit_s=0.5)
    assert found.budget_preview is not None and found.budget_preview.binds is None
    check_frontier(found.budget_preview.frontier)
    dear = found.budget_preview.frontier.points[0]
    assert dear.plan is None or found.budget_preview.frontier.slowdown(dear) > 0


def test_the_outlook_of_a_plan_has_the_plan_and_what_binds_it(result):
    assert result.budget_preview is not None and result.budget_preview.binds is not None
    frontier, plan = result.budget_preview.frontier, result.plan
    check_frontier(frontier)
    (here,) = (p for p in frontier.points if p.capacity_bytes == plan.budget_bytes)
    assert here.plan is not None and here.plan.time_us <= plan.planned.time_us + 1e-6
    names = [op.name for op in result.after.graph.operations]
    for binding in result.budget_preview.binds:
        assert names[result.after.timeline.order[binding.step]] == binding.node
        assert binding.us_per_mib > 0


def test_a_model_is_never_its_own_output(tmp_path):
    model = tmp_path / "model.onnx"
    shutil.copyfile(ZOO / "mlp_adamw.onnx", model)
    with pytest.raises(UsageError, match="itself"):
        optimize(model, budget="80%", output=model, force=True)
