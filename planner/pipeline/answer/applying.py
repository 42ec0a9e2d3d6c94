"""`apply`: build the rewritten model of a plan file, on the machine that will run it.

A plan made without its device's provider rests on an assumed placement, and on a graph that the
provider's optimizers have not seen. Only the plan's request travels: budget, levers, sizes. On a
machine with the provider, the model is planned again within these limits, on the provider's real
graph and placement, and verified.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.onnxio.save import atomic_write
from planner.pipeline.answer.in_parts import optimized
from planner.pipeline.answer.optimizing import OptimizeJob
from planner.pipeline.prepare.prepared import Progress
from planner.pipeline.record.files import Files, save_rewritten
from planner.pipeline.record.rebuild import (
    check_belongs,
    is_made_here,
    prepared_for,
    rebuild,
    request_of,
    whole_dims,
)
from planner.plan.planfile import Plan
from planner.request import Limits, Request
from planner.results import OptimizeResult

TIME_LIMIT_S = 20.0
"""Time limit for planning again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The result of applying a plan file.

    Attributes:
        plan: the plan that the model follows.
        again: the result of planning again, including its verification; None if the model is the
            plan's, byte for byte.
    """

    plan: Plan
    again: OptimizeResult | None = None


def applied(
    model: Path,
    plan: Plan,
    files: Files,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    verify: bool = True,
    progress: Progress,
) -> Applied:
    """Write the rewritten model of a plan.

    Args:
        files: destination of the model, and of the plan if it is made again.
        time_limit_s: for the search, if planned again.
        verify: run a model that was planned again.

    Raises:
        ModelError: the plan belongs to another model, or does not fit it.
        UsageError: it was made with a provider that is not installed here.
        InfeasibleBudgetError, VerificationError: see `OptimizeJob.run`, if the plan is made again.
    """
    assert files.model is not None
    if is_made_here(plan):
        check_belongs(plan, model)
        progress(f"planning again, for what {plan.device} does with the model on this machine")
        found = optimized(
            OptimizeJob(
                request=_asked(model, plan, time_limit_s),
                files=files,
                verify=verify,
                search_context=None,
                progress=progress,
            )
        )
        return Applied(plan=found.plan, again=found)
    with prepared_for(model, plan, compare=not plan.unchanged, progress=progress) as prepared:
        rewritten = None if plan.unchanged else rebuild(prepared, plan).rewritten
        with atomic_write(files.model) as temporary:
            save_rewritten(prepared.loaded.path, rewritten, temporary)
    return Applied(plan=plan)


def _asked(model: Path, plan: Plan, time_limit_s: float) -> Request:
    """Build the request that a plan was made for, on the graph that its provider's optimizers leave."""
    asked = request_of(model, plan)
    levers = replace(
        asked.levers,
        resident="auto" if plan.resident else "device",
        host_budget=None if plan.host_budget_bytes is None else f"{plan.host_budget_bytes}B",
        micro_batch="1" if plan.micro is None else str(plan.micro.runs),
    )
    return replace(
        asked,
        dims=whole_dims(plan),
        ort_optimize=True,
        budget=f"{plan.budget_bytes}B",
        budget_from=plan.budget_text,
        max_slowdown=None if plan.max_slowdown is None else f"{100 * plan.max_slowdown:g}%",
        reserve=f"{plan.reserve_bytes}B",
        budget_of=plan.budget_of,
        levers=levers,
        limits=Limits(time_limit_s=time_limit_s),
    )
