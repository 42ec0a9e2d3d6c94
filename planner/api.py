"""Public functions: analyze, optimize, apply, verify. Each passes a `Request` to `planner.pipeline`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from planner import clock
from planner.choices import (
    HOST_PROFILE,
    BudgetOf,
    CastSaved,
    Copies,
    Feeds,
    FuseMode,
    OrderTarget,
    Recompute,
    Reside,
    SplitMode,
    Swap,
)
from planner.defaults import requested
from planner.errors import ModelError, UsageError
from planner.files.writing import FileName, path_or_none
from planner.onnxio.load import model_digest
from planner.pipeline.answer.analyzing import analyzed
from planner.pipeline.answer.applying import TIME_LIMIT_S, applied
from planner.pipeline.answer.in_parts import optimized, verified
from planner.pipeline.answer.optimizing import OptimizeJob
from planner.pipeline.answer.verifying import (
    Rewrite,
    as_written,
    check_can_hold,
    check_same_inputs,
    on_assumption,
    run_both,
    stand_in_plan,
)
from planner.pipeline.prepare.prepared import prepare, silent
from planner.pipeline.record.assemble import read_plan
from planner.pipeline.record.bounds import bounds_of_plan
from planner.pipeline.record.files import Files
from planner.pipeline.record.modelviews import file_view
from planner.pipeline.record.rebuild import whole_dims
from planner.pipeline.target.placing import check_can_run
from planner.processes.garbage import collected_seldom
from planner.request import AUTO_RESERVE, Costs, options_of
from planner.request.asking import documented
from planner.request.bounding import Given
from planner.results import Analysis, ModelView, OptimizeResult
from planner.results.verification import Verification
from planner.targets import HOST, Device, target_named

Progress = Callable[[str], None]


@documented(options_of("analyze"))
@collected_seldom()
def analyze(
    model: FileName,
    *,
    dims: Mapping[str, int] | None = None,
    bounds: Mapping[str, Given] | None = None,
    hardware: str = HOST_PROFILE,
    profile: FileName | None = None,
    calibrate: bool | None = None,
    inputs: FileName | None = None,
    ort_optimize: bool = True,
    device: Device | None = None,
    swap: Swap | None = None,
    copies: Copies | None = None,
    resident: Reside | None = None,
    feeds: Feeds = "auto",
    time_limit_s: float = 60.0,
    seed: int = 0,
    reproducible: bool = False,
    progress: Progress | None = None,
    on_model: Callable[[ModelView], None] | None = None,
) -> Analysis:
    """Show where the memory of a model goes, as ONNX Runtime runs it, and what a budget would cost.

    Args:
        model: an .onnx file.
        progress: told of each stage.
        on_model: given the model as it is (`Analysis.default`) as soon as that is known, before anything
            is searched for.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    request = requested("analyze", locals())
    with clock.counting(is_capped=not reproducible):
        return analyzed(request, progress or silent, on_model=on_model)


@documented(options_of("optimize"))
@collected_seldom()
def optimize(
    model: FileName,
    *,
    budget: str | None = None,
    max_slowdown: str | None = None,
    output: FileName | None = None,
    plan_path: FileName | None = None,
    report_path: FileName | None = None,
    trace_path: FileName | None = None,
    dims: Mapping[str, int] | None = None,
    bounds: Mapping[str, Given] | None = None,
    hardware: str = HOST_PROFILE,
    profile: FileName | None = None,
    calibrate: bool | None = None,
    swap: Swap | None = None,
    copies: Copies | None = None,
    resident: Reside | None = None,
    feeds: Feeds = "auto",
    recompute: bool | Recompute = "auto",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    min_tensor: str | None = None,
    host_budget: str | None = None,
    disk: FileName | None = None,
    disk_budget: str | None = None,
    micro_batch: int | str = 1,
    split: SplitMode = "none",
    cast_saved: CastSaved = "none",
    fuse: FuseMode = "none",
    pattern: bool = True,
    order: OrderTarget = "default",
    reserve: str = AUTO_RESERVE,
    budget_of: BudgetOf = "held",
    strict: bool = False,
    time_limit_s: float = 60.0,
    seed: int = 0,
    reproducible: bool = False,
    device: Device | None = None,
    verify: bool | Literal["thorough"] = True,
    inputs: FileName | None = None,
    ort_optimize: bool = True,
    force: bool = False,
    dry_run: bool = False,
    search_context: Callable[[], AbstractContextManager[None]] | None = None,
    progress: Progress | None = None,
) -> OptimizeResult:
    """Rewrite a model so that its peak stays within `budget`, and prove it on ONNX Runtime.

    Args:
        model: an .onnx file.
        output, plan_path, report_path: files to write; None leaves that file out.
        trace_path: a trace of the plan for Perfetto; see `planner.report.trace`.
        verify: True runs each model once under each set of options; "thorough" runs them again, and at
            more levels. False does not run the rewritten model: the graph that ONNX Runtime's
            optimizers made is compared with the file by one run of each
            (`planner.runtime.optimizers.same_numbers`), or by its content if steps are long and
            `calibrate` is False.
        force: overwrite files that exist.
        dry_run: plan, but write nothing; as with `verify=False`.
        search_context: makes a context manager around the search, within which Ctrl-C
            (KeyboardInterrupt) keeps the best plan so far. None: Ctrl-C is raised, as elsewhere.
        progress: told of each stage.

    Raises:
        UsageError, ModelError, InfeasibleBudgetError, VerificationError: see `planner.errors`.
            A failed verification leaves every file in place, as evidence.
    """
    request = requested("optimize", locals())
    files = Files(
        model=path_or_none(output),
        plan=path_or_none(plan_path),
        report=path_or_none(report_path),
        trace=path_or_none(trace_path),
    )
    files.check(request.model, force=force or dry_run)
    job = OptimizeJob(
        request=request,
        files=Files() if dry_run else files,
        verify=False if dry_run else verify,
        search_context=search_context,
        progress=progress or silent,
    )
    return optimized(job)


