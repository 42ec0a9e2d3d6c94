"""What outlives a step may live on the host: plans that need it, what they say, and what they may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from planner import api
from planner.errors import InfeasibleBudgetError, UsageError
from planner.graph.model import Role
from planner.pipeline.levers.host.hosting import candidates_of
from planner.pipeline.prepare.limiting import limited
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.settings import settings_of
from planner.plan.planfile import Plan
from planner.report.document.outcome import optimize_document
from planner.request import Costs, Levers, Request
from planner.results import OptimizeResult
from tests.micro.nets import Mlp

MLP = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
KIB = 1024


def planned(budget: str, folder: Path, **options: object) -> OptimizeResult:
    """mlp_adamw within a budget; the model and its plan are in `folder`."""
    return api.optimize(
        MLP,
        budget=budget,
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        time_limit_s=1.0,
        force=True,
        **{"device": "cpu", "swap": "auto", **options},  # pyright: ignore[reportArgumentType]
    )


def names_of(plan: Plan) -> set[str]:
    """Tensors that a plan recomputes, swaps or has on the host."""
    return {d.tensor for d in plan.decisions} | set(plan.resident)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[OptimizeResult, Path]:
    """A plan within half the peak; on the device alone none fits 66%."""
    folder = tmp_path_factory.mktemp("half")
    return planned("50%", folder), folder


def test_half_the_peak_is_met_with_the_state_on_the_host(half: tuple[OptimizeResult, Path]) -> None:
    result, _ = half
    plan = result.plan
    assert result.verification is not None and result.verification.passed
    assert all(output.identical for output in result.verification.outputs)
    assert plan.planned.peak_bytes <= plan.budget_bytes < 0.66 * plan.baseline.peak_bytes
    assert plan.planned.paged_tensors == len(plan.resident) > 0
    graph = result.after.graph
    ins = [op for op in graph.operations if op.role is Role.PAGE_IN]
    outs = [op for op in graph.operations if op.role is Role.PAGE_OUT]
    assert sum(graph.tensors[op.inputs[0]].bytes for op in ins) == plan.planned.page_in_bytes
    assert sum(graph.tensors[op.inputs[0]].bytes for op in outs) == plan.planned.page_out_bytes
    assert {graph.tensors[op.inputs[0]].name for op in ins} <= set(plan.resident)


def test_on_the_device_alone_nothing_fits_half_the_peak(tmp_path: Path) -> None:
    for levers in ({"resident": "device"}, {"swap": "none"}):
        with pytest.raises(InfeasibleBudgetError):
            planned("50%", tmp_path, verify=False, **levers)


def test_the_plan_file_says_what_lives_where_and_is_applied_to_the_byte(
    half: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    result, folder = half
    again = api.apply(MLP, folder / "plan.json", output=tmp_path / "again.onnx")
    assert again.read_bytes() == (folder / "planned.onnx").read_bytes()
    headline = optimize_document(result).headline
    assert headline.paged_tensors == len(result.plan.resident)
    assert headline.host_bytes > 0
    if not result.plan.proved_optimal:
        return
    assert "the same inputs and outputs on the host" in result.plan.bound_class


def test_a_paged_tensor_is_explained(half: tuple[OptimizeResult, Path]) -> None:
    result, folder = half
    from planner.pipeline.answer.explain import explain

    name = next(n for n in result.plan.resident if not n.endswith(("_new", "_grad", "loss")))
    found = explain(MLP, folder / "plan.json", f"{name}__here", time_limit_s=1.0)
    assert found.buffer == f"{name}__here"
    assert found.producer == f"{name}__page_in"


def test_fed_from_the_host_one_copy_of_each_costs_nothing(tmp_path: Path) -> None:
    result = planned("40%", tmp_path, hardware="a100-40gb", verify=False)
    bound = planned("40%", tmp_path, hardware="a100-40gb", verify=False, feeds="device")
    plan, other = result.plan, bound.plan
    assert plan.feeds == "host" and other.feeds == "device"
    copied = plan.planned.page_us
    assert plan.baseline.time_us > other.baseline.time_us
    assert plan.planned.time_us - plan.baseline.time_us <= other.planned.time_us - (
        other.baseline.time_us
    )
    assert copied > 0
    assert any("once in any case" in text for text in plan.assumptions)


def test_the_host_budget_is_kept(tmp_path: Path) -> None:
    free = planned("60%", tmp_path, verify=False)
    limit = int(0.8 * free.plan.planned.host_bytes)
    result = planned("60%", tmp_path, host_budget=f"{limit}B")
    assert result.verification is not None and result.verification.passed
    assert 0 < result.plan.planned.host_bytes <= limit == result.plan.host_budget_bytes
    with pytest.raises(InfeasibleBudgetError, match="host budget"):
        planned("60%", tmp_path, verify=False, host_budget="1MB", resident="host")


def test_what_is_left_out_is_left_alone(half: tuple[OptimizeResult, Path], tmp_path: Path) -> None:
    touched = sorted(names_of(half[0].plan))
    first = touched[0].removesuffix("__here")
    result = planned("60%", tmp_path, verify=False, exclude=[first, "category:gradient"])
    assert first not in names_of(result.plan)
    graph = prepare(Request(model=MLP)).graph
    gradients = {t.name for t in graph.tensors if t.category.value == "gradient"}
    assert not gradients & names_of(result.plan)
    result = planned("75%", tmp_path, verify=False, include=["op:FusedGemm"])
    made = {
        graph.tensors[t].name
        for op in graph.operations
        if op.op_type == "FusedGemm"
        for t in op.outputs
    }
    assert names_of(result.plan) <= made


def test_small_tensors_stay(tmp_path: Path) -> None:
    result = planned("60%", tmp_path, verify=False, min_tensor="200KiB")
    sizes = {t.name: t.bytes for t in prepare(Request(model=MLP)).graph.tensors}
    assert result.plan.resident
    assert min(sizes[name] for name in result.plan.resident) >= 200 * KIB
    swapped = [d.bytes for d in result.plan.decisions if d.action == "swap"]
    assert min(swapped, default=200 * KIB) >= 200 * KIB


def test_nothing_runs_again_but_copies(tmp_path: Path) -> None:
    result = planned("40%", tmp_path, verify=False, recompute=False)
    assert result.plan.planned.recomputed_ops == 0
    assert not any(d.action == "recompute" for d in result.plan.decisions)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exclude": ["no_such_tensor"]}, "--exclude 'no_such_tensor' matches nothing"),
        ({"include": ["op:FusdGemm"]}, "the closest are 'FusedGemm'"),
        ({"exclude": ["category:weights"]}, "the categories are parameter"),
        ({"min_tensor": "much"}, "--min-tensor"),
        ({"host_budget": "0B"}, "--host-budget"),
        ({"resident": "disk"}, "--resident is auto, device or host"),
        ({"feeds": "disk"}, "--feeds is auto, host or device"),
    ],
)
def test_bad_levers_are_named(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        planned("60%", tmp_path, verify=False, **options)
    assert said in str(refused.value)


SIDE = 64


def stored(folder: Path, layers: int = 6) -> Path:
    """A chain of products whose weights lie in a file beside the model."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    value = "x"
    for i in range(layers):
        array = random.normal(size=(SIDE, SIDE)).astype(np.float32) / 8
        weights.append(nh.from_array(array, f"w{i}"))
        nodes.append(h.make_node("MatMul", [value, f"w{i}"], [f"h{i}"], name=f"product{i}"))
        nodes.append(h.make_node("Tanh", [f"h{i}"], [f"a{i}"], name=f"tanh{i}"))
        value = f"a{i}"
    info = [h.make_tensor_value_info(n, T.FLOAT, [4, SIDE]) for n in ("x", value)]
    graph = h.make_graph(nodes, "stored", info[:1], info[1:], weights)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    path = folder / "stored.onnx"
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        location="stored.data",
        size_threshold=0,
    )
    return path


