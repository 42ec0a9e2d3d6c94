"""Rebuild the schedule and the rewritten model from a model and its plan file, without a search."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from planner.errors import ModelError, UsageError
from planner.files.structuring import fields_of
from planner.files.temporary import temporary_folder
from planner.formulate import Formulation
from planner.graph.rules import SWAP_DOMAIN
from planner.lower.annotate import annotate
from planner.lower.rewrite import Rewritten
from planner.onnxio.load import load_model, model_digest
from planner.pipeline.levers.dividing import RunModel, as_planned, run_model
from planner.pipeline.levers.table import replayed
from planner.pipeline.prepare.costing import MEASURED
from planner.pipeline.prepare.limiting import limited
from planner.pipeline.prepare.prepared import Prepared, Progress, prepare, silent
from planner.pipeline.record import assemble as plans
from planner.pipeline.record.bounds import bounds_of_plan
from planner.pipeline.record.comparing import compared
from planner.pipeline.solve.read_back import lowered_as, read_back
from planner.pipeline.target.placing import is_assumed
from planner.pipeline.target.targeting import target_metadata
from planner.plan.planfile import Plan
from planner.plan.problem import Action
from planner.request import Costs, Levers, Request
from planner.runtime.swapping import needs_of_graph
from planner.targets import target_named
from planner.targets.backend import backend_of
from planner.targets.keys import (
    ARENA_KEY,
    ASSUMED_KEY,
    BLOCK_KEY,
    DISK_KEY,
    LEVEL_KEY,
    NEEDS_KEY,
    ORDER_KEY,
    PACKED_KEY,
    POOL_KEY,
    SESSION_KEYS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A plan with its schedule: the problem (without a limit), the actions, and the rewritten model."""

    formulation: Formulation
    actions: tuple[Action, ...]
    rewritten: Rewritten


def check_belongs(plan: Plan, model: Path) -> None:
    """Raise ModelError if the plan belongs to another model."""
    if model_digest(model) != plan.model_sha256:
        raise ModelError(f"the plan belongs to another model than {model} (digests differ)")


@contextlib.contextmanager
def prepared_for(
    model: Path,
    plan: Plan,
    *,
    profile: Path | None = None,
    compare: bool = False,
    progress: Progress = silent,
) -> Iterator[Prepared]:
    """Yield the model, prepared as it was for its plan.

    If the plan's step has several runs, it is the model of one run, whose file lasts as long as the
    block.

    Args:
        profile: source of times, which a plan file does not hold.
        compare: compare the numbers of its graph with the file's, before anything lossy is done to
            it.

    Raises:
        ModelError: the plan belongs to another model.
        UsageError: it was made with a provider that is not installed here.
        VerificationError: the optimized graph computes something else than the file.
    """
    check_belongs(plan, model)
    if plan.micro is None:
        yield _prepared(model, plan, profile, compare, progress)
        return
    with temporary_folder() as folder:
        run = run_as_planned(Request(model=model, dims=whole_dims(plan)), plan, folder)
        yield _prepared(run.request.model, plan, profile, compare, progress)


def run_as_planned(request: Request, plan: Plan, folder: Path) -> RunModel:
    """Write the model of one run of a plan's step again.

    Args:
        request: for the original, on the whole batch.
        folder: an empty folder.

    Raises:
        ModelError: the plan's micro-batches are none of this model's.
    """
    assert plan.micro is not None
    loaded = load_model(request.model, dims=request.dims)
    divided = as_planned(loaded, plan.micro)
    return run_model(divided, request, plan.micro.runs, folder)


def whole_dims(plan: Plan) -> dict[str, int]:
    """Return the symbolic dims of the whole step; a run may have a part of its batch."""
    return {**plan.dims, **({} if plan.micro is None else {plan.micro.dim: plan.micro.batch})}


def request_of(model: Path, plan: Plan, *, profile: Path | None = None) -> Request:
    """Build the request that a plan was made for, without its budget and the fields that follow from it.

    Args:
        model: the model; of one run, if a step has several.
        profile: source of times.
    """
    return Request(
        model=model,
        dims=plan.dims,
        device=plan.device,
        ort_optimize=plan.ort_optimized,
        bounds=bounds_of_plan(plan),
        seed=plan.seed,
        costs=Costs(
            hardware=plan.hardware,
            profile=profile,
            calibrate="kept" if plan.cost_source.startswith(MEASURED) else "never",
        ),
        levers=Levers(
            swap=plan.swap_mode,
            copies=plan.copies,
            feeds=plan.feeds,
            recompute=plan.recompute,
            include=plan.include,
            exclude=plan.exclude,
            min_tensor=plan.min_tensor,
            disk=plan.disk,
            split="auto" if plan.split else "none",
            cast_saved=plan.cast_saved,
            fuse=plan.fuse,
            pattern=plan.pattern,
        ),
        order=plan.order_target,
    )


