"""Verification of a rewritten file against its original, on ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.choices import HALF_DTYPE, HALF_LARGEST, OrderTarget
from planner.cost.measured import forget_times
from planner.errors import ModelError, UsageError
from planner.graph.model import TrainingGraph
from planner.graph.rules import IN_CPU_MEMORY
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.prepare.prepared import Prepared, Progress, prepare
from planner.pipeline.prepare.settings import budget_of
from planner.pipeline.record.modelviews import file_view
from planner.pipeline.target.everywhere import devices_here
from planner.plan.planfile import Plan
from planner.request import Costs, Request
from planner.results import ModelView
from planner.results.verification import Verification
from planner.runtime.opened import Needs, metadata_of, needs_of
from planner.targets import HOST, Target
from planner.units import format_duration

if TYPE_CHECKING:
    import numpy.typing as npt

    from planner.runtime.profiled import Profiled


_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A model and its rewritten file, to run side by side.

    Attributes:
        prepared: the original.
        path: the rewritten model; `after` has its predicted figures.
        plan: the plan; the file is checked against it.
        ahead: a session of the original that is being created, if any.
    """

    prepared: Prepared
    path: Path
    after: ModelView
    plan: Plan
    ahead: Profiled | None = None


def check_can_hold(prepared: Prepared) -> None:
    """Raise UsageError if the original's peak exceeds this machine's free memory.

    Called before any planning.
    """
    from planner.runtime.feeds.inputs import check_memory

    if not prepared.target.own_memory:
        check_memory(prepared.baseline.peak_bytes, "the model's tensors")


def check_same_inputs(prepared: Prepared, path: Path, after: ModelView) -> None:
    """Raise UsageError if the rewritten model at `path` has inputs that the original lacks."""
    mine = {str(v.name) for v in prepared.loaded.model.graph.inputs}
    tensors = after.graph.tensors
    fed = [tensors[t] for t in after.graph.inputs]
    new = [t.name for t in fed if not t.is_initializer and t.name not in mine]
    if new:
        raise UsageError(
            f"{path} has the input {new[0]!r}, which the original does not have: if it was made "
            "with --micro-batch, give its plan with --plan"
        )


def as_written(path: Path) -> Needs:
    """Read the session requirements from the rewritten model's metadata; none in a foreign file.

    Raises:
        UsageError: the metadata is malformed.
    """
    try:
        metadata_of(path)
    except UsageError:  # loading the file reports the fault
        return Needs(where=str(path), by_planner=False, target=HOST, props={})
    return needs_of(path)


def stand_in_plan(prepared: Prepared, order: OrderTarget = "default") -> Plan:
    """Build a plan with the fields that verification needs, for a file without a plan.

    Args:
        order: the execution order that the file was written for.

    Raises:
        UsageError: the request's budget cannot be read.
    """
    cost = prepared.baseline.cost
    return Plan(
        dims=dict(prepared.loaded.dims),
        model_sha256=prepared.loaded.sha256,
        budget_text=prepared.request.aim,
        ort_optimized=prepared.ort_optimized,
        order_target=order,
        budget_bytes=budget_of(prepared),
        hardware=prepared.hardware.name,
        baseline=cost,
        best_order=cost,
        planned=cost,
    )


def on_assumption(found: Verification, asked: Needs) -> Verification:
    """Add the assumption to the verification of a file that was made without its provider."""
    why = asked.why_not_settled
    if not why:
        return found
    if found.passed:
        return replace(found, notes=(why, *found.notes))
    return replace(found, failures=(why, *found.failures))


def run_both(rewrite: Rewrite, progress: Progress, *, thorough: bool) -> Verification:
    """Run both models on the target, and compare numbers, order, copies, bytes, caps and times.

    A file for every target is then run on each device of this machine, too.

    Args:
        thorough: on the CPU, make more runs, at more levels; runs on a device do not change.
    """
    from planner.runtime.feeds.inputs import make_inputs

    prepared = rewrite.prepared
    request, loaded = prepared.request, prepared.loaded
    inputs = make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)
    if prepared.target.own_memory:
        verification = _on_device(rewrite, inputs, progress)
    else:
        verification = _on_cpu(rewrite, inputs, progress, thorough=thorough)
    for target in devices_here(prepared.target):
        verification = _with_target(target, verification, rewrite, progress)
    if rewrite.plan.halved:
        progress("magnitudes of what is stored in half")
        verification = _with_magnitudes(verification, rewrite, inputs[0])
    notes = _forget_busy_times(prepared, verification)
    return replace(verification, notes=(*verification.notes, *notes))


def _forget_busy_times(prepared: Prepared, verification: Verification) -> tuple[str, ...]:
    """Delete cached operation times that were measured while the machine was busy; return a note.

    Such times add up to much more than a whole step of the original takes.
    """
    if verification.time is None or not prepared.times_key:
        return ()
    times_us, step_us = prepared.baseline.time_us, min(verification.time.original_us)
    profiled_us = ANSWERING.profiled_us * len(prepared.baseline.graph.operations)
    if times_us <= ANSWERING.too_long * step_us + profiled_us:
        return ()
    forget_times(prepared.times_key)
    return (
        f"operation times add up to {format_duration(times_us)}, and a step takes "
        f"{format_duration(step_us)}: something else ran while they were measured; the next run measures "
        "them again",
    )


