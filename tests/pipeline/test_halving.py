"""Saved tensors in half: plans that need them, what they say, what is measured, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.choices import HALF_LARGEST
from planner.errors import InfeasibleBudgetError, ModelError, UsageError, VerificationError
from planner.graph.model import Role
from planner.graph.saved import may_be_halved
from planner.pipeline.answer.explain import explain
from planner.pipeline.levers.choose import plan_with
from planner.pipeline.levers.half.halves import ranked
from planner.pipeline.levers.half.halving import _has_casts, halved
from planner.pipeline.levers.lever import Means
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.planned import Planned
from planner.report.document.outcome import optimize_document
from planner.request import Levers, Request
from planner.results import OptimizeResult
from planner.targets import HOST
from planner.targets.cuda import CUDA
from planner.targets.webgpu import WEBGPU
from tests.graphs import LEVELS, run_on_ort

MLP = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
GPT = MLP.with_name("gpt.onnx")
ALONE = {"swap": "none", "recompute": False, "resident": "device"}
"""Casts are the only lever besides order."""


def planned(model: Path, budget: str, folder: Path, **options: object) -> OptimizeResult:
    return api.optimize(
        model,
        budget=budget,
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        time_limit_s=2.0,
        force=True,
        **options,  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[OptimizeResult, Path]:
    folder = tmp_path_factory.mktemp("half")
    return planned(MLP, "84%", folder, cast_saved="bf16", **ALONE), folder


def test_a_budget_that_no_exact_plan_meets_is_met(
    half: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    with pytest.raises(InfeasibleBudgetError):
        planned(MLP, "84%", tmp_path, verify=False, **ALONE)
    result, _ = half
    plan, verification = result.plan, result.verification
    assert plan.numbers == "lossy" and plan.cast_saved == "bf16"
    assert plan.planned.peak_bytes <= plan.budget_bytes
    assert plan.planned.halved_tensors == len(plan.halved) > 0
    assert verification is not None and verification.passed
    assert all(order.equal for order in verification.orders)
    live = [m for m in verification.memory if m.model == "rewritten"]
    assert all(m.live_bytes == m.predicted_live_bytes for m in live)
    assert plan.planned.cast_us > 0


def test_what_it_does_to_each_output_is_said(half: tuple[OptimizeResult, Path]) -> None:
    result, _ = half
    assert result.verification is not None
    outputs = {o.name: o for o in result.verification.outputs}
    assert outputs["loss"].identical, "the forward pass is exact"
    changed = [o for o in outputs.values() if not o.identical]
    assert changed and all(0 < o.rms_rel_diff < 0.05 for o in changed)
    payload = optimize_document(result)
    head = payload.headline
    assert head.verdict == "Fits, verified, lossy"
    assert re.search(r"in bf16 \(.*\), lossy", head.sentence)
    assert head.worst_rms_rel_diff == max(o.rms_rel_diff for o in changed)
    assert payload.plan.halved == result.plan.halved
    assert any("lossy, as asked for" in text for text in payload.assumptions)
    assert any("the largest magnitude seen is" in note for note in result.verification.notes)


def test_only_floats_that_are_saved_are_cast(half: tuple[OptimizeResult, Path]) -> None:
    graph = half[0].after.graph
    halves = [op for op in graph.operations if op.role is Role.HALF]
    assert len(halves) == len(half[0].plan.halved)
    for op in halves:
        (source,), (made,) = op.inputs, op.outputs
        assert graph.tensors[source].dtype == "float"
        assert graph.tensors[made].dtype == "bfloat16"
        assert 2 * graph.tensors[made].bytes == graph.tensors[source].bytes


def test_the_plan_is_applied_to_the_byte_and_explained(
    half: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    result, folder = half
    again = api.apply(MLP, folder / "plan.json", output=tmp_path / "again.onnx")
    assert again.read_bytes() == (folder / "planned.onnx").read_bytes()
    name = result.plan.halved[0]
    found = explain(MLP, folder / "plan.json", f"{name}__half", time_limit_s=1.0)
    assert found.producer == f"{name}__to_half"
    checked = api.verify(MLP, folder / "planned.onnx", plan=folder / "plan.json", fast=True)
    assert checked.passed


def test_where_an_exact_plan_costs_nothing_it_stays_exact(tmp_path: Path) -> None:
    result = planned(GPT, "95%", tmp_path, cast_saved="bf16", swap="none", verify=False)
    assert result.plan.numbers == "exact" and result.plan.halved == ()
    assert result.plan.cast_saved == "bf16"


def test_the_ranking_is_bytes_times_steps_over_the_budget() -> None:
    prepared = prepare(Request(model=MLP, levers=Levers(cast_saved="bf16")))
    found = ranked(prepared, None)
    assert found[:3] == ("relu", "relu_1", "relu_2"), "kept longest"
    sizes = {t.name: t.bytes for t in prepared.graph.tensors}
    assert all(sizes[name] >= 4096 for name in found)


@pytest.mark.parametrize("name", ["gpt", "resnet18"])
def test_everything_in_half_is_what_casts_make_of_it(name: str, tmp_path: Path) -> None:
    """All that may be: the forward pass keeps its bits, at every level; what is saved is half."""
    request = Request(model=MLP.with_name(f"{name}.onnx"))
    prepared = prepare(request)
    names = frozenset(ranked(prepared, None))
    made = halved(prepared, names, "fp16")
    assert made.numbers == "lossy" and set(made.halved) == names
    saved = {made.graph.tensors[s.buffer].name for s in may_be_halved(made.graph)}
    assert not saved & names
    forward = [op.name for op in prepared.graph.operations]
    kept = [made.graph.operations[op].name for op in made.order]
    assert [n for n in kept if n in set(forward)] == [
        prepared.graph.operations[op].name for op in prepared.order
    ]


def squares(*, scale: float, opset: int = 18) -> onnx.ModelProto:
    """loss = mean((scale x)²); its gradient reads what was scaled."""
    shape = [64, 64]
    nodes = [
        h.make_node("Mul", ["x", "scale"], ["scaled"], name="scaled"),
        h.make_node("Tanh", ["x"], ["t"], name="t"),
        h.make_node("Mul", ["scaled", "t"], ["m"], name="m"),
        h.make_node("ReduceMean", ["m"], ["loss"], name="loss", keepdims=0),
        h.make_node("Cos", ["x"], ["c"], name="c"),
        h.make_node("Mul", ["c", "scaled"], ["p"], name="p"),
        h.make_node("Div", ["p", "scale"], ["x_grad"], name="x_grad"),
    ]
    infos = [h.make_tensor_value_info("x", T.FLOAT, shape)]
    outputs = [
        h.make_tensor_value_info("loss", T.FLOAT, []),
        h.make_tensor_value_info("x_grad", T.FLOAT, shape),
    ]
    graph = h.make_graph(
        nodes, "squares", infos, outputs, [h.make_tensor("scale", T.FLOAT, [], [scale])]
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def test_what_float16_cannot_hold_fails_by_name_and_bfloat16_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `scaled` in half whatever the budget: it reaches millions."""
    path = save(squares(scale=1e6), tmp_path)

    def forced(_: object, prepared: Prepared, settings: Settings, means: Means) -> Planned:
        in_half = halved(prepared, frozenset({"scaled"}), prepared.request.levers.cast_saved)
        return plan_with((), in_half, settings, means)

    monkeypatch.setattr("planner.pipeline.answer.optimizing.plan_in_rounds", forced)
    monkeypatch.setattr("planner.pipeline.record.assemble.fits_as_it_is", lambda *_: False)
    with pytest.raises(VerificationError, match=r"'scaled' reaches .* use --cast-saved bf16"):
        planned(path, "100%", tmp_path, cast_saved="fp16", **ALONE)
    result = planned(path, "100%", tmp_path, cast_saved="bf16", **ALONE)
    assert result.verification is not None and result.verification.passed
    assert any("in 'scaled'" in note for note in result.verification.notes)


