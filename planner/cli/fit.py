"""`planner fit`: which devices hold a model, at which size of it, and at what price in time."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit_json, progress, verbosity
from planner.cli.sweep import parse_sizes
from planner.errors import InfeasibleBudgetError, UsageError
from planner.units import check_time_limit


def fit(
    model: o.Model,
    hardware: Annotated[
        list[str],
        typer.Option(
            "--hardware",
            metavar="NAME|FILE.toml|all",
            help="Hardware profile; several with commas, or repeated; all: every device that ships.",
            autocompletion=o.hardware_names,
        ),
    ],
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar="NAME[=N[,N...]|=A:B[:STEP]]",
            help="The size of an open dim, by its name or its place (x:0=8). One may have several sizes, "
            "or none, to double from 1 on: the largest that fits is looked for.",
        ),
    ] = None,
    shape: o.Shapes = None,
    bound: o.Bounds = None,
    reserve: Annotated[
        str,
        typer.Option(
            "--reserve",
            metavar="SIZE|PERCENT",
            help="Of each device's memory, for driver, context and libraries; auto: 1 GiB, or a tenth of "
            "the memory where that is less, as planner optimize sets aside where no --budget is given.",
        ),
    ] = "auto",
    feeds: o.Feeds = "auto",
    time_limit: o.TimeLimit = 120.0,
    seed: o.Seed = 0,
    reproducible: o.Reproducible = False,
    inputs: o.Inputs = None,
    no_ort_optimize: o.NoOrtOptimize = False,
    json: o.Json = False,
    memory_limit: o.MemoryLimit = None,
    timeout: o.Timeout = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Show which devices hold a model: as it is, with recompute, with copies to the host.

    Nothing is run on the devices: bytes are planned, times are the rooflines of their profiles. The exit
    code is 4 where one of the devices holds the model in no way that was run on a card (copies that
    overlap were not yet, and do not count).

    \b
    Examples:
      planner fit model.onnx --hardware h100
      planner fit model.onnx --hardware t4,rtx-4090,a100-40gb --reserve 2GB
      planner fit model.onnx --hardware all --dim batch
      planner fit model.onnx --hardware mine.toml --dim batch=8:64:8 --json
    """
    names = [name.strip() for text in hardware for name in text.split(",")]
    dims = _sizes(dim, shape)
    check_time_limit(time_limit)
    o.check_inputs(model=model, inputs=inputs)

    from planner import api_devices

    api_devices.check_reserve(reserve)
    with progress(time_limit) as report_progress:
        found = api_devices.fit_devices(
            model,
            names,
            dims=dims,
            bounds=o.parse_bounds(bound),
            reserve=reserve,
            feeds=feeds,
            time_limit_s=time_limit,
            seed=seed,
            reproducible=reproducible,
            ort_optimize=not no_ort_optimize,
            inputs=inputs,
            progress=report_progress,
        )
        from planner.report.devices import fit_payload, print_fit

        payload = fit_payload(found)
    if json:
        emit_json(payload)
    elif not verbosity.quiet:
        print_fit(payload, in_full=verbosity.verbose)
    missing = [device.hardware for device in found.devices if not device.fits]
    if missing:
        raise InfeasibleBudgetError(
            f"no plan of {model} was found that fits {', '.join(missing)}; give a smaller --dim, or "
            "--reserve less",
            least_peak_bytes=(found.least_on_host or found.least_peak).found_bytes,
        )


def _sizes(texts: list[str] | None, shapes: list[str] | None) -> dict[str, list[int]]:
    """As `planner sweep` has them; a name alone has no sizes.

    Raises:
        UsageError: as `parse_sizes`.
    """
    alone = [text.strip() for text in texts or [] if "=" not in text]
    dims = parse_sizes([text for text in texts or [] if "=" in text], shapes)
    for name in alone:
        if not name or name in dims:
            raise UsageError(f"--dim {name or repr(name)} is empty, or given twice")
        dims[name] = []
    return dims
