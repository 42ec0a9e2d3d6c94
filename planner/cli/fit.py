"""`planner fit`: which devices hold a model, at which size of it, and at what price in time."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.console import emit, progress, verbosity
from planner.cli.outputs import check_input
from planner.errors import InfeasibleBudgetError
from planner.request import shipped_hardware
from planner.request.asking import TARGET


@o.asks("fit")
def fit(
    model: o.Model,
    *,
    hardware: Annotated[
        list[str],
        typer.Option(
            "--hardware",
            metavar="NAME|FILE.toml|all",
            help="Hardware profile; several with commas, or repeated; all: every device that ships.",
            autocompletion=shipped_hardware,
            rich_help_panel=TARGET,
        ),
    ],
    asked: o.Said,
    json: o.Json = False,
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
    check_input(model, what="model")

    from planner import api_devices

    with progress(asked["time_limit_s"]) as report_progress:
        found = api_devices.fit_devices(model, names, **asked.typed, progress=report_progress)
        from planner.report.devices import fit_payload, print_fit

        payload = fit_payload(found)
    emit(payload, partial(print_fit, in_full=verbosity.verbose), json=json)
    missing = [device.hardware for device in found.devices if not device.fits]
    if missing:
        raise InfeasibleBudgetError(
            f"no plan of {model} was found that fits {', '.join(missing)}; give a smaller --dim, or "
            "--reserve less",
            least_peak_bytes=(found.least_on_host or found.least_peak).found_bytes,
        )
