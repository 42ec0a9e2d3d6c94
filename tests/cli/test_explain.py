"""`planner explain` on plans of a sample: what it says is what the plan and the models say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import optimize
from planner.cli.main import main
from planner.graph.model import Role
from planner.graph.reasons import WhyClosed
from planner.pipeline.answer.explain import explain
from planner.results import OptimizeResult

ZOO = Path(__file__).parents[2] / "models" / "zoo"
MODEL = ZOO / "mlp_adamw.onnx"


@pytest.fixture(scope="module", params=[("75%", "none"), ("70%", "only")], ids=lambda p: p[1])
def done(request, tmp_path_factory) -> OptimizeResult:
    budget, swap = request.param
    folder = tmp_path_factory.mktemp(f"explain_{swap}")
    return optimize(
        MODEL,
        budget=budget,
        swap=swap,
        plan_path=folder / "plan.json",
        time_limit_s=0.5,
        verify=False,
    )


def looked_up(done: OptimizeResult, tensor: str):
    assert done.plan_path is not None
    return explain(MODEL, done.plan_path, tensor)


@pytest.fixture(scope="module")
def gone(done):
    """The largest tensor that leaves the device."""
    return looked_up(done, done.plan.decisions[0].tensor)


def test_live_ranges_are_those_of_both_models(gone, done):
    tensor = next(t for t in done.before.graph.tensors if t.name == gone.tensor)
    assert (gone.bytes, gone.category) == (tensor.bytes, tensor.category.value)
    (before,) = [r for r in done.before.timeline.ranges if r.tensor == tensor.id]
    assert gone.before.live is not None
    assert (gone.before.live.start, gone.before.live.end) == (before.start, before.end)
    assert gone.before.steps == len(done.before.timeline.order)
    graph, line = done.after.graph, done.after.timeline
    after = {
        (graph.tensors[r.tensor].name, r.start, r.end)
        for r in line.ranges
        if graph.tensors[r.tensor].name == gone.tensor
        or (
            graph.tensors[r.tensor].name.startswith(f"{gone.tensor}__")
            and r.role in (Role.RECOMPUTE, Role.SWAP_IN)
        )
    }
    assert {(s.name, s.start, s.end) for s in gone.after.live} == after
    assert len(gone.after.live) > 1
    at_peak = any(s.start <= line.peak_step < s.end for s in gone.after.live)
    assert gone.after.at_peak == at_peak


def test_absences_are_the_plans_decisions(gone, done):
    decided = {
        (d.start, d.end, d.action, d.why) for d in done.plan.decisions if d.tensor == gone.tensor
    }
    said = [*(a for i in gone.intervals for a in i.absences), *gone.returns]
    assert {(a.start, a.end, a.action, a.why) for a in said} == decided
    for absence in said:
        assert not any(
            s.start <= (absence.start + absence.end) // 2 < s.end for s in gone.after.live
        )


def test_a_kept_interval_is_covered_and_the_ways_have_the_plans_costs(gone, done):
    costs = {d.end: (d.recompute_us, d.swap_us) for d in done.plan.decisions}
    for interval in gone.intervals:
        ways = {w.action: w for w in interval.ways}
        assert ways["keep"].cost_us == 0
        assert interval.start < interval.end
        if interval.chosen == "keep":
            assert any(s.start <= interval.start and interval.end <= s.end for s in gone.after.live)
            continue
        assert ways[interval.chosen].cost_us is not None
        recompute_us, swap_us = costs[interval.absences[-1].end]
        assert ways["recompute"].cost_us == pytest.approx(recompute_us)
        assert ways["swap"].cost_us == pytest.approx(swap_us)
    assert {i.chosen for i in gone.intervals} > {"keep"} or len(gone.intervals) == 1


def test_a_lever_that_was_not_asked_for_has_its_code(gone, done):
    other = {"none": "swap", "only": "recompute"}[done.plan.swap_mode]
    assert {d.reason_code for d in done.plan.decisions} == {WhyClosed.NOT_ASKED.value}
    for interval in gone.intervals:
        for way in interval.ways:
            assert (way.cost_us is None) == bool(way.reason_code) == bool(way.why_not)
            if way.action == other:
                assert way.reason_code == WhyClosed.NOT_ASKED.value
                assert way.why_not == WhyClosed.NOT_ASKED.sentence


def test_prices_add_up(gone, done):
    prices = gone.prices
    assert prices.us_per_mib == pytest.approx(sum(c.us_per_mib for c in prices.cuts))
    assert 0 <= prices.us_per_mib_where_it_waits <= prices.us_per_mib * (1 + 1e-9)
    assert prices.us_per_mib > 0
    rents = sum(i.rent_us for i in gone.intervals)
    assert rents == pytest.approx(prices.us_per_mib_where_it_waits * gone.bytes / (1 << 20))
    assert prices.bound_us <= done.plan.planned.time_us * (1 + 1e-6)
    assert "not of the plan" in prices.what or "belong to the bound" in prices.what


def test_inputs_and_views(done):
    graph = done.before.graph
    weight = next(t for t in graph.tensors if t.is_input and t.bytes > 1000)
    found = looked_up(done, weight.name)
    assert found.persistent and found.producer is None and found.intervals == ()
    assert found.before.live is not None
    assert (found.before.live.start, found.before.live.end) == (0, found.before.steps)
    assert found.before.at_peak and found.after.at_peak


def test_the_command_prints_it(done, gone, capsys):
    arguments = ["explain", str(MODEL), str(done.plan_path), "--tensor", gone.tensor]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for said in (gone.tensor, "Between one use and the next", "Prices belong to the bound"):
        assert said in out
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "planner.explain/1"
    assert [i["chosen"] for i in found["intervals"]] == [i.chosen for i in gone.intervals]
    assert all(i["why"] for i in found["intervals"])


def test_an_unknown_tensor_has_closest_names(done, gone, capsys):
    asked = gone.tensor + "x"
    assert main(["explain", str(MODEL), str(done.plan_path), "--tensor", asked]) == 2
    err = capsys.readouterr().err
    assert f"the model has no tensor {asked!r}; the closest names are" in err
    assert repr(gone.tensor) in err and err.count("\n") == 1


def test_what_the_optimizers_took_is_said_to_be(done, capsys):
    import onnx

    known = {t.name for t in done.before.graph.tensors}
    model = onnx.load(MODEL)
    fused = [v for n in model.graph.node for v in n.output if v not in known]
    assert fused
    assert main(["explain", str(MODEL), str(done.plan_path), "--tensor", fused[0]]) == 2
    assert "optimizers fused, merged or folded it" in capsys.readouterr().err


def test_another_model_is_refused(done, capsys):
    arguments = [str(ZOO / "gpt.onnx"), str(done.plan_path), "--tensor", "x"]
    assert main(["explain", *arguments]) == 3
    assert "belongs to another model" in capsys.readouterr().err


def test_a_model_left_as_it_is(tmp_path, capsys):
    done = optimize(MODEL, budget="1TB", plan_path=tmp_path / "plan.json", verify=False)
    tensor = max(
        (t for t in done.before.graph.tensors if t.producer is not None), key=lambda t: t.bytes
    )
    assert main(["explain", str(MODEL), str(done.plan_path), "--tensor", tensor.name]) == 0
    assert "leaves the model as it is" in capsys.readouterr().out
