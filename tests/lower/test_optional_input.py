"""An input that may be left out: what default sessions hold then, and what stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.errors import UsageError
from planner.graph.schedule import default_order
from planner.lower.optional_input import (
    has_optional_input,
    why_none_optional,
    with_optional_input,
)
from planner.onnxio.load import load_model, value_types
from planner.pipeline.prepare.graphs import analysed_graph
from planner.pipeline.prepare.prepared import prepare
from planner.request import Levers, Request
from planner.results import OptimizeResult
from planner.results.verification import MemoryCheck
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.arena import DEFAULT, forecast, simulate
from planner.runtime.options import Opening
from planner.runtime.profiled import Profiled
from tests.runtime.support import save

ZOO = Path(__file__).parents[2] / "models" / "zoo"
MLP = ZOO / "mlp_adamw.onnx"


def held_and_outputs(path: Path, feeds: dict[str, np.ndarray]) -> tuple[list[int], list[bytes]]:
    """What the arena held in each of three runs with default options, and the first run's outputs."""
    kept: list[bytes] = []
    with Profiled(path, Opening(threads=1)) as opened:
        runs = opened.profile(
            feeds,
            runs=3,
            on_outputs=lambda _, arrays: kept.extend(a.tobytes() for a in arrays),
        )
    return [max(event.held or 0 for event in run) for run in runs], kept


@pytest.mark.parametrize("name", ["gpt", "mlp_adamw"])
def test_a_default_session_holds_no_block_beside_the_first_run(name: str, tmp_path: Path) -> None:
    source = ZOO / f"{name}.onnx"
    feeds, _ = make_inputs(source)
    loaded = load_model(source)
    model, _, changed = with_optional_input(loaded.model, value_types(loaded.model, {}))
    path, graph = save(model, tmp_path / "m.onnx")
    plain, _ = save(loaded.model, tmp_path / "plain.onnx")
    before, numbers = held_and_outputs(plain, feeds)
    after, same = held_and_outputs(path, feeds)
    assert same == numbers
    assert before[2] > before[0] if name == "gpt" else before[2] >= before[0]
    assert after[2] == after[0] <= before[0]
    assert not graph.pattern and changed in feeds
    first, second = simulate(graph, default_order(graph), DEFAULT, threads=1)
    assert max(second.held) == max(first.held)


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> tuple[OptimizeResult, Path]:
    folder = tmp_path_factory.mktemp("lean")
    result = api.optimize(
        MLP,
        budget="75%",
        swap="none",
        pattern=False,
        calibrate=False,
        time_limit_s=0.5,
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        verify="thorough",
    )
    return result, folder


def of(result: OptimizeResult, model: str, options: str) -> MemoryCheck:
    assert result.verification is not None
    checks = (c for c in result.verification.memory if (c.model, c.options) == (model, options))
    return next(checks)


def test_a_plan_is_verified_and_held_bytes_are_as_predicted(
    lean: tuple[OptimizeResult, Path],
) -> None:
    result, _ = lean
    verification = result.verification
    assert verification is not None and verification.passed
    check = of(result, "rewritten", "default")
    assert check.held_bytes == check.predicted_held_bytes
    assert check.held_bytes is not None
    assert check.held_bytes < (of(result, "original", "default").held_bytes or 0)
    assert not result.plan.pattern
    assert any("--no-pattern" in text for text in result.plan.assumptions)


