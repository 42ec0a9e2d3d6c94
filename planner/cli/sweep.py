"""`planner sweep`: what each budget costs in time, and the largest size that fits each."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit_json, note, progress, verbosity
from planner.cli.outputs import check_outputs
from planner.cli.params import read_noting
from planner.errors import UsageError
from planner.files.reading import shown
from planner.positions import shape_dims
from planner.report.plain import nearby
from planner.units import check_budget, check_time_limit, parse_bytes, parse_whole

_MAX_SIZES = 1_000


def sweep(
    model: o.Model,
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets",
            metavar="LIST",
            help="Budgets: 8GB,12GB or 90%,70%,50% [--points of them, spread evenly].",
        ),
    ] = None,
    points: Annotated[
        int, typer.Option("--points", metavar="N", min=2, max=1000, help="How many budgets.")
    ] = 12,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar="NAME=N[,N...]|A:B[:STEP]",
            help="The size of an open dim, by its name or its place (x:0=8); one may have several sizes.",
        ),
    ] = None,
    shape: o.Shapes = None,
    bound: o.Bounds = None,
    output: o.HtmlReport = None,
    hardware: o.Hardware = "cpu",
    profile: o.Profile = None,
    calibrate: o.Calibrate = None,
    swap: o.Swap = None,
    copies: o.Copies = "serial",
    resident: o.Resident = None,
    feeds: o.Feeds = "auto",
    reserve: o.Reserve = "0B",
    time_limit: o.TimeLimit = 120.0,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", metavar="N", min=1, help="Points solved at once [all cores]."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Solve on a Ray cluster that has planner installed: ray://HOST:PORT, auto, local.",
        ),
    ] = None,
    seed: o.Seed = 0,
    reproducible: o.Reproducible = False,
    device: o.Looked = None,
    inputs: o.Inputs = None,
    no_ort_optimize: o.NoOrtOptimize = False,
    params: o.Params = None,
    force: o.Force = False,
    json: o.Json = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Show what each memory budget costs in time, and the largest size that fits each.

    Plans are searched for and simulated; no model is written. Times are predicted. The table least-peak
    of FILE.toml changes nothing here.

    \b
    Examples:
      planner sweep model.onnx
      planner sweep model.onnx --budgets 16GB,24GB,40GB --hardware a100-40gb -o sweep.html
      planner sweep model.onnx --dim batch=8:64:8 --swap none --json > sweep.json
    """
    asked = [text.strip() for text in budgets.split(",")] if budgets is not None else []
    for text in asked:
        check_budget(text)
    parse_bytes(reserve, what="--reserve", zero_ok=True)
    dims = parse_sizes(dim, shape)
    o.check_copies(copies, swap)
    check_time_limit(time_limit)
    o.check_inputs(model=model, profile=profile, inputs=inputs)
    if output is not None:
        check_outputs(output, inputs=(model, profile, inputs, params), force=force)
    if params is not None:
        read_noting(params, unused=("least-peak",))

    from planner import api_sweep

    with progress(time_limit) as report_progress:
        found = api_sweep.sweep(
            model,
            budgets=asked,
            points=points,
            dims=dims,
            bounds=o.parse_bounds(bound),
            hardware=hardware,
            profile=profile,
            calibrate=calibrate,
            swap=swap,
            copies=copies,
            resident=resident,
            feeds=feeds,
            reserve=reserve,
            time_limit_s=time_limit,
            seed=seed,
            reproducible=reproducible,
            jobs=jobs,
            ray_address=ray,
            ort_optimize=not no_ort_optimize,
            device=device,
            inputs=inputs,
            params=params,
            progress=report_progress,
        )
        from planner.report.sweep import print_sweep, sweep_payload, write_sweep

        payload = sweep_payload(found)
        if output is not None:
            write_sweep(payload, output)
    if json:
        emit_json(payload)
    elif not verbosity.quiet:
        print_sweep(payload, in_full=verbosity.verbose)
    if output is not None:
        note(f"wrote {nearby(output)}")


def parse_sizes(texts: list[str] | None, shapes: list[str] | None = None) -> dict[str, list[int]]:
    """`["batch=8:32:8", "seq=128"]` -> `{"batch": [8, 16, 24, 32], "seq": [128]}`; ends included. Behind
    them are the dims that `shapes` come to (`planner.positions`).

    Raises:
        UsageError: not NAME=N, NAME=N,N... or NAME=A:B[:STEP], a name bound twice, or no shape.
    """
    dims: dict[str, list[int]] = {}
    for text in texts or []:
        name, equals, sizes = text.rpartition("=")
        name = name.strip()
        found = _sizes(sizes)
        if not equals or not name or not found:
            raise UsageError(
                f"--dim {shown(text)} is not NAME=N, NAME=N,N... or NAME=A:B[:STEP], "
                "in positive integers, with A at most B"
            )
        if name in dims:
            raise UsageError(f"--dim {name} is given twice; list its sizes as {name}=A,B")
        dims[name] = found
    return dims | {place: [size] for place, size in shape_dims(shapes or ()).items()}


def _sizes(text: str) -> list[int]:
    """The sizes, or none where the text is not understood."""
    parts = text.replace(",", ":").split(":")
    numbers = [number for part in parts if (number := parse_whole(part)) is not None]
    if len(numbers) < len(parts) or len(parts) > _MAX_SIZES:
        return []
    if min(numbers) < 1 or ("," in text and ":" in text):
        return []
    if ":" not in text:
        return sorted(set(numbers))
    if len(numbers) > 3 or numbers[1] < numbers[0]:
        return []
    first, last, step = numbers if len(numbers) == 3 else (*numbers, 1)
    if (last - first) // step >= _MAX_SIZES:
        return []
    return list(range(first, last + 1, step))
