"""`planner explain`: one tensor of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit_json, progress, verbosity
from planner.units import check_time_limit


def explain(
    model: o.Model,
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="The plan that planner optimize wrote.", show_default=False
        ),
    ],
    tensor: Annotated[
        str, typer.Option("--tensor", metavar="NAME", help="The tensor.", show_default=False)
    ],
    profile: o.Profile = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="Time limit of the prices.")
    ] = 20.0,
    json: o.Json = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Show what a plan does with one tensor: where it is, what was weighed, what its bytes are worth.

    \b
    Examples:
      planner explain model.onnx model.plan.json --tensor layer.3.out
      planner explain model.onnx model.plan.json --tensor layer.3.out --json
    """
    check_time_limit(time_limit)
    o.check_input(model, what="model")
    o.check_input(plan, what="plan")
    o.check_input(profile, what="profile")

    from planner.pipeline.answer.explain import explain as explain_tensor
    from planner.report.explain import explain_payload, print_explanation

    with progress() as report_progress:
        found = explain_tensor(
            model,
            plan,
            tensor,
            profile=profile,
            time_limit_s=time_limit,
            progress=report_progress,
        )
    payload = explain_payload(found)
    if json:
        emit_json(payload)
    elif not verbosity.quiet:
        print_explanation(payload)
