"""Kernels' workspace as predicted, against what ONNX Runtime itself counted, node by node.

`session.collect_node_memory_stats_to_file` has a session write a row for each node: what it read of the
graph, of initializers, its outputs as they were allocated one by one, and what its kernel took besides.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from planner.graph.model import TrainingGraph
from planner.onnxio.load import load_model
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.workspace import workspace
from planner.runtime.optimizers.normalize import normalize
from tests.runtime.support import model_of, op, save, tensor

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def counted(path: Path, feeds: Mapping[str, np.ndarray], threads: int) -> dict[str, int]:
    """Temporary bytes by node, as a session counted them. A name is followed by a digest."""
    told = path.with_suffix(".csv")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(told))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, dict(feeds))
    del session  # it writes the file as it ends
    with told.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][0] == "#name" and rows[0][4] == "total_temp_allocations"
    return {row[0].rpartition("_")[0]: int(row[4]) for row in rows[1:]}


def predicted(graph: TrainingGraph, threads: int) -> dict[str, int]:
    found = workspace(graph, threads=threads)
    return {op.name: found[op.id].bytes if op.id in found else 0 for op in graph.operations}


@pytest.mark.parametrize("name", ["gpt", "resnet18", "mlp_adamw"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_kernel_of_a_sample_takes_what_is_predicted(
    name: str, threads: int, tmp_path: Path
) -> None:
    source = ZOO / f"{name}.onnx"
    path, graph = save(normalize(load_model(source)), tmp_path / "m.onnx")
    inputs, _ = make_inputs(source)
    assert counted(path, inputs, threads) == predicted(graph, threads)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    ("images", "group", "channels", "filters", "side"),
    [(1, 1, 4, 8, 16), (1, 1, 16, 16, 33), (3, 1, 4, 8, 16), (1, 2, 4, 8, 16), (8, 4, 4, 8, 8)],
)
def test_a_convolution_takes_a_buffer_for_each_thread_that_has_an_image(
    images: int, group: int, channels: int, filters: int, side: int, threads: int, tmp_path: Path
) -> None:
    x = tensor("x", images, channels, side, side)
    weight = tensor("w", filters, channels // group, 3, 3)
    shape = (images, filters, side, side)
    conv = op("conv", "Conv", x, weight, shape=shape, group=group, pads=[1, 1, 1, 1])
    model = model_of([x, weight], [conv.outputs[0]], [conv])
    path, graph = save(model, tmp_path / "m.onnx")
    feeds = {
        str(v.name): np.zeros([int(d) for d in ir.Shape(v.shape or ())], np.float32)
        for v in model.graph.inputs
    }
    found = counted(path, feeds, threads)
    assert found == predicted(graph, threads)
    assert found["conv"] % 65536 == 0 and found["conv"] <= threads * 65536
