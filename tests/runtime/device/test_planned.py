"""Plans made for a device run there as planned: swaps, recompute, copies, order, numbers, bytes, cap.

On the software device; each test says so by name where there is none.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.cli.main import main
from planner.errors import ModelError, UsageError
from planner.graph.model import Placement
from planner.graph.schedule import default_order
from planner.pipeline.prepare.graphs import analysed_graph
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request
from planner.results.verification import Verification
from planner.runtime.device import client
from planner.runtime.device.placement import placement_of
from planner.runtime.device.side import Side
from planner.runtime.device.verify import DeviceJob
from planner.targets.webgpu import WEBGPU

pytestmark = pytest.mark.usefixtures("counted_device")

SIDE = 32


def built(folder: Path, arguments: str) -> Path:
    """A training graph from `models`, with the recipe of its inputs."""
    pytest.importorskip("torch")
    from models.build import main as build

    name = arguments.split()[0]
    path = folder / f"{name}.onnx"
    assert build([*arguments.split(), "--sidecar", "-o", str(path)]) == 0
    return path


def test_mlp_with_adamw_and_copies_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = built(tmp_path, "mlp --batch 512 --width 32 --layers 2 --optimizer adamw")
    capsys.readouterr()
    words = f"optimize {model} --budget 60% --device webgpu --time-limit 1 --json -q"
    assert main(words.split()) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    check = found["verification"]
    assert check["provider"] == "WebGpuExecutionProvider" and check["failures"] == []
    assert all(o["identical"] for o in check["outputs"]) and len(check["outputs"]) == 13
    assert [o["equal"] for o in check["orders"]] == [True] * 4
    copies = check["copies"]
    assert copies["ran"] == copies["planned"] > 0 and copies["extra"] == []
    memory = {m["model"]: m for m in check["memory"]}
    for m in memory.values():
        assert m["live_bytes"] == m["predicted_live_bytes"]
        assert m["held_bytes"] == pytest.approx(m["predicted_held_bytes"], rel=0.2)
    assert memory["rewritten"]["live_bytes"] <= found["headline"]["budget_bytes"]
    assert memory["rewritten"]["held_bytes"] < memory["original"]["held_bytes"]
    assert {c["model"]: c["passed"] for c in check["caps"]} == {
        "original": False,
        "rewritten": True,
    }
    # the file says what it is for, and is the plan's to the byte
    planned = tmp_path / "mlp.planned.onnx"
    props = {p.key: p.value for p in onnx.load(planned).metadata_props}
    assert props["pkg.planner.target"] == "webgpu"
    again = api.apply(model, tmp_path / "mlp.plan.json", output=tmp_path / "again.onnx")
    assert again.read_bytes() == planned.read_bytes()
    with pytest.raises(ModelError, match="written by planner for webgpu, not for cpu"):
        api.analyze(planned)
    with pytest.raises(UsageError, match="verify with --device webgpu"):
        api.verify(model, planned, plan=tmp_path / "mlp.plan.json")


def saved(path: Path, nodes: list[onnx.NodeProto]) -> Path:
    """A model from `x` to `y`, [SIDE, SIDE]."""
    x, y = (h.make_tensor_value_info(n, T.FLOAT, [SIDE, SIDE]) for n in "xy")
    graph = h.make_graph(nodes, "small", [x], [y])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_recompute(tmp_path: Path) -> None:
    """As a backward pass has it: each product reads what the forward pass made, last first."""
    kinds = ("Tanh", "Sin", "Tanh", "Sin", "Cos")
    nodes = [h.make_node(k, [f"h{i}"], [f"h{i + 1}"], f"f{i}") for i, k in enumerate(kinds)]
    ends = ["h5", "g3", "g2", "g1", "y"]
    nodes += [
        h.make_node("Mul", [of, f"h{4 - i}"], [to], f"b{i}")
        for i, (of, to) in enumerate(itertools.pairwise(ends))
    ]
    nodes[0].input[0] = "x"
    result = api.optimize(
        saved(tmp_path / "there_and_back.onnx", nodes),
        budget="85%",
        swap="none",
        output=tmp_path / "planned.onnx",
        device="webgpu",
        time_limit_s=0.5,
    )
    check = result.verification
    assert check is not None and check.passed, check
    assert result.plan.planned.recomputed_ops > 0 and not result.plan.planned.swapped_tensors
    assert all(o.equal for o in check.orders)
    assert check.copies is not None and not check.copies.extra and not check.copies.missing
    # which plan is found in the time is not the same every day, and so what its buckets hold
    original, rewritten = (m.held_bytes for m in check.memory)
    assert original is not None and rewritten is not None
    assert [c.cap_bytes for c in check.caps] == [rewritten] * 2
    assert [c.passed for c in check.caps] == [original <= rewritten, True]


# -- what the checks find --------------------------------------------------------------------


CHAIN = (
    h.make_node("Exp", ["x"], ["a"], "a"),
    h.make_node("Neg", ["a"], ["b"], "b"),
    h.make_node("Add", ["a", "b"], ["c"], "c"),
    h.make_node("Mul", ["c", "a"], ["y"], "y"),
)


def side(path: Path, on_cpu: tuple[str, ...] = ()) -> Side:
    placement = Placement(on_cpu=frozenset(on_cpu), inplace=WEBGPU.inplace)
    graph = analysed_graph(ir.load(path), {}, placement=placement)
    return Side(path=path, graph=graph, order=default_order(graph))


def verified(original: Side, rewritten: Side) -> Verification:
    feeds = {"x": np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)}
    return DeviceJob(
        target=WEBGPU,
        original=original,
        rewritten=rewritten,
        inputs=feeds,
        inputs_source="seeded",
        budget_bytes=1 << 20,
    ).run()


@pytest.fixture
def chain(tmp_path: Path) -> Side:
    return side(saved(tmp_path / "chain.onnx", list(CHAIN)))


def test_the_same_model_passes(chain: Side) -> None:
    check = verified(chain, chain)
    assert check.passed, check.failures
    assert [m.live_bytes for m in check.memory] == [m.predicted_live_bytes for m in check.memory]
    assert [m.held_bytes for m in check.memory] == [m.predicted_held_bytes for m in check.memory]


def test_another_order_is_found(chain: Side) -> None:
    first, second, *rest = chain.order
    other = Side(path=chain.path, graph=chain.graph, order=(second, first, *rest))
    (failure,) = verified(chain, other).failures
    assert failure.startswith("WebGpuExecutionProvider did not run its nodes in the planned order")


def test_other_numbers_are_found(chain: Side, tmp_path: Path) -> None:
    nodes = [*CHAIN[:3], h.make_node("Sub", ["c", "a"], ["y"], "y")]
    failures = verified(chain, side(saved(tmp_path / "other.onnx", nodes))).failures
    assert failures[0].startswith("output 'y' differs from the original's on WebGPU")


def test_a_copy_that_nobody_planned_is_found(chain: Side, tmp_path: Path) -> None:
    """An anchor that WebGPU has no kernel for: ONNX Runtime copies the tensor for its sake."""
    nodes = [*CHAIN, h.make_node("Size", ["c"], ["size"], "anchor")]
    path = saved(tmp_path / "anchored.onnx", nodes)
    check = verified(chain, side(path, on_cpu=("anchor",)))
    assert check.copies is not None and len(check.copies.extra) == 1
    assert any("1 copies ran unplanned" in failure for failure in check.failures)


def test_a_node_on_another_side_than_planned_is_found(chain: Side) -> None:
    wrong = side(chain.path, on_cpu=("b",))
    assert any("did not run where planned, first 'b'" in f for f in verified(chain, wrong).failures)


def test_placement_is_what_onnx_runtime_says(tmp_path: Path) -> None:
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("Sign", ["a"], ["s"], "s"),  # no kernel on WebGPU
        h.make_node("Mul", ["a", "s"], ["y"], "y"),
    ]
    path = saved(tmp_path / "sign.onnx", nodes)
    assert placement_of(path, WEBGPU).on_cpu == {"s"}
    analysis = api.analyze(path, device="webgpu", time_limit_s=0.5)
    names = [op.name for op in analysis.default.graph.operations]
    assert set(names) == {"a", "a__to_host", "s", "s__to_device", "y"}
    assert any("1 of 5 nodes run on the CPU, and 2 copies" in a for a in analysis.assumptions)


def test_nodes_without_names_are_placed_too(tmp_path: Path) -> None:
    nodes = [
        h.make_node("Exp", ["x"], ["a"]),
        h.make_node("Sign", ["a"], ["s"]),
        h.make_node("MatMul", ["a", "s"], ["b"]),
        h.make_node("Relu", ["b"], ["y"]),
    ]
    path = saved(tmp_path / "unnamed.onnx", nodes)
    for to_rewrite in (True, False):
        found = prepare(Request(model=path, device="webgpu"), to_rewrite=to_rewrite)
        assert found.placement is not None
        on_cpu = {op.op_type for op in found.graph.operations if op.on_cpu}
        assert on_cpu == {"Sign"} and len(found.placement.on_cpu) == 1


def test_a_graph_that_the_provider_saved_is_read_planned_and_run(tmp_path: Path) -> None:
    """Its copies are ONNX Runtime's own."""
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("Sign", ["a"], ["s"], "s"),
        h.make_node("Tanh", ["s"], ["k"], "k"),
        h.make_node("MatMul", ["a", "s"], ["b"], "b"),
        h.make_node("MatMul", ["b", "b"], ["c"], "c"),
        h.make_node("MatMul", ["c", "c"], ["d"], "d"),
        h.make_node("Mul", ["d", "a"], ["e"], "e"),
        h.make_node("Mul", ["e", "k"], ["y"], "y"),
    ]
    source = saved(tmp_path / "source.onnx", nodes)
    path = tmp_path / "saved.onnx"
    client.optimize(WEBGPU, source, path, level="extended")
    assert "MemcpyToHost" in {node.op_type for node in onnx.load(path).graph.node}
    for name, model, budget in (
        ("once", path, f"{5 * SIDE * SIDE * 4 - 256}B"),
        ("twice", tmp_path / "once.onnx", "100%"),
    ):
        result = api.optimize(
            model,
            budget=budget,
            swap="only",
            output=tmp_path / f"{name}.onnx",
            device="webgpu",
            time_limit_s=0.5,
            hardware="h100",
        )
        assert result.verification is not None and result.verification.passed
        assert result.plan.unchanged == (name == "twice")


