"""Options that more than one command takes, and what turns their text into values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from planner.cli.console import verbosity
from planner.errors import UsageError


def _set_verbose(value: bool) -> None:
    verbosity.verbose = verbosity.verbose or value


def _set_quiet(value: bool) -> None:
    verbosity.quiet = verbosity.quiet or value


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="Bind a symbolic dim; may be repeated."),
]
Hardware = Annotated[
    str, typer.Option("--hardware", metavar="NAME|FILE.toml", help="Hardware profile.")
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="FILE", help="Take times from a profile that ONNX Runtime wrote."
    ),
]
Swap = Annotated[
    Literal["auto", "none", "only"],
    typer.Option("--swap", help="Copy tensors to the host: when it pays, never, or only that."),
]
Copies = Annotated[
    Literal["serial", "overlapped", "auto"],
    typer.Option(
        "--copies",
        help="Copies add to the step, as ONNX Runtime runs them, or run beside the operations: a "
        "what-if that ONNX Runtime is not safe with; auto is whichever is safe.",
    ),
]
Reserve = Annotated[
    str, typer.Option("--reserve", metavar="SIZE", help="Part of the budget to leave unused.")
]
HtmlReport = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.html", help="Write an HTML report too."),
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Run the model here first and use the times measured.")
]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", help="Time limit of the search.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Threads of the search [all cores]."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of search and inputs.")]
Device = Annotated[
    Literal["cpu", "webgpu", "cuda", "any"],
    typer.Option(
        "--device", help="What the model is written for, and runs on; any: one file for all."
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="Inputs to run with; seeded if absent."),
]
NoOrtOptimize = Annotated[
    bool,
    typer.Option(
        "--no-ort-optimize",
        help="Take the graph as it is, not as ONNX Runtime's optimizers leave it.",
    ),
]
Force = Annotated[bool, typer.Option("-f", "--force", help="Overwrite outputs that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Every stage on stderr; tracebacks of errors.",
        callback=_set_verbose,
        is_eager=True,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "-q", "--quiet", help="Neither progress nor summary.", callback=_set_quiet, is_eager=True
    ),
]


def parse_dims(texts: list[str] | None) -> dict[str, int]:
    """`["batch=32"]` -> `{"batch": 32}`.

    Raises:
        UsageError: not NAME=N, N not a positive integer, or a name bound twice.
    """
    dims: dict[str, int] = {}
    for text in texts or []:
        name, equals, size = text.rpartition("=")
        name, size = name.strip(), size.strip()
        if not equals or not name or not (size.isascii() and size.isdigit()) or int(size) < 1:
            raise UsageError(f"--dim {text!r} is not NAME=N with N a positive integer")
        if dims.get(name, int(size)) != int(size):
            raise UsageError(f"--dim {name} is given twice, as {dims[name]} and as {size}")
        dims[name] = int(size)
    return dims


def check_copies(copies: str, swap: str) -> None:
    """Raise UsageError where copies are to overlap and may not be made."""
    from planner.pipeline.copies import check_copies

    check_copies(copies, swap)


def check_time_limit(seconds: float) -> None:
    """Raise UsageError unless `seconds` is a positive, finite time."""
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--time-limit {seconds:g} must be a positive number of seconds")


def check_inputs(**paths: Path | None) -> None:
    """`check_input` for each, called what its keyword says."""
    for what, path in paths.items():
        check_input(path, what=what)


def check_input(path: Path | None, *, what: str) -> None:
    """Raise UsageError where `path` is given and is not a file."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{what} {path} is a folder; name a file")
    if not path.exists():
        raise UsageError(f"{what} {path} does not exist")
