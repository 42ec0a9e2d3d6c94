"""Decisions as metadata of nodes: on each node that was added, and on the producers of what leaves
the device; stock readers take the file, and `apply` makes the same one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from planner import apply, optimize
from planner.results import OptimizeResult

ZOO = Path(__file__).parents[2] / "models" / "zoo"
PREFIX = "pkg.planner."
CASES = [
    ("mlp_adamw", "75%", "none", "default", None),
    ("mlp_adamw", "80%", "auto", "priority", None),
    ("gpt", "70%", "auto", "default", 10),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: "-".join(map(str, c[:4])))
def done(request, tmp_path_factory) -> OptimizeResult:
    """A sample, planned; one of them as a model of IR version 10."""
    name, budget, swap, order, ir_version = request.param
    folder = tmp_path_factory.mktemp(f"annotate_{name}_{swap}")
    model = onnx.load(ZOO / f"{name}.onnx")
    model.ir_version = ir_version or model.ir_version
    onnx.save(model, folder / "model.onnx")
    return optimize(
        folder / "model.onnx",
        budget=budget,
        budget_of="live",
        swap=swap,
        resident="device",
        order=order,
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
        time_limit_s=3.0,
        verify=False,
    )


def written(done: OptimizeResult) -> onnx.ModelProto:
    assert done.output_path is not None
    return onnx.load(done.output_path)


def facts(node: onnx.NodeProto) -> dict[str, str]:
    return {
        p.key.removeprefix(PREFIX): p.value for p in node.metadata_props if p.key.startswith(PREFIX)
    }


def marked(node: onnx.NodeProto) -> str:
    """The role in the attribute that every added node has."""
    text = next((a.s.decode() for a in node.attribute if a.name == "__planner"), "")
    return text.split(":")[0].replace("original", "")


def test_every_added_node_says_what_it_is_for(done):
    model = written(done)
    originals = {n.name: n for n in model.graph.node if not marked(n)}
    sizes = {t.name: t.bytes for t in done.after.graph.tensors}
    steps = [done.after.graph.operations[op].name for op in done.after.timeline.order]
    for node in model.graph.node:
        said = facts(node)
        assert said.get("role", "") == marked(node)
        if not marked(node):
            continue
        assert steps[int(said["step"])] == node.name
        if said["role"] == "recompute":
            assert originals[said["recomputes"]].op_type == node.op_type
        elif said["role"] in ("swap-out", "swap-in"):
            assert int(said["bytes"]) == sizes[said["tensor"]]
            assert said["why"]


def test_every_decision_is_at_the_producer_and_at_the_node_that_brings_the_tensor_back(done):
    model = written(done)
    steps = [done.after.graph.operations[op].name for op in done.after.timeline.order]
    nodes = {n.name: n for n in model.graph.node}
    makes = {v: n for n in model.graph.node for v in n.output}
    assert done.plan.decisions
    for decision in done.plan.decisions:
        told = [v for k, v in facts(makes[decision.tensor]).items() if k.startswith("decision")]
        span = f"from step {decision.start} to step {decision.end},"
        assert any(t.startswith(f"{decision.tensor} (") and span in t for t in told)
        back = facts(nodes[steps[decision.end]])
        assert back["role"] == {"recompute": "recompute", "swap": "swap-in"}[decision.action]
        assert decision.tensor in back["tensor"].split(", ")
        assert decision.why in [v for k, v in back.items() if k.startswith("why")]
    told = sum(k.startswith("decision") for n in model.graph.node for k in facts(n))
    assert told == len(done.plan.decisions)


def test_stock_readers_take_it(done):
    assert done.output_path is not None
    before = onnx.load(done.model_path)
    assert written(done).ir_version == before.ir_version
    ort.InferenceSession(done.output_path, providers=["CPUExecutionProvider"])


def test_apply_makes_the_same_file(done, tmp_path):
    assert done.plan_path is not None and done.output_path is not None
    again = apply(done.model_path, done.plan_path, output=tmp_path / "again.onnx")
    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (again, done.output_path)]
    assert digests[0] == digests[1]