def test_weights_in_a_file_are_paged_from_it_and_not_written_again(tmp_path: Path) -> None:
    path = stored(tmp_path)
    data = (tmp_path / "stored.data").stat()  # all but when it was last read
    result = api.optimize(
        path,
        budget="40%",
        output=tmp_path / "planned.onnx",
        time_limit_s=1.0,
        resident="host",
    )
    assert result.verification is not None and result.verification.passed
    plan = result.plan
    assert plan.planned.file_bytes == sum(
        SIDE * SIDE * 4 for name in plan.resident if name.startswith("w")
    )
    assert plan.planned.host_bytes < SIDE * SIDE * 4
    after = (tmp_path / "stored.data").stat()
    assert (after.st_ino, after.st_size) == (data.st_ino, data.st_size)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (data.st_mtime_ns, data.st_ctime_ns)
    assert (tmp_path / "planned.onnx").stat().st_size < SIDE * SIDE * 4


@pytest.mark.parametrize("resident", ["host", "auto"])
def test_what_the_caller_feeds_in_place_of_an_initializer_is_what_is_copied(
    resident: str, tmp_path: Path
) -> None:
    path = stored(tmp_path)
    model = onnx.load(path)
    model.graph.input.append(h.make_tensor_value_info("w3", T.FLOAT, [SIDE, SIDE]))
    path = tmp_path / "overridable.onnx"
    onnx.save(model, path)
    random = np.random.default_rng(3)
    fed = {"x": random.normal(size=(4, SIDE)).astype("f4")}
    mine = {**fed, "w3": random.normal(size=(SIDE, SIDE)).astype("f4")}
    np.savez(tmp_path / "mine.npz", **mine)
    planned = tmp_path / "planned.onnx"
    result = api.optimize(
        path,
        budget="40%" if resident == "host" else "1TB",
        output=planned,
        inputs=tmp_path / "mine.npz",
        time_limit_s=1.0,
        resident=resident,  # pyright: ignore[reportArgumentType]
    )
    assert result.verification is not None and result.verification.passed
    assert ("w3" in result.plan.resident) == (resident == "host")
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    before, after = (ort.InferenceSession(str(p), options) for p in (path, planned))
    assert [v.name for v in after.get_overridable_initializers()].count("w3") == 1
    for feeds in (fed, mine):
        (expected,), (found,) = before.run(None, feeds), after.run(None, feeds)
        assert expected.tobytes() == found.tobytes()
    assert before.run(None, fed)[0].tobytes() != before.run(None, mine)[0].tobytes()


