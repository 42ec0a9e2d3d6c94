"""`planner optimize`: rewrite a model so that it stays within a memory budget."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.cli import options as o
from planner.cli.console import emit_json, note, progress, verbosity
from planner.cli.ending import signals_raise
from planner.cli.outputs import check_outputs, name_outputs
from planner.cli.thresholds import PeakAbove, SlowerThan, check_optimized, parse_thresholds
from planner.errors import UsageError, VerificationError
from planner.report.plain import nearby
from planner.targets import Device
from planner.units import check_budget, check_time_limit, parse_bytes, parse_slowdown

if TYPE_CHECKING:
    from planner.results import OptimizeResult


_VERIFY: dict[str, bool | Literal["thorough"]] = {
    "fast": True,
    "thorough": "thorough",
    "none": False,
}


def optimize(
    model: o.Model,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Device memory: 16GB, 12GiB, or 60% of the model's own peak [with --device and "
            "--hardware of a GPU: its memory, less --reserve].",
            show_default=False,
        ),
    ] = None,
    max_slowdown: Annotated[
        str | None,
        typer.Option(
            "--max-slowdown",
            metavar="PERCENT",
            help="The most time to add; without --budget: the least peak within it.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The rewritten model [./NAME.planned.onnx]."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="The plan [NAME.plan.json beside it]."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="The report [NAME.report.html beside it]."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.json", help="Write a trace for Perfetto too."),
    ] = None,
    dim: o.Dims = None,
    shape: o.Shapes = None,
    bound: o.Bounds = None,
    hardware: o.Hardware = "cpu",
    profile: o.Profile = None,
    calibrate: o.Calibrate = None,
    swap: o.Swap = None,
    copies: o.Copies = "serial",
    resident: o.Resident = None,
    feeds: o.Feeds = "auto",
    recompute: o.Recompute = "auto",
    include: o.Include = None,
    exclude: o.Exclude = None,
    min_tensor: o.MinTensor = None,
    host_budget: o.HostBudget = None,
    disk: o.Disk = None,
    disk_budget: o.DiskBudget = None,
    micro_batch: o.MicroBatch = "1",
    split: o.Split = "none",
    cast_saved: o.CastSaved = "none",
    fuse: o.Fuse = "none",
    no_pattern: o.NoPattern = False,
    order: Annotated[
        Literal["default", "priority"],
        typer.Option("--order", help="The session's execution order that the file is made for."),
    ] = "default",
    reserve: Annotated[
        str,
        typer.Option(
            "--reserve",
            metavar="SIZE|PERCENT",
            help="Part of the budget to leave unused; where a GPU's memory is the budget, what of it no "
            "plan may have. auto: nothing of a --budget, which stays as it was typed, and 1 GiB of a "
            "GPU's memory, for driver, context and libraries.",
        ),
    ] = "auto",
    budget_of: o.BudgetOf = "held",
    time_limit: o.TimeLimit = 60.0,
    seed: o.Seed = 0,
    workers: o.Workers = None,
    reproducible: o.Reproducible = False,
    device: o.Device = None,
    inputs: o.Inputs = None,
    verify: Annotated[
        Literal["fast", "thorough", "none"],
        typer.Option(
            "--verify", help="How to run both models: once each, more and at all levels, or not."
        ),
    ] = "fast",
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Short for --verify none.")
    ] = False,
    strict: o.Strict = False,
    no_ort_optimize: o.NoOrtOptimize = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and print; write nothing.")
    ] = False,
    fail_if_peak_above: PeakAbove = None,
    fail_if_slower_than: SlowerThan = None,
    force: o.Force = False,
    json: o.Json = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Rewrite a model so that it stays within a memory budget, and prove it on ONNX Runtime.

    Writes the rewritten model, the plan (JSON) and a report (one HTML file). Ctrl-C ends the search for
    a plan: the best one so far is taken, where there is one.

    \b
    Examples:
      planner optimize model.onnx --budget 60%
      planner optimize model.onnx --budget 16GB --reserve 1GB -o small.onnx
      planner optimize model.onnx --budget 40% --dim batch=32
      planner optimize model.onnx --budget 40% --shape x=8x3x224x224
      planner optimize model.onnx --max-slowdown 5%
      planner optimize model.onnx --budget 60% --dry-run --json > plan.json
      planner optimize model.onnx --budget 60% --device webgpu
      planner optimize model.onnx --device cuda --hardware rtx-4090 --no-verify
      planner optimize model.onnx --budget 30% --device cuda --hardware a100-40gb --resident host
      planner optimize model.onnx --budget 60% --exclude 'op:Softmax' --min-tensor 1MiB
      planner optimize model.onnx --budget 40% --dim batch=64 --micro-batch auto
      planner optimize model.onnx --budget 40% --disk /mnt/nvme --disk-budget 200GB
      planner optimize model.onnx --budget 16GB --fail-if-slower-than 5%
    """
    _check_aim(budget, max_slowdown, reserve)
    if budget is None and max_slowdown is None:
        _check_card(device, hardware, reserve)
    thresholds = parse_thresholds(fail_if_peak_above, fail_if_slower_than)
    dims = o.parse_dims(dim, shape)
    bounds = o.parse_bounds(bound)
    swap, resident = o.with_recompute(recompute, swap=swap, resident=resident)
    o.check_copies(copies, swap)
    if min_tensor is not None:
        parse_bytes(min_tensor, what="--min-tensor", zero_ok=True)
    if host_budget is not None:
        parse_bytes(host_budget, what="--host-budget")
    if disk_budget is not None:
        parse_bytes(disk_budget, what="--disk-budget")
    o.check_micro_batch(micro_batch)
    check_time_limit(time_limit)
    o.check_inputs(model=model, profile=profile, inputs=inputs)
    files = name_outputs(model, output=output, plan=plan, report=report)
    if not dry_run:
        sources = (model, profile, inputs)
        outputs = [files.model, files.plan, files.report, *([trace] if trace else [])]
        check_outputs(*outputs, inputs=sources, force=force)

    from planner import api
    from planner.pipeline.record.assemble import INTERRUPTED

    try:
        with progress(time_limit) as report_progress:
            result = api.optimize(
                model,
                budget=budget,
                max_slowdown=max_slowdown,
                output=files.model,
                plan_path=files.plan,
                report_path=files.report,
                trace_path=trace,
                dims=dims,
                bounds=bounds,
                hardware=hardware,
                profile=profile,
                calibrate=calibrate,
                swap=swap,
                copies=copies,
                resident=resident,
                feeds=feeds,
                recompute=recompute != "none",
                include=include or (),
                exclude=exclude or (),
                min_tensor=min_tensor,
                host_budget=host_budget,
                disk=disk,
                disk_budget=disk_budget,
                micro_batch=micro_batch,
                split=split,
                cast_saved=cast_saved,
                fuse=fuse,
                pattern=not no_pattern,
                order=order,
                reserve=reserve,
                budget_of=budget_of,
                strict=strict,
                time_limit_s=time_limit,
                seed=seed,
                workers=workers,
                reproducible=reproducible,
                device=device,
                verify=_VERIFY["none" if no_verify else verify],
                inputs=inputs,
                ort_optimize=not no_ort_optimize,
                force=force,
                dry_run=dry_run,
                search_context=lambda: signals_raise(signal.SIGINT),
                progress=report_progress,
            )
    except VerificationError as error:
        # what was found is shown all the same: it is the evidence
        if (failed := getattr(error, "result", None)) is not None:
            show(failed, json=json)
        raise
    payload = show(result, json=json)
    if trace is not None and not dry_run:
        note(f"wrote {nearby(trace)}")
    if dry_run:
        note("dry run: nothing was written")
    if INTERRUPTED in result.plan.assumptions:
        note(INTERRUPTED)
    if result.verification is not None and not result.verification.passed:
        raise typer.Exit(VerificationError.exit_code)
    check_optimized(thresholds, payload["headline"])


