"""`planner apply`: rebuild a rewritten model from the original and its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import note
from planner.cli.outputs import check_outputs, name_outputs
from planner.report.plain import nearby


def apply(
    model: o.Model,
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="The plan that planner optimize wrote.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The rewritten model [./NAME.planned.onnx]."
        ),
    ] = None,
    force: o.Force = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Rewrite a model as a plan says, without searching again.

    \b
    Examples:
      planner apply model.onnx model.plan.json
      planner apply model.onnx model.plan.json -o small.onnx --force
    """
    o.check_input(model, what="model")
    o.check_input(plan, what="plan")
    rewritten = name_outputs(model, output=output).model
    check_outputs(rewritten, inputs=(model, plan), force=force)

    from planner import api

    written = api.apply(model, plan, output=rewritten, force=force)
    note(f"wrote {nearby(written)}")
