"""Nodes of inlined functions run in the order in which ONNX Runtime inlines: the last call first."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx
import pytest
from onnx import parser

from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.timelines import full_timeline
from planner.request import Request
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.memcheck import measured
from planner.runtime.options import Opening
from planner.runtime.profiled import profile


def calls(sizes: tuple[int, ...]) -> onnx.ModelProto:
    """One call of a function for each size; what it holds meanwhile is twice its output."""
    inputs = ", ".join(f"float[{size}, 1] x{i}" for i, size in enumerate(sizes))
    outputs = ", ".join(f"float[{size}, 1] y{i}" for i, size in enumerate(sizes))
    body = "\n".join(f"y{i} = my.Wide(x{i})" for i in range(len(sizes)))
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17, "my" : 1]>
        g ({inputs}) => ({outputs}) {{ {body} }}
        <domain: "my", opset_import: ["" : 17]>
        Wide (x) => (y) {{
            r = Constant<value_ints: ints = [1, 2]>()
            s = Tile(x, r)
            y = ReduceMax<axes: ints = [1], keepdims: int = 1>(s)
        }}"""
    )


@pytest.mark.parametrize("ort_optimize", [True, False])
@pytest.mark.parametrize("sizes", list(itertools.permutations((64, 256, 1024))), ids=str)
def test_live_bytes_are_predicted_node_by_node(
    sizes: tuple[int, ...], ort_optimize: bool, tmp_path: Path
) -> None:
    path = tmp_path / "calls.onnx"
    onnx.save(calls(sizes), path)
    prepared = prepare(Request(model=path, ort_optimize=ort_optimize))
    level = "all" if ort_optimize else "disabled"
    feeds, _ = make_inputs(path)
    opening = Opening(memory="recommended", level=level, threads=1)
    runs = profile(path, feeds, opening)
    check = measured(
        runs,
        prepared.baseline.graph,
        prepared.baseline.order,
        model="",
        opening=opening,
    )
    assert check.live_bytes == check.predicted_live_bytes
    assert not check.worst


def test_the_peak_as_it_is_is_that_of_the_worst_order_that_it_may_run_in(tmp_path: Path) -> None:
    path = tmp_path / "calls.onnx"
    onnx.save(calls((1024, 64, 256)), path)
    prepared = prepare(Request(model=path))
    peaks = [
        full_timeline(prepared.baseline.graph, order, prepared.target).peak_bytes
        for order in (prepared.baseline.order, *prepared.baseline.others)
    ]
    assert len(set(prepared.baseline.others)) == len(prepared.baseline.others) >= 4
    assert prepared.baseline.order not in prepared.baseline.others
    assert prepared.baseline.worst_peak_bytes == max(peaks) > min(peaks)
