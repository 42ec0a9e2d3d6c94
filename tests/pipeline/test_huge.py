"""Tensors of more than 2^31 and 2^32 bytes, from the file to the report: planned, and never run."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from planner import analyze, apply, optimize
from planner.pipeline.answer.explain import explain
from planner.pipeline.record.assemble import read_plan
from planner.results import OptimizeResult
from tests.micro.nets import Mlp

SIDE = 40_000
"""A hidden weight is 5.96 GiB, so that its bytes and its elements (1.6e9 of 2^31) are past 32 bits."""

BATCH = 48_000
"""An activation is 7.2 GiB."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mlp = Mlp(loss="counted", update=True, hidden=SIDE, layers=5)
    return mlp.save(tmp_path_factory.mktemp("huge") / "huge.onnx")


def planned(model: Path, folder: Path, device: str, **levers: object) -> OptimizeResult:
    """A plan within a third of the peak, with every file that belongs to it."""
    return optimize(
        model,
        budget="33%",
        dims={"batch": BATCH},
        hardware="a100-80gb",
        device=device,  # pyright: ignore[reportArgumentType]
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        report_path=folder / "report.html",
        trace_path=folder / "trace.json",
        time_limit_s=1.0,
        verify=False,
        **levers,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize(
    ("device", "levers"),
    [
        ("cpu", {}),
        ("cpu", {"resident": "host"}),
        ("cuda", {"swap": "only"}),
        ("cuda", {"micro_batch": 4}),
    ],
)
def test_sizes_past_32_bits_go_through_every_stage(
    device: str, levers: dict[str, object], model: Path, tmp_path: Path
) -> None:
    result = planned(model, tmp_path, device, **levers)
    plan, weight, activation = result.plan, 4 * SIDE * SIDE, 4 * SIDE * BATCH
    assert plan.baseline.peak_bytes > 8 * weight + 4 * activation > 1 << 36
    assert 1 << 34 < plan.planned.peak_bytes <= plan.budget_bytes
    assert plan.planned.peak_bytes == result.after.timeline.peak_bytes
    assert plan.peak is not None
    at_peak = plan.peak.persistent_bytes + sum(r.bytes for r in plan.peak.residents)
    assert at_peak + plan.peak.workspace_bytes == plan.planned.peak_bytes
    assert read_plan(tmp_path / "plan.json") == plan
    assert (tmp_path / "report.html").stat().st_size < 4 << 20
    assert json.loads((tmp_path / "trace.json").read_text())
    rewritten = onnx.load(tmp_path / "planned.onnx")
    assert {i.name for i in rewritten.graph.input} >= {"x", "w1"}
    again = apply(model, tmp_path / "plan.json", output=tmp_path / "again.onnx")
    assert again.read_bytes() == (tmp_path / "planned.onnx").read_bytes()
    said = explain(model, tmp_path / "plan.json", "w1_grad", time_limit_s=1.0)
    assert said.bytes == weight


def test_sizes_past_32_bits_are_analysed(model: Path) -> None:
    found = analyze(model, dims={"batch": BATCH}, hardware="a100-80gb", time_limit_s=1.0)
    assert found.default.timeline.peak_bytes > 1 << 36
    assert found.least_peak_bytes is not None
    assert found.least_peak_bound_bytes <= found.least_peak_bytes
    assert {t.name: t.bytes for t in found.default.graph.tensors}["w1"] == 4 * SIDE * SIDE
