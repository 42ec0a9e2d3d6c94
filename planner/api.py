"""The public functions: analyze, optimize, apply, verify. Each drives the line from file to file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

from planner.errors import InfeasibleBudgetError, ModelError, UsageError, VerificationError
from planner.lower.rewrite import Rewritten
from planner.onnxio.load import model_digest
from planner.onnxio.save import atomic_write, write_model, written_together
from planner.pipeline import assemble as plans
from planner.pipeline.comparing import compared
from planner.pipeline.copies import Copies
from planner.pipeline.modelviews import file_view, original_view, rewritten_view
from planner.pipeline.orders import Settings, base_orders, least_found_peak, least_possible_peak
from planner.pipeline.outlook import (
    before_a_plan,
    beside_a_plan,
    get_ready,
    look,
    look_beside,
    outlook_s,
)
from planner.pipeline.placing import check_can_run
from planner.pipeline.planned import Planned
from planner.pipeline.planning import make_plan
from planner.pipeline.prepare import Prepared, prepare, silent
from planner.pipeline.rebuild import prepare_for, rebuild, with_metadata
from planner.pipeline.settings import noted_copies, settings_for
from planner.pipeline.slowdown import plan_within
from planner.pipeline.verifying import check_can_hold, run_both, stand_in_plan
from planner.plan.planfile import OrderTarget, PredictedCost, Swap
from planner.results import Analysis, OptimizeResult, Verification
from planner.targets import Device, target_named
from planner.units import (
    format_both,
    format_percent,
    parse_budget,
    parse_slowdown,
)
from planner.workers import beside
from planner.writing import check_writable

Progress = Callable[[str], None]

_MIN_S = 2.0
"""`analyze` looks this long for the least feasible budget."""


def analyze(
    model: Path,
    *,
    dims: Mapping[str, int] | None = None,
    hardware: str = "cpu",
    profile: Path | None = None,
    calibrate: bool = False,
    inputs: Path | None = None,
    ort_optimize: bool = True,
    device: Device = "cpu",
    copies: Copies = "serial",
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Analysis:
    """Where the memory of a model goes, as ONNX Runtime runs it.

    Args:
        model: an .onnx file.
        dims: values of symbolic dims.
        hardware: name of a shipped profile, or a TOML file.
        profile: an ONNX Runtime profile of this model, to take times from.
        calibrate: run the model once to measure times.
        copies: how copies are planned in what a budget would cost; as for `optimize`.
        time_limit_s: for the searches: a better order, the least budget, what budgets cost.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    report = progress or silent
    _compile_ahead(copies)
    prepared = prepare(
        Path(model),
        dims=dims or {},
        hardware=hardware,
        profile=profile,
        calibrate=calibrate,
        inputs=inputs,
        seed=seed,
        ort_optimize=ort_optimize,
        device=device,
        progress=report,
        to_rewrite=False,
    )
    report("searching for a better order")
    orders = base_orders(prepared, time_limit_s=min(5.0, time_limit_s * 0.1))
    report("searching for the least budget")
    least = least_found_peak(prepared, orders, time_limit_s=min(_MIN_S, time_limit_s * 0.1))
    default = original_view(prepared)
    least = min(least, default.timeline.peak_bytes)
    settings = settings_for(
        prepared, "100%", "0B", default.timeline.peak_bytes, "auto", "default", time_limit_s, seed,
        None, copies,
    )  # fmt: skip
    report("comparing base orders")
    question = before_a_plan(
        prepared,
        settings,
        orders,
        own=default.timeline.peak_bytes,
        time_limit_s=outlook_s(len(prepared.graph.operations), time_limit_s),
    )
    return Analysis(
        model_path=Path(model),
        model_sha256=prepared.loaded.sha256,
        dims=dict(prepared.loaded.dims),
        hardware=prepared.hardware.name,
        cost_source=prepared.cost_source,
        ort_optimized=prepared.ort_optimized,
        default=default,
        best_order=PredictedCost(
            peak_bytes=orders[0].peak_bytes, time_us=sum(prepared.duration_us)
        ),
        best_order_name=orders[0].name,
        least_peak_bound_bytes=least_possible_peak(prepared),
        least_peak_bytes=least,
        assumptions=(*prepared.graph.assumptions, *noted_copies(settings)),
        outlook=look(question, report),
    )