def _with_magnitudes(
    verification: Verification, rewrite: Rewrite, feeds: Mapping[str, npt.NDArray[Any]]
) -> Verification:
    """Check that the type of tensors stored in half precision holds their largest magnitudes."""
    from planner.runtime.judge.magnitudes import largest_magnitudes

    prepared, plan = rewrite.prepared, rewrite.plan
    largest, most = HALF_LARGEST[plan.cast_saved], HALF_DTYPE[plan.cast_saved]
    try:
        found = largest_magnitudes(
            prepared.model, plan.halved, feeds, prepared.loaded.path.parent, plan.seed
        )
    except ModelError as error:
        said = f"magnitudes of tensors stored in half were not measured: {error}"
        return replace(verification, notes=(*verification.notes, said))
    name = max(found, key=found.__getitem__)
    note = (
        f"of what is stored in {most}, {len(found):,} tensors, the largest magnitude seen is "
        f"{found[name]:.4g}, in {name!r}; the largest {most} is {largest:.5g}"
    )
    over = [name for name, value in found.items() if largest < value < math.inf]
    failures = [
        f"tensor {name!r} reaches {found[name]:.4g}, and the largest {most} is {largest:g}: it is stored "
        "as infinite; use --cast-saved bf16, or --exclude it"
        for name in over[:_SHOWN]
    ]
    return replace(
        verification,
        passed=verification.passed and not over,
        lacks_room=verification.lacks_room and not over,
        failures=(*failures, *verification.failures),
        notes=(*verification.notes, note),
    )


def _with_target(
    target: Target, verification: Verification, rewrite: Rewrite, progress: Progress
) -> Verification:
    """Add one target's verification to that of a file for every target."""
    asked, plan = rewrite.prepared.request, rewrite.plan
    request = Request(
        model=asked.model,
        bounds=asked.bounds,
        dims=rewrite.prepared.loaded.dims,
        device=target.name,
        inputs=asked.inputs,
        seed=asked.seed,
        costs=Costs(hardware=asked.costs.hardware, calibrate="never"),
    )
    here = prepare(request, progress=progress)
    after = file_view(rewrite.path, plan.dims, plan.order_target, here)
    found = run_both(
        Rewrite(prepared=here, path=rewrite.path, after=after, plan=plan), progress, thorough=False
    )
    title = target.title
    return replace(
        verification,
        passed=verification.passed and found.passed,
        lacks_room=verification.lacks_room and (found.passed or found.lacks_room),
        failures=(*verification.failures, *(f"on {title}: {f}" for f in found.failures)),
        notes=(*verification.notes, *(f"on {title}: {n}" for n in found.notes)),
        orders=(*verification.orders, *found.orders),
        memory=(*verification.memory, *(replace(m, options=title) for m in found.memory)),
        caps=(*verification.caps, *(replace(c, model=f"{c.model}, {title}") for c in found.caps)),
        copies=found.copies,
    )


_Inputs = tuple[Mapping[str, "npt.NDArray[Any]"], str]
"""Inputs by name, and their source."""


def _on_device(rewrite: Rewrite, inputs: _Inputs, progress: Progress) -> Verification:
    from planner.runtime.device.reference import Side
    from planner.runtime.device.verify import DeviceJob

    prepared, after, plan = rewrite.prepared, rewrite.after, rewrite.plan
    original = Side(
        path=prepared.loaded.path,
        graph=prepared.baseline.graph,
        order=prepared.baseline.order,
        level=prepared.level,
        renamed=prepared.renamed,
    )
    other = Side(path=rewrite.path, graph=after.graph, order=after.timeline.order)
    return DeviceJob(
        target=prepared.target,
        original=original,
        rewritten=replace(original, path=rewrite.path) if plan.unchanged else other,
        inputs=inputs[0],
        inputs_source=inputs[1],
        budget_bytes=plan.budget_bytes,
        order="priority" if plan.order_target == "priority" else "default",
        is_copy=plan.unchanged,
        numbers=plan.numbers,
        seed=prepared.request.seed,
        bound=plan.feeds == "device" and not prepared.target.plugin,
        progress=progress,
    ).run()


def _on_cpu(
    rewrite: Rewrite, inputs: _Inputs, progress: Progress, *, thorough: bool
) -> Verification:
    from planner.runtime.judge.cpu_job import CpuJob
    from planner.runtime.judge.verify import CpuVerification
    from planner.runtime.profiled import may_copy

    prepared, after, plan = rewrite.prepared, rewrite.after, rewrite.plan
    baseline = prepared.baseline
    job = CpuJob(
        paths={"original": prepared.loaded.path, "rewritten": rewrite.path},
        graphs={"original": baseline.graph, "rewritten": after.graph},
        orders={"original": baseline.order, "rewritten": after.timeline.order},
        planned=_names(after),
        budget_bytes=plan.budget_bytes,
        budget_of=plan.budget_of,
        strict=prepared.request.strict,
        inputs=inputs[0],
        inputs_source=inputs[1],
        seed=prepared.request.seed,
        is_copy=plan.unchanged,
        level="all" if plan.ort_optimized else "disabled",
        order="priority" if plan.order_target == "priority" else "default",
        has_swaps=any(op.op_type in IN_CPU_MEMORY for op in after.graph.operations),
        packed=not _can_be_fed(prepared, after.graph),
        numbers=plan.numbers,
        thorough=thorough,
        may_copy=may_copy(prepared.loaded.model, prepared.loaded),
        ahead=rewrite.ahead,
        progress=progress,
    )
    return CpuVerification(job).run()


def _names(view: ModelView) -> tuple[str, ...]:
    return tuple(view.graph.operations[op].name for op in view.timeline.order)


def _can_be_fed(prepared: Prepared, graph: TrainingGraph) -> bool:
    """Tell whether an initializer can be fed to the rewritten model but not to the original."""
    mine = {str(v.name) for v in prepared.loaded.model.graph.inputs}
    return any(t.is_initializer and t.is_input and t.name not in mine for t in graph.tensors)
