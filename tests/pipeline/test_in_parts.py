"""`optimize --micro-batch`: planned, verified, applied, told, on ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from planner import api
from planner.cli.main import main
from planner.errors import InfeasibleBudgetError, UsageError, VerificationError
from planner.files.structuring import json_text
from planner.report.document.headline import StepRuns
from planner.report.document.outcome import optimize_document
from planner.report.terminal.whole import print_optimize
from planner.results import OptimizeResult
from tests.micro.nets import IGNORED, Graph, Mlp, assert_same, feeds_of, outputs, session_of

BATCH = 1024


def planned(path: Path, **options: object) -> OptimizeResult:
    """A model within a budget; the rewritten model and its plan lie beside it."""
    given = {"budget": "30%", "dims": {"batch": BATCH}, "swap": "none", "time_limit_s": 2.0}
    given |= options
    return api.optimize(
        path,
        output=path.with_name("planned.onnx"),
        plan_path=path.with_name("plan.json"),
        force=True,
        **given,  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    return Mlp(update=True, hidden=64, layers=5).save(folder / "mlp.onnx")


@pytest.fixture(scope="module")
def four(net: Path) -> OptimizeResult:
    """Four runs a step, in so little memory that each recomputes something as well."""
    return planned(net, micro_batch=4, budget="23%")


def test_four_runs_recompute_too_and_give_what_one_run_gives(four: OptimizeResult) -> None:
    plan, check = four.plan, four.verification
    assert check is not None and check.passed and check.micro is not None
    assert plan.micro is not None and plan.micro.runs == 4
    assert plan.planned.peak_bytes <= plan.budget_bytes < 0.24 * plan.baseline.peak_bytes
    assert plan.planned.recomputed_ops > 0 and plan.planned.recomputed_ops % 4 == 0
    assert all(output.identical for output in check.outputs)  # of a run, rewritten and not
    assert len(check.micro.outputs) == 1 + 3 * 5 and not check.micro.far
    assert check.micro.worst_share < 1e-4
    assert {c.model for c in check.caps} == {f"a run on {BATCH // 4}", "rewritten"}


def test_figures_are_those_of_the_whole_step(net: Path, four: OptimizeResult) -> None:
    plan, whole = four.plan, api.analyze(net, dims={"batch": BATCH}, time_limit_s=1.0)
    assert plan.micro is not None
    assert plan.baseline.peak_bytes == whole.default.timeline.peak_bytes
    assert plan.baseline.time_us == pytest.approx(whole.default.time_us)
    assert plan.planned.time_us == pytest.approx(4 * plan.micro.run_us)
    assert plan.planned.time_us > plan.baseline.time_us
    assert plan.model_sha256 == whole.model_sha256
    held = sum(a.bytes for a in plan.micro.accumulators)
    totals = {a.input for a in plan.micro.accumulators}
    graph = four.after.graph
    assert sum(t.bytes for t in graph.tensors if t.name in totals) == held
    assert four.after.timeline.persistent_bytes > held


def test_a_plan_is_applied_to_the_byte_and_verified(net: Path, four: OptimizeResult) -> None:
    plan = net.with_name("plan.json")
    again = api.apply(net, plan, output=net.with_name("again.onnx"), force=True)
    assert again.read_bytes() == net.with_name("planned.onnx").read_bytes()
    check = api.verify(net, again, plan=plan, fast=True)
    assert check.passed and check.micro is not None and check.micro.outputs
    assert main(["explain", str(net), str(plan), "--tensor", "z"]) == 0


def test_the_code_in_the_report_makes_the_step(net: Path, four: OptimizeResult) -> None:
    code = optimize_document(four).session_code
    code = code.replace("'planned.onnx'", repr(str(net.with_name("planned.onnx"))))
    code = code.replace("'plan.json'", repr(str(net.with_name("plan.json"))))
    names: dict[str, object] = {}
    exec(code, names)
    feeds = feeds_of(net, BATCH)
    feeds["y"][: BATCH // 3] = IGNORED
    assert_same(outputs(session_of(net), feeds), names["step"](feeds), share=1e-3)  # pyright: ignore[reportCallIssue]


def test_what_is_shown_says_how_the_step_is_made(
    four: OptimizeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = optimize_document(four)
    assert payload.headline.micro == StepRuns(runs=4, samples=BATCH // 4)
    assert "4 runs of 256 samples a step" in payload.headline.sentence
    assert payload.plan.micro.dim == "batch"
    assert json_text(payload)
    for step in payload.next_steps:
        command = step.command or ""
        assert "sweep" not in command
        assert "optimize" not in command or f"--dim batch={BATCH} --micro-batch 4" in command
    print_optimize(payload)
    assert "4 runs against one on the whole batch" in capsys.readouterr().out


def test_auto_makes_one_run_where_that_fits(net: Path) -> None:
    result = planned(net, micro_batch="auto", budget="1TB", verify=False)
    assert result.plan.micro is None and result.plan.unchanged


def test_auto_takes_as_few_runs_as_fit_quickly(net: Path) -> None:
    # three tenths of the time are for the choice, which tries one run last
    result = planned(net, micro_batch="auto", budget="30%", verify=False, time_limit_s=20.0)
    micro = result.plan.micro
    assert micro is not None and BATCH % micro.runs == 0 and micro.runs > 1
    assert result.plan.planned.peak_bytes <= result.plan.budget_bytes
    chosen = next(n for n in result.plan.assumptions if "quickest" in n)
    assert f"{micro.runs} runs a step" in chosen and "1: no plan" in chosen
    fewer = planned(net, micro_batch=micro.runs // 2 or 1, budget="100%", verify=False)
    assert fewer.plan.planned.time_us <= result.plan.planned.time_us


def test_a_slowdown_is_that_of_all_runs(net: Path) -> None:
    with pytest.raises(
        InfeasibleBudgetError, match=r"1024 runs on parts of the batch take.*more than 5%"
    ):
        planned(net, micro_batch=BATCH, max_slowdown="5%")
    result = planned(net, micro_batch=2, budget="70%", max_slowdown="900%", verify=False)
    assert result.plan.max_slowdown == 9.0


def test_means_over_other_numbers_of_targets_are_caught(tmp_path: Path) -> None:
    """An operator that ignores targets by itself weighs nothing: the comparison sees it."""
    g = Graph()
    g.input("x", ["batch", 8])
    g.input("y", ["batch"], onnx.TensorProto.INT64)
    g.input("w", [8, 4])
    g.op("MatMul", "x", "w", to="logits")
    g.op(
        "SoftmaxCrossEntropyLoss", "logits", "y", to="loss", ignore_index=IGNORED, reduction="mean"
    )
    g.output("loss")
    path = g.save(tmp_path / "net.onnx")
    feeds = feeds_of(path, BATCH)
    np.savez(tmp_path / "even.npz", **feeds)
    even = planned(path, micro_batch=2, budget="100%", inputs=tmp_path / "even.npz")
    assert even.verification is not None and even.verification.passed
    assert any("averages over targets that are not ignored" in n for n in even.plan.assumptions)
    feeds["y"][10 : BATCH // 2] = IGNORED
    np.savez(tmp_path / "uneven.npz", **feeds)
    with pytest.raises(
        VerificationError, match=r"do not give what one run on all of it gives.*'loss'"
    ):
        planned(path, micro_batch=2, budget="100%", inputs=tmp_path / "uneven.npz")


def test_dropout_is_switched_off_to_compare(tmp_path: Path) -> None:
    path = Mlp(dropout=True).save(tmp_path / "mlp.onnx")
    result = planned(path, micro_batch=2, budget="100%")
    check = result.verification
    assert check is not None and check.passed and check.micro is not None
    assert check.micro.outputs and "switched off" in check.micro.note
    assert any("draw random numbers" in note for note in result.plan.assumptions)


def test_a_plan_of_other_micro_batches_is_refused(net: Path, four: OptimizeResult) -> None:
    data = json.loads(net.with_name("plan.json").read_text())
    data["micro"]["accumulators"][0]["output"] = "x"
    edited = net.with_name("edited.json")
    edited.write_text(json.dumps(data))
    target = str(net.with_name("no.onnx"))
    assert main(["apply", str(net), str(edited), "-o", target]) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"micro_batch": 0}, "auto or a number of runs"),
        ({"micro_batch": "half"}, "auto or a number of runs"),
        ({"micro_batch": 3}, "does not divide into 3 parts"),
        ({"micro_batch": "auto", "budget": None, "max_slowdown": "5%"}, "give a --budget"),
        ({"micro_batch": 2, "profile": Path(__file__)}, "--profile has the times"),
    ],
)
def test_bad_wishes_are_refused(options: dict[str, object], said: str, net: Path) -> None:
    with pytest.raises(UsageError, match=said):
        planned(net, **options)
