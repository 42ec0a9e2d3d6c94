"""`planner problem`: write the planning problem of a model, to be solved without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from planner.cli import options as o
from planner.cli.console import note, progress
from planner.cli.outputs import check_outputs
from planner.report.plain import nearby
from planner.units import check_time_limit


def problem(
    model: o.Model,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The problem [./NAME.problem.json]."),
    ] = None,
    dim: o.Dims = None,
    shape: o.Shapes = None,
    bound: o.Bounds = None,
    hardware: o.Hardware = "cpu",
    profile: o.Profile = None,
    swap: o.Swap = None,
    order: Annotated[
        Literal["default", "best"],
        typer.Option("--order", help="ONNX Runtime's own order, or the best that planner finds."),
    ] = "default",
    time_limit: o.TimeLimit = 60.0,
    no_ort_optimize: o.NoOrtOptimize = False,
    force: o.Force = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Write the planning problem of a model: operations, tensors, times, and copy bandwidths.

    The file (JSON) is what planner solve takes; it holds nothing of the model but names and sizes.

    \b
    Examples:
      planner problem model.onnx -o problem.json
      planner problem model.onnx --dim batch=32 --hardware a100-40gb --order best
    """
    dims = o.parse_dims(dim, shape)
    bounds = o.parse_bounds(bound)
    check_time_limit(time_limit)
    o.check_inputs(model=model, profile=profile)
    target = output or Path(f"{model.name.removesuffix('.onnx')}.problem.json")
    check_outputs(target, inputs=(model, profile), force=force)

    from planner.bounding import bounds_of
    from planner.defaults import meant
    from planner.onnxio.save import atomic_write
    from planner.pipeline.answer.problem import problem_of
    from planner.pipeline.prepare.prepared import prepare, silent
    from planner.plan.problemfile import problem_to_json
    from planner.request import Costs, Levers, Request

    with progress(time_limit) as report_progress:
        report = report_progress or silent
        said = meant(device=None, hardware=hardware, swap=swap, resident=None, is_written=False)
        request = Request(
            model=model,
            dims=dims,
            bounds=bounds_of(bounds),
            ort_optimize=not no_ort_optimize,
            costs=Costs(hardware=hardware, profile=profile),
            levers=Levers(swap=said.swap),
        )
        prepared = prepare(request, progress=report)
        if order == "best":
            report("searching for a better order")
        found = problem_of(
            prepared,
            name=model.name.removesuffix(".onnx"),
            order=order,
            order_limit_s=time_limit,
        )
    with atomic_write(target) as temporary:
        temporary.write_text(problem_to_json(found), encoding="utf-8")
    note(f"wrote {nearby(target)}: {len(found.ops):,} operations, {len(found.tensors):,} tensors")