@collected_seldom()
def apply(
    model: FileName,
    plan: FileName,
    *,
    output: FileName,
    plan_path: FileName | None = None,
    force: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    verify: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Rewrite a model according to a plan, without a search: the file is the same to the byte.

    A plan that was made without its device's provider is made again on a machine that has it: within
    the same budget and levers, for the placement that the provider chooses, and verified.

    Args:
        model, plan: the original, and the plan file that belongs to it.
        output: path of the rewritten model.
        plan_path: path of a plan that is made again; None to write none.
        time_limit_s: time limit of the search for a plan that is made again.
        verify: run a plan that is made again, and compare.
        progress: called with the name of each stage.

    Raises:
        ModelError: the plan belongs to another model, or is not a plan.
        UsageError: the plan needs a provider that is not installed.
        InfeasibleBudgetError, VerificationError: a plan that is made again does not fit, or fails its
            verification.
    """
    original, rewritten = Path(model), Path(output)
    files = Files(model=rewritten, plan=path_or_none(plan_path))
    files.check(original, force=force)
    applied(
        original,
        read_plan(Path(plan)),
        files,
        time_limit_s=time_limit_s,
        verify=verify,
        progress=progress or silent,
    )
    return rewritten


@documented(options_of("verify"))
@collected_seldom()
def verify(
    original: FileName,
    rewritten: FileName,
    *,
    plan: FileName | None = None,
    budget: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: FileName | None = None,
    seed: int = 0,
    device: Device = HOST.name,
    strict: bool = False,
    fast: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Run both models on ONNX Runtime: same numbers, planned order, bytes, cap, time.

    Args:
        original, rewritten: .onnx files.
        plan: the plan file; without it, `budget` gives the budget (or none is checked), and the
            metadata of `rewritten` the level and the execution order that it was planned for.
        fast: each model runs once under each set of options, as in `optimize`.
        progress: told of each stage.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    request = requested("verify", {"model": original, **locals()})
    report = progress or silent
    check_can_run(target_named(device))
    the_plan = read_plan(Path(plan)) if plan is not None else None
    if the_plan is not None and the_plan.device not in (device, "any"):
        raise UsageError(
            f"{plan} is a plan for {the_plan.device}: verify with --device {the_plan.device}"
        )
    if the_plan is not None and the_plan.model_sha256 != model_digest(Path(original)):
        raise ModelError(f"{plan} belongs to another model than {original} (digests differ)")
    asked = as_written(Path(rewritten))
    request = replace(
        request,
        dims=dims or (whole_dims(the_plan) if the_plan else {}),
        ort_optimize=the_plan.ort_optimized if the_plan else asked.level != "disabled",
        bounds=bounds_of_plan(the_plan) if the_plan else (),
        costs=Costs(hardware=the_plan.hardware if the_plan else HOST_PROFILE, calibrate="never"),
    )
    if the_plan is not None and the_plan.micro is not None:
        return verified(request, Path(rewritten), the_plan, thorough=not fast, progress=report)
    prepared = prepare(request, progress=report)
    check_can_hold(prepared)
    target = the_plan.order_target if the_plan else asked.order
    after = file_view(Path(rewritten), request.dims, target, prepared)
    if the_plan is None:
        check_same_inputs(prepared, Path(rewritten), after)
    the_plan = the_plan or stand_in_plan(prepared, target)
    rewrite = Rewrite(prepared=prepared, path=Path(rewritten), after=after, plan=the_plan)
    return on_assumption(run_both(rewrite, report, thorough=not fast), asked)
