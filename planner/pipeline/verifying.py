"""Verification of a prepared model and its rewritten file, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.graph.model import TrainingGraph
from planner.graph.rules import COPIES
from planner.pipeline.assemble import baseline_cost
from planner.pipeline.everywhere import devices_here
from planner.pipeline.modelviews import file_view, original_view
from planner.pipeline.prepare import Prepared, Progress, prepare
from planner.plan.planfile import Plan
from planner.results import ModelView, Verification
from planner.targets import Target
from planner.units import format_duration

if TYPE_CHECKING:
    import numpy.typing as npt


Quiet = Callable[[], AbstractContextManager[None]]


def check_can_hold(prepared: Prepared, peak_bytes: int) -> None:
    """Raise UsageError where the original's peak is more memory than this machine has free, before
    anything is planned or made."""
    from planner.runtime.inputs import check_memory

    if not prepared.target.own_memory:
        check_memory(peak_bytes, "the model's tensors")


def stand_in_plan(prepared: Prepared, text: str, budget_bytes: int) -> Plan:
    """What verification needs of a plan, where there is no plan file."""
    cost = baseline_cost(prepared)
    return Plan(
        dims=dict(prepared.loaded.dims),
        model_sha256=prepared.loaded.sha256,
        budget_text=text,
        ort_optimized=prepared.ort_optimized,
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
    *,
    thorough: bool,
    quiet: Quiet = nullcontext,
) -> Verification:
    """Run both models on the target: numbers, order, copies, bytes, cap, time.

    Args:
        thorough: more runs, and at more levels, on the CPU; on a device there is one way.
        quiet: makes the context in which steps are timed.
    """
    from planner.runtime.inputs import make_inputs

    feeds, source = make_inputs(prepared.loaded.path, seed, prepared.loaded.dims, inputs)
    plan = replace(plan, seed=seed)
    run = (
        _on_device
        if prepared.target.own_memory
        else partial(_on_cpu, thorough=thorough, quiet=quiet)
    )
    verification = run(prepared, before, after, rewritten, plan, (feeds, source), progress)
    for target in devices_here(prepared.target):
        verification = _and_on(target, verification, prepared, rewritten, plan, inputs, progress)
    return replace(verification, notes=(*verification.notes, *_on_one_stream(plan)))


def _and_on(
    target: Target,
    verification: Verification,
    original: Prepared,
    rewritten: Path,
    plan: Plan,
    inputs: Path | None,
    progress: Progress,
) -> Verification:
    """The verification of a file for every target, with what one of them says of it too."""
    here = prepare(
        original.loaded.path,
        dims=original.loaded.dims,
        hardware=original.hardware_source,
        device=target.name,
        progress=progress,
    )
    before, after = original_view(here), file_view(rewritten, plan.dims, plan.order_target, here)
    found = run_both(
        here, before, after, rewritten, plan, inputs, plan.seed, progress, thorough=False
    )
    title = target.title
    return replace(
        verification,
        passed=verification.passed and found.passed,
        failures=(*verification.failures, *(f"on {title}: {f}" for f in found.failures)),
        notes=(*verification.notes, *(f"on {title}: {n}" for n in found.notes)),
        orders=(*verification.orders, *found.orders),
        memory=(*verification.memory, *(replace(m, options=title) for m in found.memory)),
        caps=(*verification.caps, *(replace(c, model=f"{c.model}, {title}") for c in found.caps)),
        copies=found.copies,
    )


_Inputs = tuple[Mapping[str, "npt.NDArray[Any]"], str]
"""Inputs by name, and where they come from."""


def _on_device(
    prepared: Prepared,
    before: ModelView,
    after: ModelView,
    rewritten: Path,
    plan: Plan,
    inputs: _Inputs,
    progress: Progress,
) -> Verification:
    from planner.runtime.device.verify import DeviceJob, Side

    original = Side(
        path=prepared.loaded.path,
        graph=before.graph,
        order=before.timeline.order,
        level="extended" if prepared.ort_optimized else "disabled",
        renamed=prepared.renamed,
    )
    other = Side(path=rewritten, graph=after.graph, order=after.timeline.order)
    return DeviceJob(
        target=prepared.target,
        original=original,
        rewritten=replace(original, path=rewritten) if plan.unchanged else other,
        inputs=inputs[0],
        inputs_source=inputs[1],
        budget_bytes=plan.budget_bytes,
        order="priority" if plan.order_target == "priority" else "default",
        is_copy=plan.unchanged,
        seed=plan.seed,
        progress=progress,
    ).run()


def _on_cpu(
    prepared: Prepared,
    before: ModelView,
    after: ModelView,
    rewritten: Path,
    plan: Plan,
    inputs: _Inputs,
    progress: Progress,
    *,
    thorough: bool,
    quiet: Quiet,
) -> Verification:
    from planner.runtime.verify import CpuJob

    return CpuJob(
        paths={"original": prepared.loaded.path, "rewritten": rewritten},
        graphs={"original": before.graph, "rewritten": after.graph},
        orders={"original": before.timeline.order, "rewritten": after.timeline.order},
        planned=_names(after),
        budget_bytes=plan.budget_bytes,
        inputs=inputs[0],
        inputs_source=inputs[1],
        seed=plan.seed,
        is_copy=plan.unchanged,
        optimized=plan.ort_optimized,
        order="priority" if plan.order_target == "priority" else "default",
        has_swaps=_has_swaps(after.graph),
        thorough=thorough,
        quiet=quiet,
        progress=progress,
    ).run()


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
    return any(op.op_type in COPIES for op in graph.operations)
