"""What is too large for a budget runs in chunks: plans below one operation's bytes, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.errors import InfeasibleBudgetError, ModelError, UsageError
from planner.graph.model import Role
from planner.pipeline.levers.chunk.chunks import why_no_split
from planner.pipeline.levers.chunk.too_large import split_to_fit, too_large
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.solve.orders import least_possible_peak
from planner.report.document.outcome import optimize_document
from planner.request import Request
from planner.results import OptimizeResult
from tests.lower.test_split import classifier

GPT = Path(__file__).parents[2] / "models" / "zoo" / "gpt.onnx"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loss over many classes, whose logits bind."""
    path = tmp_path_factory.mktemp("classifier") / "model.onnx"
    onnx.save(classifier(), path)
    return path


def optimized(model: Path, folder: Path, budget: int, **options: object) -> OptimizeResult:
    return api.optimize(
        model,
        budget=f"{budget}B",
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        time_limit_s=1.0,
        force=True,
        **options,  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture(scope="module")
def below(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[OptimizeResult, Path]:
    """A plan within 60% of what one operation holds."""
    folder = tmp_path_factory.mktemp("below")
    least = least_possible_peak(prepare(Request(model=model)))
    return optimized(model, folder, int(0.6 * least), swap="none", split="auto"), folder


def test_a_plan_is_below_what_one_operation_holds_and_is_verified(
    model: Path, below: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    result, _ = below
    plan, verification = result.plan, result.verification
    assert plan.split and plan.numbers == "rounding"
    assert plan.planned.peak_bytes <= plan.budget_bytes
    assert verification is not None and verification.passed
    assert verification.memory[-1].live_bytes <= plan.budget_bytes
    with pytest.raises(InfeasibleBudgetError):
        optimized(model, tmp_path, plan.budget_bytes, swap="none", verify=False)
    chunks = [op for op in result.after.graph.operations if op.role is Role.CHUNK]
    assert len(chunks) > len([n for r in plan.split[0] for n in r.nodes])


def test_the_plan_file_says_what_is_split_and_is_applied_to_the_byte(
    model: Path, below: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    result, folder = below
    again = api.apply(model, folder / "plan.json", output=tmp_path / "again.onnx")
    assert again.read_bytes() == (folder / "planned.onnx").read_bytes()
    head = optimize_document(result).headline
    regions = [region for together in result.plan.split for region in together]
    assert head.split_regions == len(regions)
    assert head.split_nodes == sum(len(region.nodes) for region in regions)
    assert any("chunks of rows" in text for text in result.plan.assumptions)


def test_a_plan_file_that_was_edited_is_refused(
    model: Path, below: tuple[OptimizeResult, Path], tmp_path: Path
) -> None:
    _, folder = below
    data = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    for change in (
        {"axis": 1},
        {"tensor": "nothing"},
        {"nodes": ["logits"]},
        {"chunks": 1},
        {"chunks": 10**6},
        {"large_bytes": -1},
        {"large_bytes": 10**15},
    ):
        changed = json.loads(json.dumps(data))
        changed["split"][0][0].update(change)
        path = tmp_path / "edited.plan.json"
        path.write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(ModelError):
            api.apply(model, path, output=tmp_path / "never.onnx")


def test_a_node_in_chunks_is_explained(model: Path, below: tuple[OptimizeResult, Path]) -> None:
    from planner.pipeline.answer.explain import explain

    _, folder = below
    found = explain(model, folder / "plan.json", "logits__rows0", time_limit_s=1.0)
    assert found.producer == "logits__chunk0"


def test_nothing_is_split_where_that_gains_nothing(model: Path, tmp_path: Path) -> None:
    peak = prepare(Request(model=model)).baseline.peak_bytes
    for budget in (peak, int(0.99 * peak)):
        result = optimized(model, tmp_path, budget, swap="auto", split="auto", verify=False)
        if result.plan.planned.time_us <= 1.01 * result.plan.baseline.time_us:
            assert result.plan.split == () and result.plan.numbers == "exact"


def test_rooms_are_made_one_operation_at_a_time(model: Path) -> None:
    prepared = prepare(Request(model=model))
    least = least_possible_peak(prepared)
    assert split_to_fit(prepared, prepared, least) is prepared
    last = least
    for share in (0.9, 0.6, 0.4):
        room = int(share * least)
        assert too_large(prepared, room)
        found = split_to_fit(prepared, prepared, room)
        now = least_possible_peak(found)
        assert now <= min(last, room)
        last = now


def test_what_cannot_be_split_is_said(tmp_path: Path) -> None:
    info = h.make_tensor_value_info
    for opset, rows, dims, why in (
        (18, "n", {"n": 4}, "--dim"),
        (12, 4, {}, "operator set 13"),
        (18, 4, {}, None),
    ):
        node = h.make_node("Gemm", ["x", "w"], ["y"], name="y", transB=1)
        inputs = [info("x", T.FLOAT, [rows, 8]), info("w", T.FLOAT, [64, 8])]
        graph = h.make_graph([node], "g", inputs, [info("y", T.FLOAT, [rows, 64])])
        proto = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        said = why_no_split(prepare(Request(model=path, dims=dims)))
        assert said is None if why is None else why in (said or "")


def test_only_the_two_choices_are_taken(model: Path) -> None:
    with pytest.raises(UsageError, match="--split"):
        api.optimize(model, budget="50%", split="rows", dry_run=True)  # pyright: ignore[reportArgumentType]


def test_a_gpt_below_its_least_peak(tmp_path: Path) -> None:
    """Attention, feed-forward and loss are all too large for 9.5% of the peak, with all on the host."""
    result = api.optimize(
        GPT,
        budget="9.5%",
        output=tmp_path / "planned.onnx",
        time_limit_s=1.0,
        split="auto",
        resident="host",
    )
    plan, verification = result.plan, result.verification
    assert verification is not None and verification.passed
    assert plan.planned.peak_bytes <= plan.budget_bytes < 0.096 * plan.baseline.peak_bytes
    assert len({region.tensor for region in plan.split[0]}) > 4
    assert all(output.is_near for output in verification.outputs)
