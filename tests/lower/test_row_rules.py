"""Each way in which an operator is split: chunks, put together by ONNX Runtime, are the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.graph.operators.table import rows
from planner.lower.chunks.regions import Ground, Region
from planner.lower.chunks.rows import Way
from planner.lower.chunks.split import with_split
from planner.onnxio.load import value_types
from planner.pipeline.prepare.graphs import typed_graph
from planner.plan.planfile import RegionSeed
from planner.runtime.optimizers.shapes import runtime_types
from tests.lower.row_cases import CASES, Case

SOME = settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_every_operator_with_a_rule_has_a_case() -> None:
    with_rule = {(domain, name) for domain, name, row in rows() if row.rows is not None}
    assert set(CASES) == with_rule


def ground_of(proto: onnx.ModelProto) -> Ground:
    model = ir.from_proto(proto)
    types = value_types(model, {}, fallback=runtime_types)
    return Ground(model, types, typed_graph(model, types))


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(a) for a in session.run(None, dict(feeds))]


def region_of(ground: Ground, way: Way, chunks: int) -> Region:
    """The one node, in chunks."""
    sides = [
        *zip(ground.read("node"), way.inputs, strict=True),
        *zip(ground.made("node"), way.outputs, strict=True),
    ]
    cut = [(t, axis) for t, axis in sides if t and axis is not None]
    units = math.gcd(*(ground.types[t].shape[axis] for t, axis in cut))
    seed = RegionSeed(tensor=cut[0][0], axis=cut[0][1], chunks=min(chunks, units), large_bytes=1)
    cuts = {
        t: axis
        for t, axis in zip(ground.made("node"), way.outputs, strict=True)
        if axis is not None
    }
    return Region(seed=seed, ways={"node": way}, cuts=cuts, units=units)


def check(case: Case, chunks: int) -> int:
    """Compare each way of one node; returns how many there are."""
    proto = case.model()
    whole = run(proto, case.feeds)
    ground = ground_of(proto)
    count = 0
    for way in (cut.way for cut in ground.cuts("node")):
        region = region_of(ground, way, chunks)
        if region.seed.chunks < 2:
            continue
        count += 1
        made = with_split(ground, [region], ["node"])
        assert set(made.nodes.values()) <= {"node", *ground.types}
        parts = run(ir.to_proto(made.model), case.feeds)
        for one, other in zip(whole, parts, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            if way.exact:
                np.testing.assert_array_equal(one, other, err_msg=str(way))
            else:
                scale = np.abs(one[np.isfinite(one)]).max(initial=1e-30)
                np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5 * scale)
    return count


@pytest.mark.parametrize(("domain", "op_type"), sorted(CASES))
def test_chunks_put_together_are_the_whole(domain: str, op_type: str) -> None:
    found = 0

    @SOME
    @given(data=st.data())
    def any_shape(data: st.DataObject) -> None:
        nonlocal found
        draw = data.draw
        case = CASES[domain, op_type](draw)
        found += check(case, draw(st.sampled_from([2, 3, 4])))

    any_shape()
    assert found
