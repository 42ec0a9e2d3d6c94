"""`planner apply`: the rewritten model of a plan, from the original."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.commands.optimize import failures_shown, show
from planner.cli.console import emit_json, note, progress
from planner.cli.outputs import check_input, check_outputs, name_outputs
from planner.report.plain import nearby
from planner.units import check_time_limit


@o.asks()
def apply(
    model: o.Model,
    plan: o.PlanFile,
    output: o.Rewritten = None,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Time limit for making a plan again on this machine.",
        ),
    ] = 20.0,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not verify a plan that was made again.")
    ] = False,
    json: o.Json = False,
    force: o.Force = False,
) -> None:
    """Rewrite a model according to a plan, without another search.

    A plan for a GPU that was made without its provider rests on an assumed placement of nodes. On a
    machine with the provider, the plan is made again: within the same budget and levers, for the
    placement that the provider chooses, and verified. The new plan is written beside the rewritten model.

    \b
    Examples:
      planner apply model.onnx model.plan.json
      planner apply model.onnx model.plan.json -o small.onnx --force
      planner apply model.onnx model.plan.json --time-limit 60
    """
    check_time_limit(time_limit)
    check_input(model, what="model")
    check_input(plan, what="plan")
    rewritten = name_outputs(model, output=output).model
    of_its_own = rewritten.with_suffix(".plan.json")

    from planner.pipeline.answer.applying import applied
    from planner.pipeline.record.assemble import read_plan
    from planner.pipeline.record.files import Files
    from planner.pipeline.record.rebuild import is_made_here

    asked = read_plan(plan)
    files = Files(model=rewritten, plan=of_its_own if is_made_here(asked) else None)
    check_outputs(*filter(None, (files.model, files.plan)), inputs=(model, plan), force=force)
    with failures_shown(json=json), progress(time_limit) as report_progress:
        found = applied(
            model,
            asked,
            files,
            time_limit_s=time_limit,
            verify=not no_verify,
            progress=report_progress,
        )
    if found.again is None:
        if json:
            emit_json({"schema": "planner.apply/1", "model": str(rewritten), "plan": str(plan)})
        note(f"wrote {nearby(rewritten)}")
        return
    show(found.again, json=json)