def test_one_file_for_every_target_runs_on_each(tmp_path: Path) -> None:
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("Tanh", ["a"], ["k"], "k"),
        h.make_node("MatMul", ["a", "k"], ["b"], "b"),
        h.make_node("MatMul", ["b", "b"], ["c"], "c"),
        h.make_node("MatMul", ["c", "c"], ["d"], "d"),
        h.make_node("Mul", ["d", "a"], ["e"], "e"),
        h.make_node("Mul", ["e", "k"], ["y"], "y"),
    ]
    source, planned = saved(tmp_path / "source.onnx", nodes), tmp_path / "planned.onnx"
    result = api.optimize(
        source,
        budget=f"{5 * SIDE * SIDE * 4 - 256}B",
        swap="only",
        output=planned,
        plan_path=tmp_path / "plan.json",
        device="any",
        time_limit_s=0.5,
    )
    check = result.verification
    assert check is not None and check.passed, check
    assert result.plan.planned.swapped_tensors > 0
    assert {o.queue for o in check.orders} >= {"", "WebGpuExecutionProvider"}
    assert check.copies is not None and check.copies.ran == 2 and not check.copies.extra
    assert [c.passed for c in check.caps] == [False, True]
    assert "one file for every target" in " ".join(result.plan.assumptions)
    for device in ("cpu", "webgpu"):
        again = api.verify(source, planned, plan=tmp_path / "plan.json", device=device)
        assert again.passed and again.device == device


def test_no_file_for_every_target_where_one_leaves_a_node_to_the_cpu(tmp_path: Path) -> None:
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("Sign", ["a"], ["s"], "s"),
        h.make_node("Mul", ["a", "s"], ["y"], "y"),
    ]
    with pytest.raises(ModelError, match=r"WebGPU does not run node 's' \(Sign\) on the device"):
        api.analyze(saved(tmp_path / "sign.onnx", nodes), device="any")
