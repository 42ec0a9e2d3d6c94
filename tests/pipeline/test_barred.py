"""What planning bars, as ONNX Runtime's optimizers take nodes away, is told by the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner import apply, optimize
from planner.cli.main import main
from planner.errors import ModelError
from planner.formulate import Allowed, formulate
from planner.graph.reasons import WhyClosed, WhyOnce, WhyStay
from planner.pipeline.answer.explain import explain
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.record.assemble import read_plan
from planner.pipeline.record.barring import barred_in, with_barred
from planner.pipeline.record.decisions import recompute_closed, swap_closed
from planner.pipeline.solve import planning
from planner.plan.planfile import Barred
from planner.plan.problem import Problem
from planner.request import Request
from planner.results import OptimizeResult
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.units import counted

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(Request(model=MODEL))


def taken(copied: str = "", nodes: str = "") -> TakenError:
    return TakenError("taken", frozenset(filter(None, [copied])), frozenset(filter(None, [nodes])))


def activation(prepared: Prepared):
    """The largest tensor that may leave the device both ways."""
    graph = prepared.graph
    return max(
        (
            t
            for t in graph.tensors
            if t.producer is not None
            and graph.operations[t.producer].recomputable
            and t.why_stay is None
            and len(t.consumers) > 1
            and not t.is_output
        ),
        key=lambda t: t.bytes,
    )


def test_first_what_was_copied_then_what_reads_it_then_an_error(prepared: Prepared) -> None:
    tensor = activation(prepared)
    error = taken(copied=tensor.name)
    once = planning._barred(prepared, error)
    assert [op.id for op in once.graph.operations if op.barred] == [tensor.producer]
    twice = planning._barred(once, error)
    assert {op.id for op in twice.graph.operations if op.barred} == {
        tensor.producer,
        *tensor.consumers,
    }
    assert [t.id for t in twice.graph.tensors if t.barred] == [tensor.id]
    with pytest.raises(TakenError):
        planning._barred(twice, error)


def test_the_problem_has_less_to_recompute_and_swap(prepared: Prepared) -> None:
    tensor = activation(prepared)
    assert tensor.producer is not None
    node = prepared.graph.operations[tensor.producer].name
    barred = planning._barred(prepared, taken(nodes=node))
    form = formulate(barred.graph, barred.order, barred.costs)
    by_name = {t.name: t for t in form.problem.tensors}
    assert not by_name[tensor.name].swappable
    assert not next(op for op in form.problem.ops if op.name == node).recomputable
    before = formulate(prepared.graph, prepared.order, prepared.costs)
    assert sum(t.swappable for t in before.problem.tensors) > sum(
        t.swappable for t in form.problem.tensors
    )


def test_why_a_way_is_closed(prepared: Prepared) -> None:
    tensor = activation(prepared)
    assert tensor.producer is not None
    node = prepared.graph.operations[tensor.producer].name
    barred = planning._barred(prepared, taken(nodes=node))
    allowed = Allowed(swap_out_bytes_per_s=1e9, swap_in_bytes_per_s=1e9)
    form = formulate(barred.graph, barred.order, barred.costs, allowed=allowed)
    problem = form.problem
    op, index = form.ops.index(tensor.producer), form.tensors.index(tensor.id)

    def reasons(known: Prepared, asked: Problem, blocker: int | None):
        found = (
            recompute_closed(known, form, asked, blocker),
            swap_closed(known, form, asked, index),
        )
        return tuple(closed and closed.reason for closed in found)

    assert reasons(prepared, problem, None) == (None, None)
    assert reasons(barred, problem, op) == (WhyOnce.TAKEN, WhyStay.TAKEN)
    assert reasons(prepared, problem, op) == (WhyClosed.TOO_MANY, None)
    off = replace(problem, allow_recompute=False, swap_out_bytes_per_s=0, swap_in_bytes_per_s=0)
    assert reasons(barred, off, op) == (WhyClosed.NOT_ASKED, WhyClosed.NOT_ASKED)
    no_kernel = replace(barred, why_no_swaps=WhyClosed.NO_KERNEL)
    assert reasons(no_kernel, off, None) == (WhyClosed.NOT_ASKED, WhyClosed.NO_KERNEL)


def test_a_graph_gets_back_what_was_barred(prepared: Prepared) -> None:
    tensor = activation(prepared)
    graph = planning._barred(prepared, taken(copied=tensor.name)).graph
    graph = planning._barred(
        prepared, taken(nodes=graph.operations[tensor.consumers[0]].name)
    ).graph
    found = barred_in(graph)
    assert {bar.action for bar in found} == {"recompute", "swap"}
    assert with_barred(prepared.graph, found, where="plan.json") == graph
    assert barred_in(prepared.graph) == ()


@pytest.mark.parametrize(
    ("action", "name", "code"),
    [
        ("recompute", "no such node", WhyOnce.TAKEN.value),
        ("swap", "no such tensor", WhyStay.TAKEN.value),
        ("recompute", "", "of no known kind"),
    ],
)
def test_what_is_not_known_is_refused(
    prepared: Prepared, action: str, name: str, code: str
) -> None:
    bar = Barred(action=action, name=name or prepared.graph.operations[0].name, reason_code=code)
    with pytest.raises(ModelError, match=r"plan\.json bars what is not known here"):
        with_barred(prepared.graph, [bar], where="plan.json")


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[OptimizeResult, str, str]:
    """A plan made again after a node was taken; the tensor and node that were barred."""
    folder = tmp_path_factory.mktemp("barred")
    prepared = prepare(Request(model=MODEL))
    tensor = activation(prepared)
    assert tensor.producer is not None
    node = prepared.graph.operations[tensor.producer].name
    search_once, errors = planning._search, [taken(copied=tensor.name, nodes=node)]

    def search(*args):
        if errors:
            raise errors.pop()
        return search_once(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_search", search)
        result = optimize(
            MODEL,
            budget="90%",
            swap="auto",
            output=folder / "out.onnx",
            plan_path=folder / "plan.json",
            time_limit_s=1.0,
            verify=False,
        )
    return result, tensor.name, node


def test_the_plan_says_what_was_barred(done) -> None:
    result, tensor, node = done
    plan = result.plan
    assert read_plan(result.plan_path) == plan
    barred = {(bar.action, bar.name, bar.reason_code) for bar in plan.barred}
    assert {("recompute", node, "taken"), ("swap", tensor, "taken")} <= barred
    (said,) = [a for a in plan.assumptions if WhyOnce.TAKEN.sentence in a]
    again = sum(bar.action == "recompute" for bar in plan.barred)
    assert said.startswith(f"{counted(again, 'operation', 'are')} not run again, first ")
    assert plan.decisions
    assert tensor not in {d.tensor for d in plan.decisions}


def test_explain_says_why_it_is_kept(done, capsys) -> None:
    result, tensor, node = done
    found = explain(MODEL, result.plan_path, tensor)
    assert found.intervals
    for interval in found.intervals:
        keep, recompute, swap = interval.ways
        assert interval.chosen == keep.action == "keep" and keep.reason_code == ""
        assert recompute.reason_code == swap.reason_code == "taken"
        assert recompute.why_not == f"{node} may not run twice: {WhyOnce.TAKEN.sentence}"
        assert swap.why_not == WhyStay.TAKEN.sentence
    assert main(["explain", str(MODEL), str(result.plan_path), "--tensor", tensor, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    codes = {w["action"]: w["reason_code"] for i in payload["intervals"] for w in i["ways"]}
    assert codes == {"keep": "", "recompute": "taken", "swap": "taken"}
    assert {i["why"] for i in payload["intervals"]} == {"it may be neither recomputed nor swapped"}


def test_apply_makes_the_same_bytes(done, tmp_path: Path) -> None:
    result, _, _ = done
    again = apply(MODEL, result.plan_path, output=tmp_path / "again.onnx")
    assert again.read_bytes() == result.output_path.read_bytes()


def test_older_files_bar_nothing(done, tmp_path: Path) -> None:
    data = json.loads(done[0].plan_path.read_text())
    del data["barred"]
    for decision in data["decisions"]:
        del decision["reason_code"]
    older = tmp_path / "older.plan.json"
    older.write_text(json.dumps(data))
    plan = read_plan(older)
    assert plan.barred == () and {d.reason_code for d in plan.decisions} == {""}