def test_the_file_is_made_again_from_its_plan(
    lean: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    _, folder = lean
    made = api.apply(MLP, folder / "plan.json", output=tmp_path / "again.onnx")
    assert made.read_bytes() == (folder / "planned.onnx").read_bytes()


def test_callers_feed_what_they_fed(lean: tuple[OptimizeResult, Path]) -> None:
    _, folder = lean
    feeds, _ = make_inputs(MLP)
    sessions = [ort.InferenceSession(p) for p in (MLP, folder / "planned.onnx")]
    before, after = ([(i.name, i.shape, i.type) for i in s.get_inputs()] for s in sessions)
    assert [i[:2] for i in before] == [i[:2] for i in after]
    changed = [a for b, a in zip(before, after, strict=True) if b != a]
    ((name, shape, kind),) = changed
    assert shape == [10] and kind == "optional(tensor(float))"
    with pytest.raises(Exception, match="Unexpected input data type"):
        sessions[1].run(None, {**feeds, name: np.zeros(10, np.int64)})
    with pytest.raises(Exception, match="invalid dimensions"):
        sessions[1].run(None, {**feeds, name: np.zeros(1, np.float32)})
    bound = sessions[1].io_binding()
    for name, array in feeds.items():
        bound.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for output in sessions[1].get_outputs():
        bound.bind_output(output.name)
    sessions[1].run_with_iobinding(bound)
    for ours, theirs in zip(bound.copy_outputs_to_cpu(), sessions[0].run(None, feeds), strict=True):
        assert ours.tobytes() == np.asarray(theirs).tobytes()


def test_a_file_that_has_such_an_input_is_planned_as_it_is(
    lean: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    path = tmp_path / "again.onnx"
    path.write_bytes((lean[1] / "planned.onnx").read_bytes())
    for pattern in (True, False):
        request = Request(model=path, levers=Levers(pattern=pattern))
        prepared = prepare(request)
        gets = [op for op in prepared.graph.operations if op.op_type == "OptionalGetElement"]
        assert len(gets) == 1 and gets[0].is_view and not prepared.graph.pattern
        assert forecast(prepared.graph, prepared.order, "default").held_bytes > 0


def small(opset: int, *, within: bool = False) -> onnx.ModelProto:
    """y = relu(x), or an If that reads x in its bodies."""
    x, y = (h.make_tensor_value_info(n, T.FLOAT, [4]) for n in "xy")
    inputs, nodes = [x], [h.make_node("Relu", ["x"], ["y"], name="relu")]
    if within:
        inputs = [x, h.make_tensor_value_info("c", T.BOOL, [1])]
        bodies = {
            key: h.make_graph(
                [h.make_node(kind, ["x"], [f"{key}_y"], name=f"{key}_node")],
                key,
                [],
                [h.make_tensor_value_info(f"{key}_y", T.FLOAT, [4])],
            )
            for key, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
        }
        nodes = [h.make_node("If", ["c"], ["y"], name="if", **bodies)]
    graph = h.make_graph(nodes, "g", inputs, [y])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def test_what_bodies_read_stays_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small(17, within=True), path)
    loaded = load_model(path)
    model, types, name = with_optional_input(loaded.model, value_types(loaded.model, {}))
    assert name == "c" and has_optional_input(model) and not has_optional_input(loaded.model)
    assert "c__given" in types
    ir.save(model, path)
    onnx.checker.check_model(str(path))
    graph = analysed_graph(load_model(path).model, {})
    assert not graph.pattern
    (y,) = ort.InferenceSession(path).run(
        None, {"x": np.float32([-1, 0, 1, 2]), "c": np.array([False])}
    )
    assert np.asarray(y).tolist() == [1, 0, -1, -2]


def test_what_cannot_be_left_out_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small(14), path)
    assert "operator set 15" in (why_none_optional(load_model(path).model) or "")
    with pytest.raises(UsageError, match="--no-pattern: it needs operator set 15"):
        api.optimize(path, budget="100%", pattern=False, dry_run=True)
    scalar = small(17)
    for value in (scalar.graph.input[0], scalar.graph.output[0]):
        del value.type.tensor_type.shape.dim[:]
    onnx.save(scalar, path)
    assert "no input with dims" in (why_none_optional(load_model(path).model) or "")


@pytest.mark.usefixtures("webgpu_device")
def test_a_device_without_a_kernel_for_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small(17), path)
    with pytest.raises(UsageError, match="has no kernel for OptionalGetElement"):
        api.optimize(path, budget="100%", pattern=False, device="webgpu", dry_run=True)