def test_large_files_are_not_read_to_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path)
    monkeypatch.setattr("planner.runtime.optimizers.normalize.LARGE_FILES_BYTES", SIDE * SIDE * 4)
    with monkeypatch.context() as patch:
        patch.setattr(ir.ExternalTensor, "numpy", lambda _: pytest.fail("data was read"))
        request = Request(model=path, budget="40%")
        prepared = limited(prepare(request))
        form = prepared.formulated()
    assert len(form.problem.ops) == 12
    assert [t.name for t in prepared.graph.tensors if t.is_input and t.is_initializer]
    result = api.optimize(
        path,
        budget="40%",
        output=tmp_path / "planned.onnx",
        time_limit_s=1.0,
        resident="host",
    )
    assert result.verification is not None and result.verification.passed
    assert any("not loaded for planning" in text for text in result.plan.assumptions)
    session = ort.InferenceSession(str(tmp_path / "planned.onnx"))
    assert [v.name for v in session.get_inputs()] == ["x"]


def test_what_is_needed_at_both_ends_is_ranked_behind(tmp_path: Path) -> None:
    request = Request(
        model=MLP, budget="60%", costs=Costs(), levers=Levers(resident="auto", min_tensor="1KiB")
    )
    prepared = prepare(request)
    found = candidates_of(prepared, settings_of(prepared))
    assert not found.free, "the host's memory is the CPU's"
    states = [name for name in found.ranked if name.endswith(("_m", "_v"))]
    weights = [name for name in found.ranked if name.endswith("weight")]
    place = {name: i for i, name in enumerate(found.ranked)}
    if states and weights:
        assert min(map(place.__getitem__, states)) < max(map(place.__getitem__, weights))


def test_many_small_weights_are_not_left_on_the_device(tmp_path: Path) -> None:
    """Each is less than a two-thousandth of the peak; all of them are more than the budget."""
    net = Mlp(loss="counted", update=True, hidden=64, layers=48, batch=2048)
    path = net.save(tmp_path / "deep.onnx")
    result = api.optimize(
        path,
        budget="8%",
        device="cpu",
        hardware="a100-40gb",
        feeds="host",
        time_limit_s=1.0,
        verify=False,
    )
    plan, graph = result.plan, result.before.graph
    kept = [t for t in graph.tensors if t.is_input or t.is_output]
    weights = [t for t in kept if t.name.startswith("w") and t.bytes >= 4 * 64 * 64]
    assert max(t.bytes for t in weights) < plan.baseline.peak_bytes / 2000
    assert sum(t.bytes for t in weights) > plan.budget_bytes
    assert {t.name for t in weights} <= set(plan.resident)
    assert plan.planned.peak_bytes <= plan.budget_bytes


@pytest.mark.parametrize("resident", ["auto", "host"])
def test_the_least_budget_that_is_named_has_a_plan(resident: str) -> None:
    """Small tensors decide it, which stay on the device where the larger ones make room enough."""
    levers: dict[str, Any] = {
        "resident": resident,
        "time_limit_s": 1.0,
        "dry_run": True,
        "reproducible": True,
    }
    with pytest.raises(InfeasibleBudgetError) as error:
        api.optimize(MLP, budget="1B", **levers)
    least = error.value.least_peak_bytes
    plan = api.optimize(MLP, budget=f"{least}B", **levers).plan
    assert plan.planned.peak_bytes <= least
