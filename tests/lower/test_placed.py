"""Any plan of a graph with some nodes on the CPU, lowered for a device: what crosses is copied, by the
copies that were planned, in the planned order, with the same bits. ONNX Runtime's CPU provider has
kernels for the copies, and so runs the very file (tests/runtime/device runs it on a device)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from planner.graph.model import Placement, Role, TrainingGraph
from planner.graph.rules import COPIES
from planner.graph.schedule import default_order
from planner.lower.rewrite import Rewritten, Sessions, rewrite
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem
from planner.runtime.device.borders import with_borders
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from planner.search.evaluate import Evaluator
from planner.targets.cuda import CUDA
from planner.targets.webgpu import WEBGPU
from tests.graphs import LEVELS, decisions_for, feeds_for, formulation_of, onnx_graphs, run_on_ort
from tests.lower.test_rewrite import SLOW


def lowered(
    proto: onnx.ModelProto,
    folder: Path,
    on_cpu: Callable[[list[str]], set[str]],
    decide: Callable[[Problem], Decisions],
) -> tuple[TrainingGraph, Rewritten]:
    """(the graph of the rewritten file, the file), for WebGPU."""
    path = folder / "model.onnx"
    onnx.save(proto, path)
    loaded = load_model(path)
    plain = normalize(loaded)
    here = on_cpu([str(node.name) for node in plain.graph])
    on_device = {str(node.name): node.name not in here for node in plain.graph}
    model = with_borders(
        plain, on_device, lambda op, *_: (1,) if op == "Reshape" else (), lambda *_: ()
    )
    placement = Placement(on_cpu=frozenset(here), inplace=WEBGPU.inplace)
    graph = analysed_graph(model, {}, placement=placement)
    form = formulation_of(graph)
    actions = Evaluator(form.problem).schedule(decide(form.problem))

    def lower(pinned: frozenset[str]) -> Rewritten:
        return rewrite(model, graph, form, actions, pinned=pinned, sessions=Sessions(target=WEBGPU))

    rewritten = pin_against_fusion(lower, loaded)
    after = Placement(on_cpu=placement.on_cpu | rewritten.on_cpu, inplace=placement.inplace)
    return analysed_graph(rewritten.model, {}, placement=after), rewritten


def crossings(graph: TrainingGraph) -> list[str]:
    """Nodes that read from the other side with no copy in between; shapes of views stay on the host."""
    found: list[str] = []
    for op in graph.operations:
        inputs = [graph.tensors[t] for t in op.inputs]
        if op.op_type in ("Reshape", "GatherND"):
            inputs = inputs[:1]
        wants_host = op.on_cpu or op.op_type == "MemcpyFromHost"
        if any(t.on_host != wants_host for t in inputs if not t.is_persistent):
            found.append(op.name)
    return found


@SLOW
@given(proto=onnx_graphs(), data=st.data())
def test_copies_order_and_bits(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("placed")
    graph, rewritten = lowered(
        proto,
        folder,
        lambda names: data.draw(st.sets(st.sampled_from(names), max_size=4)),
        lambda problem: data.draw(decisions_for(problem)),
    )
    assert crossings(graph) == []
    for op in graph.operations:
        if op.role is Role.ANCHOR and op.op_type not in COPIES:
            assert op.on_cpu == graph.tensors[op.inputs[0]].on_host == (op.op_type == "Size")
    order = tuple(graph.operations[op].name for op in default_order(graph))
    assert order == rewritten.planned_order
    path = folder / "rewritten.onnx"
    ir.save(rewritten.model, path)
    _, expected = run_on_ort(str(folder / "model.onnx"), feeds_for(), folder)
    for level in LEVELS:
        ran, results = run_on_ort(str(path), feeds_for(), folder, level)
        assert tuple(ran) == rewritten.planned_order, level
        for name, value in expected.items():
            assert results[name].tobytes() == value.tobytes(), (level, name)


def chain() -> onnx.ModelProto:
    """x -> a -> b -> c -> y, where y reads a again, and s, made on the CPU, reads a too."""
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("Sign", ["a"], ["s"], "s"),
        h.make_node("MatMul", ["a", "w"], ["b"], "b"),
        h.make_node("MatMul", ["b", "w"], ["c"], "c"),
        h.make_node("Mul", ["c", "a"], ["d"], "d"),
        h.make_node("Add", ["d", "s"], ["y"], "y"),
    ]
    values = [h.make_tensor_value_info(v, T.FLOAT, [8, 8]) for v in ("x", "w", "y")]
    graph = h.make_graph(nodes, "chain", values[:2], values[2:])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


def swap_a(problem: Problem) -> Decisions:
    """Tensor a leaves for the host between b and d."""
    names = [t.name for t in problem.tensors]
    ops = [op.name for op in problem.ops]
    uses = problem.tensors[names.index("a")].uses
    gap = 1 + [ops[u] for u in uses].index("d") - 1
    return Decisions(gaps={(names.index("a"), gap): Choice.SWAP})


def test_a_swap_uses_the_copy_that_a_reader_on_the_cpu_needs(tmp_path: Path) -> None:
    graph, _ = lowered(chain(), tmp_path, lambda _: {"s"}, swap_a)
    copies = [op for op in graph.operations if op.op_type in COPIES]
    assert sum(op.op_type == "MemcpyToHost" for op in copies) == 1
    assert sum(op.role is Role.SWAP_IN for op in copies) == 1
    (out,) = (op for op in copies if op.op_type == "MemcpyToHost")
    (back,) = (op for op in copies if op.role is Role.SWAP_IN)
    assert back.inputs == out.outputs


def test_without_such_a_reader_a_swap_makes_its_own_copy(tmp_path: Path) -> None:
    graph, _ = lowered(chain(), tmp_path, lambda _: set(), swap_a)
    roles = [op.role for op in graph.operations if op.op_type in COPIES]
    assert roles.count(Role.SWAP_OUT) == 1 and roles.count(Role.SWAP_IN) == 1
    assert any(op.role is Role.ANCHOR for op in graph.operations)


def test_a_half_copy_is_anchored_where_cuda_has_no_kernel(tmp_path: Path) -> None:
    """`Size` of it would run on CUDA, and bring the copy back to the device."""
    proto = chain()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = T.FLOAT16
    proto.opset_import[0].version = 18
    model = ir.from_proto(proto)
    placement = Placement(on_cpu=frozenset())
    before = analysed_graph(model, {}, placement=placement)
    form = formulation_of(before)
    actions = Evaluator(form.problem).schedule(swap_a(form.problem))
    rewritten = rewrite(model, before, form, actions, sessions=Sessions(target=CUDA))
    graph = analysed_graph(rewritten.model, {}, placement=Placement(on_cpu=rewritten.on_cpu))
    maker = {t: op for op in graph.operations for t in op.outputs}
    anchored = {
        op.op_type: maker[op.inputs[0]].op_type for op in graph.operations if op.role is Role.ANCHOR
    }
    assert anchored["OptionalHasElement"] == "MemcpyToHost"
    path = tmp_path / "rewritten.onnx"
    ir.save(rewritten.model, path)
    feeds = {name: array.astype(np.float16) for name, array in feeds_for().items()}
    for level in LEVELS:  # the casts around the CPU's kernels move its order; nothing is removed
        ran, _ = run_on_ort(str(path), feeds, tmp_path, level)
        assert set(rewritten.planned_order) <= set(ran)