def is_made_here(plan: Plan) -> bool:
    """Tell whether a plan was made without its device's provider, which is installed here.

    Its model must be planned again, on the provider's graph and placement.
    """
    return plan.assumed and not is_assumed(target_named(plan.device))


def _prepared(
    model: Path, plan: Plan, profile: Path | None, compare: bool, progress: Progress
) -> Prepared:
    target = target_named(plan.device)
    if plan.ort_optimized and is_assumed(target):
        raise UsageError(
            f"the plan was made with {target.provider}, whose optimizers and placement it needs again: "
            f"{backend_of(target).why_missing()}"
        )
    if is_made_here(plan):
        raise UsageError(
            f"the plan was made without {target.provider}, which is installed here: run planner "
            "apply, which makes the plan again and writes a new plan file"
        )
    request = request_of(model, plan, profile=profile)
    prepared = limited(prepare(request, progress=progress))
    if plan.block_channels != prepared.block_channels:
        raise UsageError(
            f"the plan is for processors on which ONNX Runtime lays weights out in blocks of "
            f"{plan.block_channels} channels (0: not at all); here it is {prepared.block_channels}: make "
            "the plan again on this machine"
        )
    if compare:
        compared(prepared, progress=progress)
    return replayed(prepared, plan)


def rebuild(prepared: Prepared, plan: Plan) -> Rebuilt:
    """Rebuild the rewritten model of a plan, byte for byte as `optimize` wrote it.

    Raises:
        ModelError: the plan's schedule does not fit the model.
    """
    form, actions = plans.schedule_of(plan, prepared, prepared.graph)
    rewritten = lowered_as(
        lambda made: made, prepared, form, actions, order_target=plan.order_target
    )
    if plan.order_target == "priority":  # otherwise the rewritten file's order is the planned one
        rewritten = read_back(prepared, rewritten, order_target=plan.order_target).rewritten
    _check_decisions(plan, len(rewritten.planned_order))
    return Rebuilt(
        formulation=form,
        actions=tuple(actions),
        rewritten=with_metadata(rewritten, plan, prepared),
    )


def _check_decisions(plan: Plan, steps: int) -> None:
    for decision in plan.decisions:
        if decision.end >= steps:
            raise ModelError(
                f"the plan's schedule has {steps} steps, and its decision for {decision.tensor!r} "
                f"names step {decision.end}: it was edited by hand; make the plan again"
            )


def can_be_fed(original: ir.Model, rewritten: ir.Model) -> bool:
    """Tell whether an initializer can be fed to the rewritten model but not to the original.

    No kernel then packs it when a session is created.
    """
    mine = {v.name for v in original.graph.inputs}
    held = rewritten.graph.initializers
    return any(v.name in held and v.name not in mine for v in rewritten.graph.inputs)


def with_metadata(rewritten: Rewritten, plan: Plan, prepared: Prepared) -> Rewritten:
    """Write metadata into the rewritten model: its plan, its sessions' needs, and each node's purpose."""
    props = rewritten.model.metadata_props
    props["pkg.planner.version"] = plan.planner_version
    props["pkg.planner.plan_sha256"] = plans.plan_digest(plan)
    props["pkg.planner.budget_bytes"] = str(plan.budget_bytes)
    for key in SESSION_KEYS:  # the input file's keys, which any program may have written
        props.pop(key, None)
    props.update(target_metadata(prepared.target))
    if not plan.ort_optimized:
        props[LEVEL_KEY] = "disabled"
    if plan.order_target == "priority":
        props[ORDER_KEY] = "priority"
    if can_be_fed(prepared.loaded.model, rewritten.model):
        props[PACKED_KEY] = "0"
    if plan.assumed:
        props[ASSUMED_KEY] = "1"
    if needs := needs_of_graph(rewritten.model):
        props[NEEDS_KEY] = needs
    if SWAP_DOMAIN in rewritten.model.graph.opset_imports and plan.disk is not None:
        props[DISK_KEY] = str(plan.planned.host_bytes)
    if plan.block_channels:
        props[BLOCK_KEY] = str(plan.block_channels)
    if plan.pool is not None:
        props[POOL_KEY] = json.dumps(fields_of(plan.pool))
    if plan.arena is not None:
        props[ARENA_KEY] = json.dumps(fields_of(plan.arena))
    annotate(rewritten, plan.decisions)
    return rewritten
