"""Verification of a prepared model and its rewritten file, on ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.graph.model import Role, TrainingGraph
from planner.pipeline.assemble import baseline_cost
from planner.pipeline.prepare import Prepared, Progress
from planner.plan.planfile import Plan
from planner.results import ModelView, Verification
from planner.units import format_duration


def stand_in_plan(prepared: Prepared, text: str, budget_bytes: int) -> Plan:
    """What verification needs of a plan, where there is no plan file."""
    cost = baseline_cost(prepared)
    return Plan(
        dims=dict(prepared.loaded.dims),
        model_sha256=prepared.loaded.sha256,
        budget_text=text,
        budget_bytes=budget_bytes,
        hardware=prepared.hardware.name,
        baseline=cost,
        best_order=cost,
        planned=cost,
    )


def run_both(
    prepared: Prepared,
    before: ModelView,
    after: ModelView,
    rewritten: Path,
    plan: Plan,
    inputs: Path | None,
    seed: int,
    device: str,
    progress: Progress,
) -> Verification:
    """Run both models: numbers, order, bytes, cap, time."""
    from planner.runtime.inputs import make_inputs
    from planner.runtime.verify import verify as run_verification

    feeds, source = make_inputs(prepared.loaded.path, seed, prepared.loaded.dims, inputs)
    verification = run_verification(
        prepared.loaded.path,
        rewritten,
        plan=plan,
        planned_order=_names(after),
        original_graph=before.graph,
        rewritten_graph=after.graph,
        original_order=before.timeline.order,
        rewritten_order=after.timeline.order,
        budget_bytes=plan.budget_bytes,
        inputs=feeds,
        inputs_source=source,
        seed=seed,
        device=device,
        has_swaps=_has_swaps(after.graph),
        progress=progress,
    )
    return replace(verification, notes=(*verification.notes, *_on_one_stream(plan)))


def _on_one_stream(plan: Plan) -> tuple[str, ...]:
    """How the file of a plan with copies beside the operations was run."""
    if plan.copies != "overlapped" or plan.one_stream_us is None:
        return ()
    return (
        "both models ran on one stream, copies included: the plan predicts "
        f"{format_duration(plan.planned.time_us)} with its copies beside the operations, and "
        f"{format_duration(plan.one_stream_us)} as it ran",
    )


def _names(view: ModelView) -> tuple[str, ...]:
    return tuple(view.graph.operations[op].name for op in view.timeline.order)


def _has_swaps(graph: TrainingGraph) -> bool:
    return any(op.role in (Role.SWAP_OUT, Role.SWAP_IN) for op in graph.operations)