def optimize(
    model: Path,
    *,
    budget: str | None = None,
    max_slowdown: str | None = None,
    output: Path | None = None,
    plan_path: Path | None = None,
    report_path: Path | None = None,
    trace_path: Path | None = None,
    dims: Mapping[str, int] | None = None,
    hardware: str = "cpu",
    profile: Path | None = None,
    calibrate: bool = False,
    swap: Swap = "auto",
    copies: Copies = "serial",
    order: OrderTarget = "default",
    reserve: str = "0B",
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    device: Device = "cpu",
    verify: bool | Literal["thorough"] = True,
    inputs: Path | None = None,
    ort_optimize: bool = True,
    force: bool = False,
    dry_run: bool = False,
    search_context: Callable[[], AbstractContextManager[None]] | None = None,
    progress: Progress | None = None,
) -> OptimizeResult:
    """Rewrite a model so that its peak stays within `budget`, and prove it on ONNX Runtime.

    Args:
        budget: `"16GB"`, `"12GiB"`, or `"60%"` of the baseline peak.
        max_slowdown: `"5%"`: with a budget, no plan that fits may add more time; without one, the
            least peak is looked for that a plan within that time can have.
        output, plan_path, report_path: files to write; None leaves that file out.
        trace_path: a trace of the plan for Perfetto; see `planner.report.trace`.
        swap: "auto" lets the solver choose, "none" forbids copies, "only" forbids recompute.
        copies: "serial" plans them on the stream of the operations, as ONNX Runtime runs them;
            "overlapped" beside the operations, which is a what-if; "auto" whichever is safe.
        order: the session option the file is written for.
        reserve: set aside out of the budget.
        verify: each model runs once under each set of options; "thorough" runs them again, and at other
            levels. False leaves the rewritten model unrun; the graph that ONNX Runtime's optimizers
            made is then compared with the file, once, by numbers (`planner.runtime.same_numbers`).
        dry_run: plan, but write nothing; as with `verify=False`.
        search_context: made for the search; within it Ctrl-C (KeyboardInterrupt) ends the search, and
            the best plan so far is taken where there is one. None: Ctrl-C is raised, as elsewhere.

    Raises:
        UsageError, ModelError, InfeasibleBudgetError, VerificationError: see `planner.errors`.
            A failed verification leaves every file in place, as evidence.
    """
    report = progress or silent
    model = Path(model)
    files = (output, plan_path, report_path, trace_path)
    _check_outputs(model, files, force=force or dry_run)
    if verify and not dry_run:
        check_can_run(target_named(device))
    _compile_ahead(copies)
    prepared = prepare(
        model,
        dims=dims or {},
        hardware=hardware,
        profile=profile,
        calibrate=calibrate,
        inputs=inputs,
        seed=seed,
        ort_optimize=ort_optimize,
        device=device,
        progress=report,
    )
    before = original_view(prepared)
    baseline = before.timeline.peak_bytes
    if verify and not dry_run:
        check_can_hold(prepared, baseline)
    text = budget or "100%"
    settings = settings_for(
        prepared, text, reserve, baseline, swap, order, time_limit_s, seed, workers, copies
    )
    with ExitStack() as stack:
        helper, looking = None, None
        if budget is not None and plans.fits_as_it_is(prepared, settings, budget):
            plan = plans.unchanged_plan(prepared, settings, budget_text=text, swap_mode=swap)
            rewritten, after = None, before
        else:
            _check_layout(prepared)
            if report_path is not None and not dry_run:
                helper = stack.enter_context(beside())
                helper.begin(get_ready, settings.overlap)
            if dry_run or not verify or output is None:
                prepared = compared(prepared, inputs=inputs, seed=seed, progress=report)
            with (search_context or nullcontext)():
                planned, settings, binds = _planned(
                    prepared, settings, max_slowdown, by_slowdown=budget is None, progress=report,
                    keep_on_interrupt=search_context is not None,
                )  # fmt: skip
            plan = plans.assemble(
                prepared, settings, planned, budget_text=budget or f"{max_slowdown} slower",
                swap_mode=swap,
            )  # fmt: skip
            limit = None if max_slowdown is None else parse_slowdown(max_slowdown)
            plan = replace(plan, max_slowdown=limit, binds=binds)
            rewritten = with_metadata(planned.rewritten, plan, prepared.target)
            after = rewritten_view(planned, plan, prepared.target)
            if helper is not None:
                limit_s = outlook_s(len(prepared.graph.operations), time_limit_s)
                question = beside_a_plan(
                    prepared, settings, planned, own=baseline, time_limit_s=limit_s
                )
                looking = helper.begin(look_beside, question)
        result = OptimizeResult(
            plan=plan, model_path=model, before=before, after=after, verification=None
        )
        if dry_run:
            return result
        files = stack.enter_context(written_together())
        if output is not None:
            report("writing the rewritten model")
            with files.writing(output) as model_file:
                _write_model(model, model_file, rewritten)
            result = replace(result, output_path=output)
            if verify:
                verification = run_both(
                    prepared, before, after, model_file, plan, inputs, seed, report,
                    thorough=verify == "thorough",
                    quiet=helper.paused if helper is not None else nullcontext,
                )  # fmt: skip
                result = replace(result, verification=verification)
        if looking is not None:
            report("waiting for what other budgets would cost")
            result = replace(result, outlook=looking.result())
        if plan_path is not None:
            with files.writing(plan_path) as plan_file:
                plan_file.write_text(plans.plan_to_json(plan), encoding="utf-8")
            result = replace(result, plan_path=plan_path)
        if trace_path is not None:
            from planner.report.trace import write_trace

            with files.writing(trace_path) as trace_file:
                write_trace(result, trace_file)
            result = replace(result, trace_path=trace_path)
        if report_path is not None:
            from planner.report.html import page_of

            result = replace(result, report_path=report_path)
            report("writing the report")
            page = page_of(result)
            with files.writing(report_path) as report_file:
                report_file.write_text(page, encoding="utf-8")
    if result.verification is not None and not result.verification.passed:
        raise VerificationError(
            f"ONNX Runtime does not confirm the plan: {result.verification.failures[0]}; "
            f"the files are left as evidence ({output})",
            result=result,
        )
    return result


