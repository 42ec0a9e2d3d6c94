"""Arithmetic and bytes of operators, times of the roofline, times from a profile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
import pytest

from planner.cost.hardware import hardware_names, load_hardware
from planner.cost.measured import MeasuredTimes, durations_from_profile
from planner.cost.model import durations_us
from planner.cost.work import Unit, work_of
from planner.errors import ModelError, UsageError
from planner.graph.model import (
    Category,
    Operation,
    OpId,
    Tensor,
    TensorId,
    TrainingGraph,
)
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.op_times import op_times, small_times
from planner.runtime.optimizers.normalize import normalize
from planner.runtime.options import Opening

Shape = tuple[int, ...]
ZOO = Path(__file__).parents[2] / "models" / "zoo"


def graph_of(
    op_type: str,
    inputs: list[Shape],
    outputs: list[Shape],
    attributes: Mapping[str, object] | None = None,
    *,
    dtype: str = "float",
    is_view: bool = False,
) -> TrainingGraph:
    """A graph of one operation."""
    size = {"float": 4, "float16": 2}[dtype]
    tensors = []
    for index, shape in enumerate([*inputs, *outputs]):
        count = 1
        for dim in shape:
            count *= dim
        tensors.append(
            Tensor(
                id=TensorId(index),
                name=f"t{index}",
                dtype=dtype,
                shape=shape,
                bytes=size * count,
                category=Category.ACTIVATION,
                buffer=TensorId(index),
                producer=None if index < len(inputs) else OpId(0),
                consumers=(OpId(0),) if index < len(inputs) else (),
            )
        )
    ids = [t.id for t in tensors]
    operation = Operation(
        id=OpId(0),
        name="op",
        op_type=op_type,
        domain="com.microsoft" if op_type.startswith("Fused") else "",
        inputs=tuple(ids[: len(inputs)]),
        outputs=tuple(ids[len(inputs) :]),
        is_view=is_view,
        attributes=attributes,
    )
    return TrainingGraph(
        name="one",
        operations=(operation,),
        tensors=tuple(tensors),
        inputs=tuple(ids[: len(inputs)]),
        outputs=tuple(ids[len(inputs) :]),
    )


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attributes", "flops"),
    [
        ("MatMul", [(2, 5, 7), (7, 3)], [(2, 5, 3)], {}, 2 * 2 * 5 * 7 * 3),
        ("MatMul", [(7,), (7, 3)], [(3,)], {}, 2 * 7 * 3),
        ("Gemm", [(7, 5), (7, 3), (3,)], [(5, 3)], {"transA": 1}, 2 * 5 * 7 * 3),
        ("FusedGemm", [(5, 7), (7, 3)], [(5, 3)], {}, 2 * 5 * 7 * 3),
        ("FusedMatMul", [(2, 7, 5), (2, 7, 3)], [(2, 5, 3)], {"transA": 1}, 2 * 2 * 5 * 7 * 3),
        ("FusedMatMul", [(7, 2, 5), (2, 7, 3)], [(2, 5, 3)], {"transA": 1, "transBatchA": 1}, 420),
        ("Conv", [(2, 8, 9, 9), (16, 4, 3, 3)], [(2, 16, 9, 9)], {}, 2 * 2 * 16 * 81 * 4 * 9),
        ("ConvTranspose", [(1, 8, 5, 5), (8, 4, 3, 3)], [(1, 4, 7, 7)], {}, 2 * 200 * 36),
        ("Einsum", [(5, 7), (7, 3)], [(5, 3)], {"equation": "ij,jk->ik"}, 2 * 5 * 7 * 3),
        ("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], {"kernel_shape": [2, 2]}, 4 * 32),
        ("Add", [(4, 1), (1, 6)], [(4, 6)], {}, 24),
        ("Exp", [(24,)], [(24,)], {}, 240),
        ("ReduceSum", [(4, 6)], [(4,)], {}, 24),
        ("Transpose", [(4, 6)], [(6, 4)], {}, 0),
    ],
)
def test_arithmetic_follows_the_operators_definition(
    op_type: str,
    inputs: list[Shape],
    outputs: list[Shape],
    attributes: dict[str, object],
    flops: int,
) -> None:
    graph = graph_of(op_type, inputs, outputs, attributes)
    work = work_of(graph, graph.operations[0])
    assert (work.flops, work.known) == (flops, True)


def test_a_gather_reads_what_it_writes_and_not_the_table() -> None:
    graph = graph_of("Gather", [(50_000, 64), (8,)], [(8, 64)])
    assert work_of(graph, graph.operations[0]).bytes == 2 * 8 * 64 * 4


def test_an_unknown_operator_counts_its_bytes_and_is_named() -> None:
    graph = graph_of("Frobnicate", [(100,)], [(50,)])
    work = work_of(graph, graph.operations[0])
    assert (work.known, work.bytes) == (False, 600)
    (duration,), assumptions = durations_us(graph, load_hardware("cpu"))
    assert duration > 0
    assert any("no rule for the arithmetic of Frobnicate (1)" in a for a in assumptions)


def test_a_view_costs_nothing_and_a_copy_its_bytes_over_the_link() -> None:
    hardware = load_hardware("a100-80gb")
    view = graph_of("Reshape", [(1000, 1000)], [(1_000_000,)], is_view=True)
    assert durations_us(view, hardware)[0] == (0.0,)
    copy = graph_of("MemcpyToHost", [(1000, 1000)], [(1000, 1000)])
    assert work_of(copy, copy.operations[0]).unit is Unit.COPY_OUT
    expected = 4e6 / hardware.copy_to_host_bytes_per_s * 1e6 + hardware.op_overhead_us
    assert durations_us(copy, hardware)[0][0] == pytest.approx(expected)


def test_large_products_are_bound_by_arithmetic_and_additions_by_memory() -> None:
    hardware = load_hardware("h100")
    n = 8192
    product = graph_of("MatMul", [(n, n), (n, n)], [(n, n)], dtype="float16")
    reachable = hardware.matrix_flops_per_s["fp16"] * hardware.compute_efficiency
    expected = 2 * n**3 / reachable * 1e6 + hardware.op_overhead_us
    assert durations_us(product, hardware)[0][0] == pytest.approx(expected)
    addition = graph_of("Add", [(n, n), (n, n)], [(n, n)])
    reachable = hardware.memory_bytes_per_s * hardware.memory_efficiency
    expected = 3 * 4 * n**2 / reachable * 1e6 + hardware.op_overhead_us
    assert durations_us(addition, hardware)[0][0] == pytest.approx(expected)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingGraph]:
    path = tmp_path_factory.mktemp("gpt") / "gpt.onnx"
    ir.save(normalize(load_model(ZOO / "gpt.onnx")), path)
    return path, analysed_graph(load_model(path).model, {})


@pytest.mark.parametrize("name", hardware_names())
def test_every_operation_of_a_training_graph_has_a_rule(
    name: str, gpt: tuple[Path, TrainingGraph]
) -> None:
    durations, assumptions = durations_us(gpt[1], load_hardware(name))
    assert len(durations) == len(gpt[1].operations)
    assert all(d > 0 or op.is_view for d, op in zip(durations, gpt[1].operations, strict=True))
    assert len(assumptions) == 1  # nothing was unknown
    assert durations == durations_us(gpt[1], load_hardware(name))[0]


def test_a_short_run_measures_every_operation(gpt: tuple[Path, TrainingGraph]) -> None:
    path, graph = gpt
    inputs, _ = make_inputs(ZOO / "gpt.onnx")
    found = op_times(path, inputs, Opening(level="extended"), nodes=len(graph.operations))
    assert {op.name for op in graph.operations} <= found.kernel_us.keys()
    assert found.runs >= 3
    assert min(found.kernel_us.values()) >= 0


@pytest.mark.parametrize("touched_bytes", [0, 7_777_777, 1 << 40])
def test_copies_and_pins_are_measured(touched_bytes: int) -> None:
    times = MeasuredTimes(kernel_us={"op": 1.0}, runs=1)
    found = small_times(times, Opening(level="disabled"), touched_bytes=touched_bytes)
    assert found.kernel_us == times.kernel_us
    # between a slow disk and ten times the fastest memory there is
    assert 1e8 < found.copy_out_bytes_per_s < 1e13
    assert 1e8 < found.copy_in_bytes_per_s < 1e13
    assert 0 < found.pin_us < 1e5


def _event(name: str, start: int, duration: int) -> dict[str, object]:
    return {
        "cat": "Node",
        "name": f"{name}_kernel_time",
        "ts": start,
        "dur": duration,
        "args": {"op_name": "X"},
    }


def test_a_profile_gives_medians_and_the_rest_is_scaled(tmp_path: Path) -> None:
    first = graph_of("Exp", [(1000,)], [(1000,)])
    operation = first.operations[0]
    missing = dataclasses.replace(operation, id=OpId(1), name="other")
    graph = dataclasses.replace(first, operations=(operation, missing))
    path = tmp_path / "p.json"
    runs = [{"cat": "Session", "name": "model_run", "ts": 100 * k, "dur": 90} for k in range(4)]
    # the first run allocates: it does not count
    times = [900, 10, 30, 20]
    path.write_text(
        json.dumps([*runs, *(_event("op", 100 * k + 1, t) for k, t in enumerate(times))])
    )
    durations, notes = durations_from_profile(graph, path, load_hardware("t4"))
    assert durations == (20.0, 20.0)  # equal work, so the scale makes them equal
    assert any("1 operation not in p.json (other)" in note for note in notes)


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    graph = graph_of("Exp", [(1000,)], [(1000,)])
    path = tmp_path / "p.json"
    path.write_text(json.dumps([_event("somebody else", 1, 2)]))
    with pytest.raises(UsageError, match="names none of the model's nodes"):
        durations_from_profile(graph, path)
    path.write_text("{")
    with pytest.raises(ModelError, match="is not a profile"):
        durations_from_profile(graph, path)
