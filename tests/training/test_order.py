"""The order in which the training build runs a graph: Shape and Size right behind what they read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from planner.graph.schedule import default_order, priority_order
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from tests.training.conftest import Run

GRAPHS, NODES, SIDE = 12, 24, 4
EXECUTED = """
import json, sys
import numpy as np
from pathlib import Path
from planner.runtime.options import Opening
from planner.runtime.profiled import profile
found = {}
for path in sys.argv[1:]:
    for order in ("default", "priority"):
        feeds = {"x": np.ones((4, 4), np.float32)}
        (run,) = profile(Path(path), feeds, Opening(level="disabled", order=order, threads=1))
        found[f"{order} {path}"] = [event.name for event in run]
print(json.dumps(found))
"""


def _random(seed: int) -> onnx.ModelProto:
    """Sums of earlier values, with Shape and Size nodes of any of them, read or not."""
    random = np.random.default_rng(seed)
    values, metadata, nodes = ["x"], [], []
    for i in range(NODES):
        source = str(random.choice(values[-5:]))
        if random.random() < 0.4:
            kind = str(random.choice(["Shape", "Size"]))
            nodes.append(h.make_node(kind, [source], [f"m{i}"], name=f"n{i}"))
            metadata.append((kind, f"m{i}"))
            continue
        nodes.append(h.make_node("Add", [source, str(random.choice(values))], [f"v{i}"], f"n{i}"))
        values.append(f"v{i}")
        if metadata and metadata[-1][0] == "Shape" and random.random() < 0.5:
            shape = metadata.pop()[1]
            nodes.append(h.make_node("Expand", [values[-1], shape], [f"e{i}"], f"n{i}e"))
            values.append(f"e{i}")
    outputs = [h.make_tensor_value_info(v, T.FLOAT, [SIDE, SIDE]) for v in values[-2:]]
    x = h.make_tensor_value_info("x", T.FLOAT, [SIDE, SIDE])
    graph = h.make_graph(nodes, "random", [x], outputs)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def test_the_order_is_the_predicted_one(training_run: Run, tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.onnx" for seed in range(GRAPHS)]
    for seed, path in enumerate(paths):
        onnx.save(_random(seed), path)
    executed = json.loads(training_run("-c", EXECUTED, *paths).stdout.splitlines()[-1])
    moved = 0
    for path in paths:
        stock = analysed_graph(load_model(path).model, {})
        graph = replace(stock, shapes_follow=True)
        for order, predict in (("default", default_order), ("priority", priority_order)):
            names = [graph.operations[op].name for op in predict(graph)]
            assert names == executed[f"{order} {path}"]
        moved += default_order(graph) != default_order(stock)
    assert moved  # the stock build's order is another