def apply(model: Path, plan: Path, *, output: Path, force: bool = False) -> Path:
    """Rebuild the rewritten model from the original and its plan; returns `output`.

    Raises:
        ModelError: the plan belongs to another model, or is not a plan.
    """
    model, output = Path(model), Path(output)
    _check_outputs(model, (output,), force=force)
    loaded_plan = plans.read_plan(Path(plan))
    prepared = prepare_for(model, loaded_plan)
    if not loaded_plan.unchanged:
        compared(prepared, seed=loaded_plan.seed, progress=silent)
    rewritten = None if loaded_plan.unchanged else rebuild(prepared, loaded_plan).rewritten
    with atomic_write(output) as temporary:
        _write_model(model, temporary, rewritten)
    return output


def verify(
    original: Path,
    rewritten: Path,
    *,
    plan: Path | None = None,
    budget: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    device: Device = "cpu",
    fast: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Run both models on ONNX Runtime: same numbers, planned order, bytes, cap, time.

    Args:
        plan: the plan file; without it, `budget` gives the budget (or none is checked).
        fast: each model runs once under each set of options, as in `optimize`.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    report = progress or silent
    check_can_run(target_named(device))
    the_plan = plans.read_plan(Path(plan)) if plan is not None else None
    dims = dict(dims or (the_plan.dims if the_plan else {}))
    ort_optimized = the_plan.ort_optimized if the_plan else True
    if the_plan is not None and the_plan.device not in (device, "any"):
        raise UsageError(
            f"{plan} is a plan for {the_plan.device}: verify with --device {the_plan.device}"
        )
    if the_plan is not None and the_plan.model_sha256 != model_digest(Path(original)):
        raise ModelError(f"{plan} belongs to another model than {original} (digests differ)")
    prepared = prepare(
        Path(original),
        dims=dims,
        hardware=the_plan.hardware if the_plan else "cpu",
        inputs=inputs,
        seed=seed,
        ort_optimize=ort_optimized,
        device=device,
        progress=report,
    )
    before = original_view(prepared)
    check_can_hold(prepared, before.timeline.peak_bytes)
    target = the_plan.order_target if the_plan else "default"
    after = file_view(Path(rewritten), dims, target, prepared)
    if the_plan is None:
        peak = before.timeline.peak_bytes
        budget_bytes = parse_budget(budget, baseline_bytes=peak) if budget else peak
        the_plan = stand_in_plan(prepared, budget or "100%", budget_bytes)
    return run_both(
        prepared, before, after, Path(rewritten), the_plan, inputs, seed, report, thorough=not fast
    )


# -- pieces ------------------------------------------------------------------------------------


def _compile_ahead(copies: Copies) -> None:
    """Have what is not compiled yet on this machine be compiled while the model is read."""
    from planner.pack import depth_first
    from planner.search.fast import warm

    warm.begin(overlap=copies != "serial")
    depth_first.begin()


def _check_outputs(model: Path, outputs: tuple[Path | None, ...], *, force: bool) -> None:
    for path in outputs:
        if path is None:
            continue
        if os.path.exists(path) and model.exists() and path.samefile(model):
            raise UsageError(f"output {path} is the model itself; name another file")
        check_writable(path, force=force)


def _check_layout(prepared: Prepared) -> None:
    """Raise where default options would lay the planned operations out anew."""
    if prepared.blocked:
        first, count = prepared.blocked[0], len(prepared.blocked)
        rest = f" and {count - 1} more" if count > 1 else ""
        raise ModelError(
            f"convolutions with constant weights or pools ({first!r}{rest}) run in a blocked layout "
            "(NCHWc) under ONNX Runtime's default options, and no plan survives that; make weights "
            "graph inputs, as in a training graph, or plan for sessions of the level ORT_DISABLE_ALL "
            "with --no-ort-optimize"
        )


def _planned(
    prepared: Prepared,
    settings: Settings,
    max_slowdown: str | None,
    *,
    by_slowdown: bool,
    progress: Progress,
    keep_on_interrupt: bool,
) -> tuple[Planned, Settings, str]:
    """(plan, settings with its budget, what binds)."""
    if by_slowdown:
        if max_slowdown is None:
            raise UsageError("give a --budget, a --max-slowdown, or both")
        within = plan_within(prepared, settings, parse_slowdown(max_slowdown), progress)
        return within.planned, within.settings, "slowdown"
    planned = make_plan(prepared, settings, progress, keep_on_interrupt=keep_on_interrupt)
    assert planned.solved.candidate is not None
    added = planned.solved.candidate.time_us / sum(prepared.original_us) - 1
    if max_slowdown is not None and added > parse_slowdown(max_slowdown):
        bound = planned.solved.bound_us / sum(prepared.original_us) - 1
        raise InfeasibleBudgetError(
            f"within {format_both(settings.budget_bytes)} the plan found is {format_percent(added)} "
            f"slower, more than {max_slowdown} (in its base order none is below "
            f"{format_percent(max(0.0, bound))}): the slowdown binds; allow more of it, or a larger "
            "budget"
        )
    return planned, settings, "budget" if added > 1e-9 else ""


def _write_model(model: Path, output: Path, rewritten: Rewritten | None) -> None:
    if rewritten is not None:
        write_model(rewritten.model, output)
    else:
        shutil.copyfile(model, output)
