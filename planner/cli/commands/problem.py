"""`planner problem`: write the planning problem of a model, to be solved without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from planner.cli import options as o
from planner.cli.console import note, progress
from planner.cli.outputs import check_input, check_outputs
from planner.report.plain import nearby


@o.asks("problem")
def problem(
    model: o.Model,
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The problem [./NAME.problem.json]."),
    ] = None,
    asked: o.Said,
    order: Annotated[
        Literal["default", "best"],
        typer.Option(
            "--order", help="Use ONNX Runtime's own order, or the best order that planner finds."
        ),
    ] = "default",
    force: o.Force = False,
) -> None:
    """Write the planning problem of a model: operations, tensors, times, and copy bandwidths.

    planner solve reads the file (JSON), which holds only names, sizes and times of the model.

    \b
    Examples:
      planner problem model.onnx -o problem.json
      planner problem model.onnx --dim batch=32 --hardware a100-40gb --order best
    """
    check_input(model, what="model")
    target = output or Path(f"{model.name.removesuffix('.onnx')}.problem.json")
    check_outputs(target, inputs=(model, asked["profile"]), force=force)

    from planner.defaults import requested
    from planner.onnxio.save import atomic_write
    from planner.pipeline.answer.problem import problem_of
    from planner.pipeline.prepare.prepared import prepare
    from planner.plan.problemfile import problem_to_json

    with progress(asked["time_limit_s"]) as report:
        request = requested("problem", {"model": model, **asked.typed})
        prepared = prepare(request, progress=report)
        if order == "best":
            report("searching for a better order")
        found = problem_of(
            prepared,
            name=model.name.removesuffix(".onnx"),
            order=order,
            order_limit_s=asked["time_limit_s"],
        )
    with atomic_write(target) as temporary:
        temporary.write_text(problem_to_json(found), encoding="utf-8")
    note(f"wrote {nearby(target)}: {len(found.ops):,} operations, {len(found.tensors):,} tensors")
