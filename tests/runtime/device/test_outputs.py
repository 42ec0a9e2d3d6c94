"""How outputs of a device are judged: bit for bit, but for what it does not promise itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.choices import Numbers
from planner.graph.model import Placement
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.device.outputs import OutputJudge, is_near, summed_outputs, tolerance
from planner.targets.webgpu import WEBGPU

TARGET = replace(WEBGPU, absolute=1e-5, relative=1e-2)
ONES = np.array([1.0, 100.0, 0.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ([0.0, 0.9, 0.0], True),  # below 1% of 100
        ([0.9, 0.0, 0.0], True),  # relative to the largest element, not to its own
        ([0.0, 1.2, 0.0], False),
        ([0.0, np.nan, 0.0], False),
        ([0.0, np.inf, 0.0], False),
    ],
)
def test_differences_are_measured_by_the_largest_element(change: list[float], near: bool) -> None:
    assert is_near(TARGET, ONES, ONES + np.array(change, dtype=np.float32)) == near


def test_what_is_zero_in_theory_may_be_rounding_but_no_more() -> None:
    zeros = np.zeros(3, dtype=np.float32)
    assert is_near(TARGET, zeros, zeros + np.float32(9e-6))
    assert not is_near(TARGET, zeros, zeros + np.float32(2e-5))


def test_the_same_infinities_and_nans_are_near_and_do_not_widen_the_limit() -> None:
    odd = np.array([np.inf, np.nan, 1.0])
    assert is_near(TARGET, odd, odd.copy())
    assert not is_near(TARGET, odd, np.array([np.inf, np.nan, 1.5]))


def test_types_shapes_and_integers_are_exact() -> None:
    assert not is_near(TARGET, ONES, ONES.astype(np.float64))
    assert not is_near(TARGET, ONES, ONES[:2])
    assert not is_near(TARGET, np.array([100, 1]), np.array([100, 2]))
    assert tolerance(TARGET) == "1e-05 + 0.01 of the largest element"


def judged(
    second: float,
    rewritten: float,
    cpu: float = 1.0,
    summed: bool = False,
    numbers: Numbers = "exact",
):
    """(failures, notes) where the original's first run gives 1."""
    judge = OutputJudge(
        target=TARGET,
        summed=frozenset({"y"} if summed else ()),
        failures=[],
        notes=[],
        numbers=numbers,
    )
    runs = [{"y": np.array([value], dtype=np.float32)} for value in (1.0, second, rewritten, cpu)]
    judge.judge(runs[:2], runs[2], runs[3])
    return judge.failures, judge.notes


def test_other_bits_fail_where_the_original_gives_the_same_twice() -> None:
    assert judged(1.0, 1.0)[0] == []
    (failure,) = judged(1.0, 1.0000001)[0]
    assert "'y' differs from the original's on WebGPU" in failure


def test_rounding_passes_where_the_original_rounds_too_and_nothing_more() -> None:
    failures, notes = judged(1.0000001, 1.0000002)
    assert failures == [] and "1 of 1 outputs of the original differ from run to run" in notes[0]
    assert judged(1.0000001, 1.1)[0]


def test_sums_in_any_order_pass_within_the_tolerance_and_are_said() -> None:
    failures, notes = judged(1.0, 1.0000001, summed=True)
    assert failures == [] and "add in any order" in notes[0]
    assert judged(1.0, 1.1, summed=True)[0]


def test_what_the_device_gets_wrong_itself_is_a_note() -> None:
    failures, notes = judged(1.0, 1.0, cpu=2.0)
    assert failures == [] and "the provider itself differs" in notes[-1]


def test_outputs_behind_a_scatter_that_adds_on_the_device() -> None:
    def graph(reduction: str, on_cpu: set[str]):
        nodes = [
            h.make_node("Neg", ["x"], ["a"], "a"),
            h.make_node(
                "ScatterElements", ["a", "i", "x"], ["s"], "s", axis=0, reduction=reduction
            ),
            h.make_node("Exp", ["s"], ["y"], "y"),
            h.make_node("Exp", ["a"], ["z"], "z"),
        ]
        x, y, z = (h.make_tensor_value_info(n, T.FLOAT, [4, 4]) for n in "xyz")
        i = h.make_tensor_value_info("i", T.INT64, [4, 4])
        made = h.make_graph(nodes, "scatter", [x, i], [y, z])
        model = h.make_model(made, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
        placement = Placement(on_cpu=frozenset(on_cpu))
        found = analysed_graph(ir.from_proto(model), {}, placement=placement)
        return summed_outputs(found, TARGET)

    assert graph("add", set()) == {"y"}
    assert graph("none", set()) == frozenset()
    assert graph("add", {"s"}) == frozenset()


def test_other_bits_pass_where_rounding_or_a_smaller_type_was_asked_for() -> None:
    assert judged(1.0, 1.0001, numbers="rounding")[0] == []
    assert judged(1.0, 1.1, numbers="rounding")[0] != []
    failures, notes = judged(1.0, 1.1, numbers="lossy")
    assert failures == [] and "lossy" in notes[0]
    assert judged(1.0, float("inf"), numbers="lossy")[0] != []
