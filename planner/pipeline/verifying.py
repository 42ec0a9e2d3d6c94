"""Verification of a prepared model and its rewritten file, on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from planner.graph.model import Role, TrainingGraph
from planner.pipeline.assemble import baseline_cost
from planner.pipeline.prepare import Prepared, Progress
from planner.plan.planfile import Plan
from planner.results import ModelView, Verification


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
    progress: Progress,
) -> Verification:
    """Run both models on the target: numbers, order, copies, bytes, cap, time."""
    from planner.runtime.inputs import make_inputs
    from planner.runtime.verify import verify as run_verification

    feeds, source = make_inputs(prepared.loaded.path, seed, prepared.loaded.dims, inputs)
    if prepared.target.own_memory:
        from planner.runtime.device.verify import DeviceJob, Side

        return DeviceJob(
            target=prepared.target,
            original=Side(
                path=prepared.loaded.path,
                graph=before.graph,
                order=before.timeline.order,
                level="extended" if prepared.ort_optimized else "disabled",
                renamed=prepared.renamed,
            ),
            rewritten=Side(path=rewritten, graph=after.graph, order=after.timeline.order),
            inputs=feeds,
            inputs_source=source,
            budget_bytes=plan.budget_bytes,
            order="priority" if plan.order_target == "priority" else "default",
            is_copy=plan.unchanged,
            seed=seed,
            progress=progress,
        ).run()
    return run_verification(
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
        has_swaps=_has_swaps(after.graph),
        progress=progress,
    )


def _names(view: ModelView) -> tuple[str, ...]:
    return tuple(view.graph.operations[op].name for op in view.timeline.order)


def _has_swaps(graph: TrainingGraph) -> bool:
    return any(op.role in (Role.SWAP_OUT, Role.SWAP_IN) for op in graph.operations)
