"""`planner fit`: which devices hold a model, at which size of it, and at what price in time."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as o
from planner.cli.console import Progress, emit, note, progress, verbosity
from planner.cli.outputs import check_input
from planner.errors import InfeasibleBudgetError, UsageError
from planner.request import shipped_hardware
from planner.request.asking import TARGET, configuration_of

_OPTIMIZER = "adamw"


@o.asks("fit")
def fit(
    model: o.Model,
    *,
    hardware: Annotated[
        list[str],
        typer.Option(
            "--hardware",
            metavar="NAME|FILE.toml|all",
            help="Hardware profile; separate several with commas, or repeat it; all: every "
            "profile that ships.",
            autocompletion=shipped_hardware,
            rich_help_panel=TARGET,
        ),
    ],
    asked: o.Said,
    json: o.Json = False,
) -> None:
    """Show which devices hold a model: as it is, with recompute, with copies to the host.

    Nothing runs on the devices: bytes are planned, and times are predicted from the rooflines of their
    profiles. The exit code is 4 if a device cannot hold the model. Copies that overlap with operations do
    not count as a way to fit, as they have not run on a card yet.

    MODEL may be a transformers configuration without weights: hf:config.json, its folder, or a model type
    (hf:gpt2). Its training step (float32, AdamW) is traced from shapes alone, with the dims batch (1 by
    default) and, for text, seq; planner export writes other steps. This needs PyTorch and transformers.

    \b
    Examples:
      planner fit model.onnx --hardware h100
      planner fit hf:llama/config.json --hardware h100,h200 --dim batch --dim seq=2048
      planner fit model.onnx --hardware t4,rtx-4090,a100-40gb --reserve 2GB
      planner fit model.onnx --hardware all --dim batch
      planner fit model.onnx --hardware mine.toml --dim batch=8:64:8 --json
    """
    names = [name.strip() for text in hardware for name in text.split(",")]
    if configuration_of(model) is None:
        check_input(model, what="model")

    from planner import api_devices

    with progress(asked.seconds) as report, _graph_of(model, asked, report) as graph:
        found = api_devices.fit_devices(graph.path, names, **graph.options, progress=report)
    from planner.report.terminal.fit import print_fit

    found = found.named(graph.called)
    emit(found, partial(print_fit, in_full=verbosity.verbose), json=json)
    if graph.made_by:
        note(
            f"{graph.called} is the step of {graph.of}, in the graph that this makes: {graph.made_by}"
        )
    missing = [device.hardware for device in found.devices if not device.fits]
    if missing:
        raise InfeasibleBudgetError(
            f"no plan of {model} was found that fits {', '.join(missing)}; give a smaller --dim, or "
            "--reserve less",
            least_peak_bytes=(found.least.on_host or found.least.on_device).peak_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """The graph that is looked at.

    Attributes:
        called: as the report names it.
        options: arguments of `fit_devices`.
        of, made_by: the class, and the command that writes it, where it was made for this alone.
    """

    path: Path
    called: Path
    options: Mapping[str, Any]
    of: str = ""
    made_by: str = ""


@contextmanager
def _graph_of(model: Path, asked: o.Said, report: Progress) -> Iterator[_Graph]:
    """The model itself, or the graph of a configuration in a folder that goes afterwards."""
    source, config = str(model), configuration_of(model)
    if config is None:
        yield _Graph(path=model, called=model, options=asked.typed)
        return
    from planner.export.torch_extra import require_torch

    require_torch()
    from planner.export.configured import BATCH, SEQ, configured_step, name_of
    from planner.export.training import export_training_graph

    dims = dict(asked["dims"] or {})
    batch, seq = dims.pop(BATCH, [1]), dims.pop(SEQ, None)
    if seq is not None and len(seq) != 1:
        raise UsageError(
            f"--dim {SEQ} takes one size in a graph of hf:CONFIG; only the batch takes several"
        )
    report(f"tracing {source}")
    fixed = {name: sizes[0] for name, sizes in dims.items() if sizes} | (
        {SEQ: seq[0]} if seq else {}
    )
    step = configured_step(config, fixed)
    called = Path(f"{name_of(source)}.onnx")
    words = ["planner", "export", source, "-o", str(called), "--optimizer", _OPTIMIZER]
    words += ["--dim", f"{SEQ}={seq[0]}"] if seq else []
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        path = Path(folder) / called
        export_training_graph(**step, optimizer=_OPTIMIZER).save(path)
        options = {**asked.typed, "dims": {BATCH: batch}}
        made_by = shlex.join(words)
        yield _Graph(path=path, called=called, options=options, of=step["name"], made_by=made_by)
