"""`--fuse`: plans of fused graphs, verified against the file as it was; what is said, and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from planner import api, native
from planner.choices import FuseMode
from planner.errors import ModelError, UsageError
from planner.fuse.rewrite import Fused
from planner.pipeline.answer.explain import explain
from planner.pipeline.levers.fuse import fusing
from planner.pipeline.levers.fuse.fusing import fused, fused_nodes
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.solve.orders import least_possible_peak
from planner.report.document.outcome import optimize_document
from planner.report.next_steps import next_steps
from planner.request import Costs, Request
from planner.results import OptimizeResult
from planner.runtime.opened import session_options

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def optimized(name: str, folder: Path, budget: str, fuse: FuseMode) -> OptimizeResult:
    return api.optimize(
        ZOO / f"{name}.onnx",
        budget=budget,
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        fuse=fuse,
        calibrate=False,
        time_limit_s=2.0,
        force=True,
    )


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[OptimizeResult, Path]:
    folder = tmp_path_factory.mktemp("exact")
    return optimized("gpt", folder, "50%", "exact"), folder


def prepared_for(name: str) -> Prepared:
    return prepare(Request(model=ZOO / f"{name}.onnx", costs=Costs(calibrate="never")))


def test_a_gpt_is_planned_with_fused_operations_and_keeps_every_bit(
    exact: tuple[OptimizeResult, Path],
):
    result, folder = exact
    plan, verification = result.plan, result.verification
    assert plan.fuse == "exact" and plan.fused_nodes > 20 and plan.numbers == "exact"
    assert verification is not None and verification.passed, verification
    assert all(output.identical for output in verification.outputs)
    rewritten = onnx.load(folder / "planned.onnx")
    nodes = [node for node in rewritten.graph.node if node.domain == "planner.fused"]
    assert len(nodes) >= plan.fused_nodes
    props = {p.key: p.value for p in rewritten.metadata_props}
    assert props["pkg.planner.needs"] == "planner.fused 1"
    assert any("nodes of planner.fused" in said for said in plan.assumptions)
    head = optimize_document(result).headline
    assert head.fused_nodes == plan.fused_nodes


def test_the_plan_file_makes_the_same_model_again(
    exact: tuple[OptimizeResult, Path], tmp_path: Path
):
    _, folder = exact
    api.apply(ZOO / "gpt.onnx", folder / "plan.json", output=tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (folder / "planned.onnx").read_bytes()
    text = json.loads((folder / "plan.json").read_text())
    text["fused_nodes"] += 1
    (tmp_path / "plan.json").write_text(json.dumps(text))
    with pytest.raises(ModelError, match="fused nodes, and this model would have"):
        api.apply(ZOO / "gpt.onnx", tmp_path / "plan.json", output=tmp_path / "other.onnx")


def test_explain_prints_the_program(exact: tuple[OptimizeResult, Path]):
    _, folder = exact
    rewritten = onnx.load(folder / "planned.onnx")
    node = next(node for node in rewritten.graph.node if node.domain == "planner.fused")
    found = explain(ZOO / "gpt.onnx", folder / "plan.json", node.output[0].split("__")[0])
    assert found.program == next(a.s.decode() for a in node.attribute if a.name == "program")
    inside = next(
        t.name
        for t in prepared_for("gpt").graph.tensors
        if t.producer is not None
        and t.name not in {o for n in rewritten.graph.node for o in n.output}
    )
    with pytest.raises(UsageError, match="is computed inside a fused node"):
        explain(ZOO / "gpt.onnx", folder / "plan.json", inside)


def test_the_original_opens_without_the_library_and_the_fused_file_says_what_it_needs(
    exact: tuple[OptimizeResult, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    _, folder = exact
    path = folder / "planned.onnx"
    with pytest.raises(Exception, match=r"planner\.fused"):
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    with pytest.raises(UsageError, match=r"native library is not built: run"):
        session_options(path)


def test_an_optimizer_step_is_within_rounding(tmp_path: Path):
    result = optimized("mlp_adamw", tmp_path, "90%", "auto")
    assert result.verification is not None and result.verification.passed
    assert result.plan.fused_nodes > 5 and result.plan.numbers == "rounding"
    assert any("not bit-identical" in note for note in result.verification.notes)


@pytest.mark.parametrize("mode", ["exact", "auto"])
def test_what_is_inside_of_fused_nodes_is_not_stored_and_moves_no_bytes(mode: FuseMode):
    prepared = prepared_for("gpt")
    made = fused(prepared, mode)
    assert made is not None and fused_nodes(made) > 20
    assert sum(made.duration_us) < sum(prepared.duration_us)
    assert least_possible_peak(made) <= least_possible_peak(prepared)
    assert {t.name for t in made.graph.tensors} < {t.name for t in prepared.graph.tensors}
    assert set(made.order) == {op.id for op in made.graph.operations}


def test_on_cuda_a_plan_has_fused_nodes_and_says_that_no_card_has_run_any(tmp_path: Path):
    result = api.optimize(
        ZOO / "gpt.onnx",
        budget="60%",
        output=tmp_path / "planned.onnx",
        plan_path=tmp_path / "plan.json",
        fuse="auto",
        device="cuda",
        hardware="h100",
        time_limit_s=0.3,
        verify=False,
        reproducible=True,  # the same on a slow machine
    )
    plan = result.plan
    assert plan.device == "cuda" and plan.fuse == "auto" and plan.fused_nodes > 20
    (said,) = (text for text in plan.assumptions if "nodes of planner.fused" in text)
    assert "no card has run any yet: verify the file there" in said
    steps = [row.text for row in next_steps(result, None)]
    assert steps[0].startswith("On the GPU machine: make the plan again")
    rewritten = onnx.load(tmp_path / "planned.onnx")
    assert sum(n.domain == "planner.fused" for n in rewritten.graph.node) >= plan.fused_nodes
    props = {p.key: p.value for p in rewritten.metadata_props}
    assert props["pkg.planner.needs"] == "planner.fused 1"


def on_cuda(name: str, folder: Path, nodes: list[onnx.NodeProto], dtype: int) -> Prepared:
    from onnx import helper as h

    x = h.make_tensor_value_info("x", dtype, (8, 64))
    outputs = [h.make_tensor_value_info("z", dtype, (8, 64))]
    if any(node.output[0] == "k" for node in nodes):
        outputs.append(h.make_tensor_value_info("k", 7, (2,)))
    graph = h.make_graph(nodes, name, [x], outputs)
    path = folder / f"{name}.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), path)
    costs = Costs(hardware="h100", calibrate="never")
    return prepare(Request(model=path, device="cuda", costs=costs))


def test_on_cuda_what_runs_on_the_cpu_is_not_fused(tmp_path: Path):
    from onnx import TensorProto as T
    from onnx import helper as h

    made = [("Shape", "x", "s"), ("Neg", "s", "n"), ("Abs", "n", "k"), ("Neg", "x", "a")]
    nodes = [h.make_node(k, [a], [b], name=b) for k, a, b in (*made, ("Abs", "a", "z"))]
    prepared = on_cuda("shapes", tmp_path, nodes, T.FLOAT)
    assert {op.name for op in prepared.graph.operations if op.on_cpu} >= {"n", "k"}
    found = fused(prepared, "exact")
    assert found is not None and fused_nodes(found) == 1
    left = {op.name for op in found.graph.operations if op.domain != "planner.fused"}
    assert {"n", "k"} <= left and not {"a", "z"} & left
    # the bytes of one operation are moved in place of those of two, by one launch
    (node,) = (op for op in found.graph.operations if op.domain == "planner.fused")
    alone = next(op for op in prepared.graph.operations if op.name == "a")
    assert found.duration_us[node.id] == pytest.approx(prepared.duration_us[alone.id])


def test_exact_on_cuda_leaves_out_what_rounds_otherwise_there(tmp_path: Path):
    from onnx import TensorProto as T
    from onnx import helper as h

    made = [("Neg", "x", "a"), ("Abs", "a", "b"), ("HardSigmoid", "b", "c"), ("Neg", "c", "d")]
    nodes = [h.make_node(k, [a], [b], name=b) for k, a, b in (*made, ("Abs", "d", "z"))]
    prepared = on_cuda("exact", tmp_path, nodes, T.FLOAT)
    for mode, left in (("exact", {"c"}), ("auto", set[str]())):
        found = fused(prepared, mode)
        assert found is not None
        kinds = {op.name for op in found.graph.operations if op.domain != "planner.fused"}
        assert kinds == left, mode


def test_on_cuda_a_graph_in_half_is_fused_where_bits_may_differ(tmp_path: Path):
    from reports.gpu.large import in_half

    path = tmp_path / "half.onnx"
    onnx.save(in_half(onnx.load(ZOO / "gpt.onnx"), onnx.TensorProto.BFLOAT16), path)
    costs = Costs(hardware="h100", calibrate="never")
    prepared = prepare(Request(model=path, device="cuda", costs=costs))
    assert fused(prepared, "exact") is None or fused_nodes(fused(prepared, "exact")) < 5
    found = fused(prepared, "auto")
    assert found is not None and fused_nodes(found) > 20
    assert sum(found.duration_us) < sum(prepared.duration_us)
    texts = [n.attributes["program"].as_string() for n in found.model.graph if n.domain]
    assert sum(" = input bfloat16" in text for text in texts if " input " in text) > 20


def test_it_is_for_devices_with_a_kernel_and_with_a_budget(tmp_path: Path):
    model, output = ZOO / "gpt.onnx", tmp_path / "out.onnx"
    for device in ("webgpu", "any"):
        with pytest.raises(UsageError, match=r"for the CPU and CUDA.*use --fuse none"):
            api.optimize(
                model,
                budget="60%",
                output=output,
                fuse="auto",
                device=device,  # pyright: ignore[reportArgumentType]
                verify=False,
            )
    with pytest.raises(UsageError, match="needs a --budget"):
        api.optimize(model, max_slowdown="5%", output=output, fuse="exact")
    with pytest.raises(UsageError, match="--fuse is none, exact or auto"):
        api.optimize(model, budget="60%", output=output, fuse="all")  # pyright: ignore


def test_a_model_in_which_nothing_goes_together_is_planned_as_it_is(tmp_path: Path):
    from onnx import TensorProto as T
    from onnx import helper as h

    nodes = [h.make_node("MatMul", [a, "x"], [b], name=b) for a, b in ("xy", "yz")]
    values = [h.make_tensor_value_info(name, T.FLOAT, (64, 64)) for name in "xz"]
    graph = h.make_graph(nodes, "products", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), path)
    result = api.optimize(path, budget="100%", output=tmp_path / "o.onnx", fuse="exact")
    assert result.plan.fuse == "none" and result.plan.fused_nodes == 0
    assert any("nothing is fused" in said for said in result.plan.assumptions)
    assert replace(result.plan, fuse="none") == result.plan


def test_a_model_with_open_dims_is_planned_without_it(tmp_path: Path):
    from onnx import TensorProto as T
    from onnx import helper as h

    nodes = [
        h.make_node("Neg", ["x"], ["y"], name="y"),
        h.make_node("Abs", ["y"], ["z"], name="z"),
    ]
    values = [h.make_tensor_value_info(name, T.FLOAT, ("n", 64)) for name in "xz"]
    graph = h.make_graph(nodes, "open", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), path)
    result = api.optimize(
        path, budget="100%", output=tmp_path / "o.onnx", fuse="exact", dims={"n": 64}, verify=False
    )
    assert result.plan.fuse == "none"
    assert any(
        "open dims" in said and "not supported yet" in said for said in result.plan.assumptions
    )


def test_groups_that_are_measured_to_be_slower_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    slow: list[str] = []

    def measured(prepared: Prepared, made: Fused) -> dict[tuple[str, ...], float]:
        groups = sorted(made.members.values())
        slow.extend(group[0] for group in groups[::3])
        return {group: 1e6 if group[0] in slow else 0.1 for group in groups}

    monkeypatch.setattr(fusing, "_measured_us", measured)
    result = optimized("mlp_adamw", tmp_path, "90%", "exact")
    plan = result.plan
    assert plan.unfused == tuple(sorted(slow)) and 0 < plan.fused_nodes < 3 * len(slow)
    assert result.verification is not None and result.verification.passed
    names = {node.name for node in onnx.load(tmp_path / "planned.onnx").graph.node}
    assert names.issuperset(slow)
    api.apply(ZOO / "mlp_adamw.onnx", tmp_path / "plan.json", output=tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "planned.onnx").read_bytes()
