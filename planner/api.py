"""The public functions: analyze, optimize, apply, verify. Each drives the line from file to file."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from planner.errors import InfeasibleBudgetError, ModelError, UsageError, VerificationError
from planner.graph.model import Role, TrainingGraph
from planner.graph.schedule import default_order, priority_order
from planner.lower.rewrite import Rewritten
from planner.onnxio.load import load_model
from planner.onnxio.save import atomic_write, check_writable, save_model
from planner.pipeline import assemble as plans
from planner.pipeline.orders import Settings, base_orders, least_found_peak, least_possible_peak
from planner.pipeline.outlook import outlook, outlook_s
from planner.pipeline.planning import Planned, make_plan
from planner.pipeline.prepare import Prepared, analysed_graph, prepare, silent, view_of
from planner.pipeline.rebuild import prepare_for, rebuild, with_metadata
from planner.pipeline.slowdown import plan_within
from planner.plan.planfile import Plan, PredictedCost
from planner.results import Analysis, ModelView, OptimizeResult, Verification
from planner.units import (
    format_both,
    format_percent,
    parse_budget,
    parse_bytes,
    parse_slowdown,
)

Progress = Callable[[str], None]
Swap = Literal["auto", "none", "only"]
OrderTarget = Literal["default", "priority"]

_LEAST_S = 2.0
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
    device: str = "cpu",
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
        time_limit_s: for the searches: a better order, the least budget, what budgets cost.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    report = progress or silent
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
    least = least_found_peak(prepared, orders, time_limit_s=min(_LEAST_S, time_limit_s * 0.1))
    default = _original_view(prepared)
    settings = settings_for(
        prepared, "100%", "0B", default.timeline.peak_bytes, "auto", "default", time_limit_s, seed,
        None,
    )  # fmt: skip
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
        assumptions=prepared.graph.assumptions,
        outlook=outlook(
            prepared,
            settings,
            orders,
            time_limit_s=outlook_s(len(prepared.graph.operations), time_limit_s),
            progress=report,
        ),
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
    order: OrderTarget = "default",
    reserve: str = "0B",
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    verify: bool = True,
    inputs: Path | None = None,
    ort_optimize: bool = True,
    force: bool = False,
    dry_run: bool = False,
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
        order: the session option the file is written for.
        reserve: set aside out of the budget.
        dry_run: plan, but write and run nothing.

    Raises:
        UsageError, ModelError, InfeasibleBudgetError, VerificationError: see `planner.errors`.
            A failed verification leaves every file in place, as evidence.
    """
    report = progress or silent
    model = Path(model)
    files = (output, plan_path, report_path, trace_path)
    _check_outputs(model, files, force=force or dry_run)
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
    before = _original_view(prepared)
    baseline = before.timeline.peak_bytes
    text = budget or "100%"
    settings = settings_for(
        prepared, text, reserve, baseline, swap, order, time_limit_s, seed, workers
    )
    if budget is not None and settings.budget_bytes - settings.reserve_bytes >= baseline:
        plan = plans.unchanged_plan(prepared, settings, budget_text=text, swap_mode=swap)
        rewritten, after, ahead = None, before, None
    else:
        _check_layout(prepared)
        planned, settings, binds = _planned(
            prepared, settings, max_slowdown, by_slowdown=budget is None, progress=report
        )
        plan = plans.assemble(
            prepared, settings, planned, budget_text=budget or f"{max_slowdown} slower",
            swap_mode=swap,
        )  # fmt: skip
        limit = None if max_slowdown is None else parse_slowdown(max_slowdown)
        plan = replace(plan, max_slowdown=limit, binds=binds)
        rewritten = with_metadata(planned.rewritten, plan)
        after = _rewritten_view(planned, plan, prepared.device)
        ahead = None
        if report_path is not None and not dry_run:
            ahead = outlook(
                prepared,
                settings,
                planned.orders,
                planned=planned,
                time_limit_s=outlook_s(len(prepared.graph.operations), time_limit_s),
                progress=report,
            )
    result = OptimizeResult(
        plan=plan, model_path=model, before=before, after=after, verification=None, outlook=ahead
    )
    if dry_run:
        return result
    with contextlib.ExitStack() as staged:
        # all files are renamed into place together at the end: an interrupt leaves none
        if output is not None:
            report("writing the rewritten model")
            model_file = staged.enter_context(atomic_write(output))
            _write_model(model, model_file, rewritten)
            result = replace(result, output_path=output)
            if verify:
                verification = _verify(
                    prepared, before, after, model_file, plan, inputs, seed, device, report
                )
                result = replace(result, verification=verification)
        if plan_path is not None:
            plan_file = staged.enter_context(atomic_write(plan_path))
            plan_file.write_text(plans.plan_to_json(plan), encoding="utf-8")
            result = replace(result, plan_path=plan_path)
        if report_path is not None:
            from planner.report.html import write_report

            result = replace(result, report_path=report_path, trace_path=trace_path)
            report("writing the report")
            write_report(result, staged.enter_context(atomic_write(report_path)))
        if trace_path is not None:
            from planner.report.trace import write_trace

            result = replace(result, trace_path=trace_path)
            write_trace(result, staged.enter_context(atomic_write(trace_path)))
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
    rewritten = None if loaded_plan.unchanged else rebuild(prepared, loaded_plan).rewritten
    _write_model(model, output, rewritten)
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
    device: str = "cpu",
    progress: Progress | None = None,
) -> Verification:
    """Run both models on ONNX Runtime: same numbers, planned order, bytes, cap, time.

    Args:
        plan: the plan file; without it, `budget` gives the budget (or none is checked).

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    report = progress or silent
    the_plan = plans.read_plan(Path(plan)) if plan is not None else None
    dims = dict(dims or (the_plan.dims if the_plan else {}))
    ort_optimized = the_plan.ort_optimized if the_plan else True
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
    if the_plan is not None and the_plan.model_sha256 != prepared.loaded.sha256:
        raise ModelError(f"{plan} belongs to another model than {original} (digests differ)")
    before = _original_view(prepared)
    target = the_plan.order_target if the_plan else "default"
    after = _file_view(Path(rewritten), dims, target, prepared)
    if the_plan is None:
        peak = before.timeline.peak_bytes
        budget_bytes = parse_budget(budget, baseline_bytes=peak) if budget else peak
        the_plan = _stand_in_plan(prepared, budget or "100%", budget_bytes)
    return _verify(prepared, before, after, Path(rewritten), the_plan, inputs, seed, device, report)


# -- pieces ------------------------------------------------------------------------------------


def _check_outputs(model: Path, outputs: tuple[Path | None, ...], *, force: bool) -> None:
    for path in outputs:
        if path is None:
            continue
        if path.exists() and model.exists() and path.samefile(model):
            raise UsageError(f"output {path} is the model itself; name another file")
        check_writable(path, force=force)


def _check_layout(prepared: Prepared) -> None:
    """Raise where default options would lay the planned operations out anew."""
    if prepared.blocked:
        first, count = prepared.blocked[0], len(prepared.blocked)
        rest = f" and {count - 1} more" if count > 1 else ""
        raise ModelError(
            f"convolutions with constant weights ({first!r}{rest}) run in a blocked layout (NCHWc) "
            "under ONNX Runtime's default options, and no plan survives that; make their weights "
            "graph inputs, as in a training graph"
        )


def _planned(
    prepared: Prepared,
    settings: Settings,
    max_slowdown: str | None,
    *,
    by_slowdown: bool,
    progress: Progress,
) -> tuple[Planned, Settings, str]:
    """(plan, settings with its budget, what binds)."""
    if by_slowdown:
        if max_slowdown is None:
            raise UsageError("give a --budget, a --max-slowdown, or both")
        within = plan_within(prepared, settings, parse_slowdown(max_slowdown), progress)
        return within.planned, within.settings, "slowdown"
    planned = make_plan(prepared, settings, progress)
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


def settings_for(
    prepared: Prepared,
    budget: str,
    reserve: str,
    baseline: int,
    swap: Swap,
    order: OrderTarget,
    time_limit_s: float,
    seed: int,
    workers: int | None,
) -> Settings:
    budget_bytes = parse_budget(budget, baseline_bytes=baseline)
    reserve_bytes = parse_bytes(reserve, what="--reserve", zero_ok=True)
    if reserve_bytes >= budget_bytes:
        raise InfeasibleBudgetError(
            f"the reserve, {format_both(reserve_bytes)}, takes the whole budget of "
            f"{format_both(budget_bytes)}"
        )
    if swap == "only" and prepared.why_no_swaps:
        raise UsageError(f"--swap only: {prepared.why_no_swaps}; use --swap none")
    with_swaps = swap != "none" and not prepared.why_no_swaps
    hardware = prepared.hardware
    return Settings(
        budget_bytes=budget_bytes,
        reserve_bytes=reserve_bytes,
        allow_recompute=swap != "only",
        swap_out_bytes_per_s=hardware.copy_to_host_bytes_per_s if with_swaps else 0.0,
        swap_in_bytes_per_s=hardware.copy_from_host_bytes_per_s if with_swaps else 0.0,
        order_target=order,
        time_limit_s=time_limit_s,
        seed=seed,
        workers=workers,
    )


def _original_view(prepared: Prepared) -> ModelView:
    return view_of(
        prepared.original, prepared.default, prepared.original_us, device=prepared.device
    )


def _rewritten_view(planned: Planned, plan: Plan, device: str) -> ModelView:
    durations = _durations_after(planned)
    view = view_of(planned.graph, planned.order, durations, device=device)
    return replace(view, time_us=plan.planned.time_us)


def _durations_after(planned: Planned) -> tuple[float, ...]:
    """Duration by OpId of the rewritten graph: those of the originals, and of the copies."""
    problem = planned.formulation.problem
    by_node: dict[str, float] = {}
    assert planned.solved.candidate is not None
    for action, node in zip(
        planned.solved.candidate.actions, planned.rewritten.action_nodes, strict=True
    ):
        if action.kind.value == "run":
            by_node[node] = problem.ops[action.target].duration_us
        elif action.kind.value == "swap-out":
            by_node[node] = problem.swap_out_us(action.target)
        else:
            by_node[node] = problem.swap_in_us(action.target)
    return tuple(by_node.get(op.name, 0.0) for op in planned.graph.operations)


def _file_view(
    path: Path, dims: Mapping[str, int], order_target: str, original: Prepared
) -> ModelView:
    loaded = load_model(path, dims=dims)
    known = dict(original.types)
    for node in loaded.model.graph:  # a copy has the types of what it copies
        for value in node.outputs:
            stem = re.sub(r"__recompute_\d+(_\d+)?\Z", "", str(value.name))
            if stem in known:
                known.setdefault(str(value.name), known[stem])
    graph = analysed_graph(loaded.model, loaded.dims, known=known)
    order = priority_order(graph) if order_target == "priority" else default_order(graph)
    durations = (0.0,) * len(graph.operations)
    return view_of(graph, order, durations, device=original.device)


def _write_model(model: Path, output: Path, rewritten: Rewritten | None) -> None:
    if rewritten is not None:
        save_model(rewritten.model, output)
        return
    with atomic_write(output) as temporary:
        shutil.copyfile(model, temporary)


def _stand_in_plan(prepared: Prepared, text: str, budget_bytes: int) -> Plan:
    cost = plans.baseline_cost(prepared)
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


def _verify(
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
    from planner.runtime.inputs import make_inputs
    from planner.runtime.verify import verify as run_verification

    feeds, source = make_inputs(prepared.loaded.path, seed, prepared.loaded.dims, inputs)
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
        device=device,
        has_swaps=_has_swaps(after.graph),
        progress=progress,
    )


def _names(view: ModelView) -> tuple[str, ...]:
    return tuple(view.graph.operations[op].name for op in view.timeline.order)


def _has_swaps(graph: TrainingGraph) -> bool:
    return any(op.role in (Role.SWAP_OUT, Role.SWAP_IN) for op in graph.operations)
