"""A model that planner wrote, copies in it, is a model like any other: read, planned again and run."""

from __future__ import annotations

from pathlib import Path

from planner import api
from planner.graph.model import Role

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def test_a_plan_with_swaps_is_planned_again(tmp_path: Path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    first = api.optimize(
        ZOO / "mlp_adamw.onnx",
        budget="75%",
        output=once,
        swap="auto",
        resident="device",
        time_limit_s=1.0,
        verify=False,
    )
    assert first.plan.planned.swapped_tensors > 0
    second = api.optimize(once, budget="98%", output=twice, time_limit_s=1.0)
    assert second.verification is not None and second.verification.passed
    assert second.plan.baseline.peak_bytes == first.plan.planned.peak_bytes
    assert second.plan.planned.peak_bytes <= 0.98 * second.plan.baseline.peak_bytes
    numbers = [
        str((op.attributes or {})["__planner"])
        for op in second.after.graph.operations
        if op.role is not Role.ORIGINAL
    ]
    assert len(numbers) == len(set(numbers))  # none merged with what was there


def test_nothing_left_to_do_says_so(tmp_path: Path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    api.optimize(
        ZOO / "mlp_adamw.onnx",
        budget="75%",
        output=once,
        swap="auto",
        resident="device",
        time_limit_s=1.0,
        verify=False,
    )
    again = api.optimize(
        once,
        budget="100%",
        budget_of="live",
        output=twice,
        time_limit_s=1.0,
        verify=False,
    )
    assert again.plan.unchanged
    assert twice.read_bytes() == once.read_bytes()