def _check_aim(budget: str | None, max_slowdown: str | None, reserve: str) -> None:
    """Raise UsageError where a limit, or what is to be left of it, is not understood."""
    if budget is not None:
        check_budget(budget)
    if max_slowdown is not None:
        parse_slowdown(max_slowdown)
    if reserve != "auto" and (budget is not None or max_slowdown is not None):
        parse_bytes(reserve, what="--reserve", zero_ok=True)


def _check_card(device: Device | None, hardware: str, reserve: str) -> None:
    """Raise UsageError where no memory is known that could be the budget."""
    from planner.defaults import card_of, meant, set_aside

    meant(device=device, hardware=hardware, swap=None, resident=None)
    card = card_of(device, hardware)
    if card is None:
        raise UsageError(
            "give a --budget, such as 16GB or 60%, a --max-slowdown, such as 5%, or both; or --device "
            "and --hardware of a GPU, whose memory is the budget then"
        )
    set_aside(card, reserve)


def show(result: OptimizeResult, *, json: bool) -> dict[str, Any]:
    """Print what came of planning; returns the document of `--json`."""
    from planner.report.payload import optimize_payload

    payload = optimize_payload(result)
    if json:
        emit_json(payload)
    elif not verbosity.quiet:
        from planner.report.brief import print_optimize_brief
        from planner.report.terminal import print_optimize

        (print_optimize if verbosity.verbose else print_optimize_brief)(payload)
    return payload
