"""`planner explain`: one tensor of a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit, progress
from planner.cli.outputs import check_input
from planner.units import check_time_limit


@o.asks("explain")
def explain(
    model: o.Model,
    plan: o.PlanFile,
    *,
    tensor: Annotated[
        str, typer.Option("--tensor", metavar="NAME", help="The tensor.", show_default=False)
    ],
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit", metavar="SECONDS", help="Time limit for computing the prices."
        ),
    ] = 20.0,
    asked: o.Said,
    json: o.Json = False,
) -> None:
    """Show what a plan does with one tensor: where it is, its alternatives, and the price of its bytes.

    \b
    Examples:
      planner explain model.onnx model.plan.json --tensor layer.3.out
      planner explain model.onnx model.plan.json --tensor layer.3.out --json
    """
    check_time_limit(time_limit)
    check_input(model, what="model")
    check_input(plan, what="plan")

    from planner.pipeline.answer.explain import explain as explain_tensor
    from planner.report.terminal.explain import print_explanation

    with progress() as report_progress:
        found = explain_tensor(
            model,
            plan,
            tensor,
            profile=asked["profile"],
            time_limit_s=time_limit,
            progress=report_progress,
        )
    emit(found, print_explanation, json=json)
