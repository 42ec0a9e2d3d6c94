"""`planner sweep`: the cost of each budget in time, and the largest size that fits each."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit, note, progress, verbosity
from planner.cli.outputs import check_input, check_outputs
from planner.report.plain import nearby
from planner.request.asking import BUDGET, SOLVER
from planner.units import check_budget

Budgets = Annotated[
    str | None,
    typer.Option(
        "--budgets",
        metavar="LIST",
        help="Budgets: 8GB,12GB or 90%,70%,50% [--points of them, spread evenly].",
        rich_help_panel=BUDGET,
    ),
]
Points = Annotated[
    int | None,
    typer.Option(
        "--points",
        metavar="N",
        min=2,
        max=1000,
        help="Number of budgets [12].",
        rich_help_panel=BUDGET,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=1,
        help="Number of plans to search for at once [all cores].",
        rich_help_panel=SOLVER,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Solve on a Ray cluster that has planner installed: ray://HOST:PORT, auto, local.",
        rich_help_panel=SOLVER,
    ),
]


@o.asks("sweep")
def sweep(
    model: o.Model,
    *,
    budgets: Budgets = None,
    points: Points = None,
    asked: o.Said,
    jobs: Jobs = None,
    ray: Ray = None,
    params: o.Params = None,
    output: o.HtmlReport = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show what each memory budget costs in time, and the largest size that fits each.

    Plans are searched for and simulated; no model is written. Times are predicted.

    \b
    Examples:
      planner sweep model.onnx
      planner sweep model.onnx --budgets 16GB,24GB,40GB --hardware a100-40gb -o sweep.html
      planner sweep model.onnx --dim batch=8:64:8 --swap none --json > sweep.json
    """
    wanted = [text.strip() for text in budgets.split(",")] if budgets is not None else []
    for text in wanted:
        check_budget(text)
    check_input(model, what="model")
    if output is not None:
        sources = (model, asked["profile"], asked["inputs"], params)
        check_outputs(output, inputs=sources, force=force)

    from planner import api_sweep

    with progress(asked.seconds) as report_progress:
        found = api_sweep.sweep(
            model,
            **asked.typed,
            budgets=wanted,
            points=points,
            jobs=jobs,
            ray_address=ray,
            params=params,
            progress=report_progress,
        )
        from planner.report.document.sweep import sweep_document
        from planner.report.terminal.sweep import print_sweep

        document = sweep_document(found)
        if output is not None:
            from planner.report.page.sweep import write_sweep

            write_sweep(document, output)
    emit(document, partial(print_sweep, in_full=verbosity.verbose), json=json)
    if output is not None:
        note(f"wrote {nearby(output)}")
