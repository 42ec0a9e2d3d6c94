"""`planner analyze`: where the memory of a model goes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli import options as o
from planner.cli.console import emit_json, note, progress, verbosity
from planner.cli.outputs import check_outputs
from planner.report.plain import nearby
from planner.units import check_time_limit

if TYPE_CHECKING:
    from planner.results import ModelView


def analyze(
    model: o.Model,
    output: o.HtmlReport = None,
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
    what_if: o.As = None,
    time_limit: o.TimeLimit = 60.0,
    seed: o.Seed = 0,
    reproducible: o.Reproducible = False,
    device: o.Looked = None,
    inputs: o.Inputs = None,
    no_ort_optimize: o.NoOrtOptimize = False,
    force: o.Force = False,
    json: o.Json = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Show the peak memory of a model, what it is made of, and what a budget would cost.

    \b
    Examples:
      planner analyze model.onnx
      planner analyze model.onnx --dim batch=32 -o memory.html
      planner analyze model.onnx --shape x=1x3x224x224
      planner analyze model.onnx --as bf16 --as sparse=0.3 --as bf16,sparse=0.3
      planner analyze model.onnx --json > memory.json
    """
    dims = o.parse_dims(dim, shape)
    bounds = o.parse_bounds(bound)
    o.check_what_if(what_if)
    o.check_copies(copies, swap)
    check_time_limit(time_limit)
    o.check_inputs(model=model, profile=profile, inputs=inputs)
    if output is not None:
        check_outputs(output, inputs=(model, profile, inputs), force=force)

    from planner import api

    # whoever waits at a terminal reads the first lines while the rest is searched for
    is_awaited = sys.stdout.isatty() and not (json or verbosity.quiet or verbosity.verbose)
    with progress(time_limit) as report_progress:
        analysis = api.analyze(
            model,
            dims=dims,
            bounds=bounds,
            hardware=hardware,
            profile=profile,
            calibrate=calibrate,
            swap=swap,
            copies=copies,
            resident=resident,
            feeds=feeds,
            ort_optimize=not no_ort_optimize,
            time_limit_s=time_limit,
            seed=seed,
            reproducible=reproducible,
            device=device,
            inputs=inputs,
            what_if=what_if or (),
            progress=report_progress,
            on_model=partial(_print_peak, model) if is_awaited else None,
        )
        if output is not None:
            from planner.report.html import write_report

            write_report(analysis, output)
    from planner.report.payload import analysis_payload

    payload = analysis_payload(analysis)
    if json:
        emit_json(payload)
    elif not verbosity.quiet:
        from planner.report.brief import print_analysis_brief, print_possible_brief
        from planner.report.terminal import print_analysis

        brief = print_possible_brief if is_awaited else print_analysis_brief
        (print_analysis if verbosity.verbose else brief)(payload)
    if output is not None:
        note(f"wrote {nearby(output)}")


def _print_peak(model: Path, view: ModelView) -> None:
    """The peak, and what it is made of."""
    from planner.report.brief import print_peak_brief
    from planner.report.views import peak_payload

    print_peak_brief(str(model), peak_payload(view))