def test_the_limits_are_those_of_the_types() -> None:
    assert float(np.finfo(np.float16).max) == HALF_LARGEST["fp16"]
    import ml_dtypes

    assert float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) == HALF_LARGEST["bf16"]


def test_devices_that_cannot_cast_to_it() -> None:
    assert _has_casts(HOST, "bf16", 18) and _has_casts(CUDA, "bf16", 18)
    assert _has_casts(WEBGPU, "fp16", 18) and not _has_casts(WEBGPU, "bf16", 18)


def chain(folder: Path) -> Path:
    """Nothing is saved: there is no backward pass."""
    nodes = [
        h.make_node("Tanh", ["x"], ["a"], name="a"),
        h.make_node("Tanh", ["a"], ["y"], name="y"),
    ]
    infos = [h.make_tensor_value_info(n, T.FLOAT, [64, 64]) for n in ("x", "y")]
    graph = h.make_graph(nodes, "chain", infos[:1], infos[1:])
    return save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8), folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cast_saved": "int8", "budget": "60%"}, "--cast-saved is none, bf16 or fp16"),
        ({"cast_saved": "bf16", "budget": None, "max_slowdown": "5%"}, "needs a --budget"),
        (
            {"cast_saved": "fp16", "budget": "60%", "exclude": ["*"]},
            "masks and outputs are never cast",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        api.optimize(MLP, dry_run=True, time_limit_s=1.0, **options)


def test_a_model_in_which_nothing_is_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no 32-bit floating-point tensor that the forward pass"):
        api.optimize(chain(tmp_path), budget="60%", dry_run=True, cast_saved="bf16")


def test_an_operator_set_without_bfloat16_is_refused(tmp_path: Path) -> None:
    path = save(squares(scale=2.0, opset=12), tmp_path)
    with pytest.raises(UsageError, match="needs operator set 13"):
        api.optimize(path, budget="60%", dry_run=True, cast_saved="bf16")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"halved": ["features"]}, "'features' in half, which cannot be stored in half"),
        ({"cast_saved": "none"}, "does not say in which type"),
        ({"cast_saved": "int8"}, "not a valid plan file"),
    ],
)
def test_a_plan_that_was_edited_is_refused(
    change: dict, said: str, half: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    plan = json.loads((half[1] / "plan.json").read_text()) | change
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(plan))
    with pytest.raises(ModelError, match=said):
        api.apply(MLP, path, output=tmp_path / "again.onnx")


def test_the_casts_run_at_every_level(half: tuple[OptimizeResult, Path], tmp_path: Path) -> None:
    from planner.runtime.feeds.inputs import make_inputs

    feeds, _ = make_inputs(MLP, 0, {}, None)
    names = {op.name for op in half[0].after.graph.operations if op.role in (Role.HALF, Role.WHOLE)}
    for level in LEVELS:
        order, _ = run_on_ort(str(half[1] / "planned.onnx"), dict(feeds), tmp_path, level)
        assert names <= set(order)
