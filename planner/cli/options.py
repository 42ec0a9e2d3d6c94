"""Options that more than one command takes, and what turns their text into values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from planner.bounding import Given, bound_texts
from planner.chunking import SplitMode
from planner.cli.console import verbosity
from planner.cli.limits import limit_memory, limit_time
from planner.errors import UsageError
from planner.files.reading import shown, why_not_a_file
from planner.fusing import FuseMode
from planner.halving import CastSaved as CastSavedAs
from planner.positions import shape_dims
from planner.residing import Feeds as Fed
from planner.residing import Reside
from planner.targets import Device as DeviceChoice
from planner.units import MAX_SEED, parse_whole


def _set_verbose(value: bool) -> None:
    verbosity.verbose = verbosity.verbose or value


def _limit_memory(value: str | None) -> str | None:
    limit_memory(value)
    return value


def _limit_time(value: float | None) -> float | None:
    limit_time(value)
    return value


def _set_quiet(value: bool) -> None:
    verbosity.quiet = verbosity.quiet or value


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help="The size of an open dim, by its name or its place (x:0=8); may be repeated.",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="INPUT=AxBxC",
        help="The size of every axis of an input: x=1x3x224x224; may be repeated.",
    ),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="NAME=N|AxBxC|SIZE",
        help="The most that a tensor may be whose size depends on data (elements, a shape, or bytes), or "
        "what a node's bodies hold (bytes); may be repeated [as one run shows].",
    ),
]


def hardware_names() -> list[str]:
    """The profiles that come with planner, for the shell to complete."""
    from importlib import resources

    folder = resources.files("planner.cost") / "profiles"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


Hardware = Annotated[
    str,
    typer.Option(
        "--hardware",
        metavar="NAME|FILE.toml",
        help="Hardware profile.",
        autocompletion=hardware_names,
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="FILE", help="Take times from a profile that ONNX Runtime wrote."
    ),
]
Swap = Annotated[
    Literal["auto", "none", "only"] | None,
    typer.Option(
        "--swap",
        show_default=False,
        help="Copy tensors to the host: when it pays, never, or only that [auto; none on a CPU, whose "
        "memory is the host's].",
    ),
]
Copies = Annotated[
    Literal["serial", "overlapped", "auto"],
    typer.Option(
        "--copies",
        help="Copies add to the step, as ONNX Runtime runs its own, or run beside the operations, by "
        "planner's native library (CPU and CUDA); auto: beside them where that was shown to be safe.",
    ),
]
Reserve = Annotated[
    str, typer.Option("--reserve", metavar="SIZE", help="Part of the budget to leave unused.")
]
BudgetOf = Annotated[
    Literal["held", "live"],
    typer.Option(
        "--budget-of",
        help="What the budget bounds: all that a session holds that planner.open_session opens, where "
        "that can be told, or the bytes of live tensors alone, as papers count them.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 5, too, where last bits differ in sessions of default options.",
    ),
]
HtmlReport = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.html", help="Write an HTML report too."),
]
Calibrate = Annotated[
    bool | None,
    typer.Option(
        "--calibrate/--no-calibrate",
        show_default=False,
        help="Measure operation times by a short run on this machine's CPU, or predict them. Left out: "
        "measured where --hardware is cpu and a run takes seconds, and kept for the next time.",
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        help="Time for finding a plan; reading, writing and verifying the model come on top, and "
        "--timeout limits all of it.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="End with exit code 8 where planner's own processes take more memory [no limit].",
        callback=_limit_memory,
        is_eager=True,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="End with exit code 6 where the whole command takes longer [no limit].",
        callback=_limit_time,
        is_eager=True,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=1, max=256, help="Threads of the search [all cores]."
    ),
]
Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="The same plan and file on any machine, however busy: operation times are predicted, and "
        "--time-limit counts work in place of seconds.",
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed of search and inputs."),
]
Device = Annotated[
    DeviceChoice | None,
    typer.Option(
        "--device",
        show_default=False,
        help="What the model is written for, and runs on; any: one file for all [cpu; to be given "
        "beside --hardware of a GPU].",
    ),
]
RunOn = Annotated[
    DeviceChoice, typer.Option("--device", help="What the models are run on, as in the plan.")
]
Looked = Annotated[
    DeviceChoice | None,
    typer.Option(
        "--device",
        show_default=False,
        help="Whose graph and kernels are looked at [cpu, with the times of any --hardware].",
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
        help="Take the graph as it is, not as ONNX Runtime's optimizers leave it: for sessions that "
        "are opened with ORT_DISABLE_ALL.",
    ),
]
Params = Annotated[
    Path | None,
    typer.Option(
        "--params",
        metavar="FILE.toml",
        help="The numbers of the search's policy, as planner solve --print-params prints them [its own].",
    ),
]
Force = Annotated[bool, typer.Option("-f", "--force", help="Overwrite outputs that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="All that was found; every stage on stderr; tracebacks of errors.",
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


def parse_dims(texts: list[str] | None, shapes: list[str] | None = None) -> dict[str, int]:
    """`["batch=32"]` -> `{"batch": 32}`, with the dims that `shapes` come to (`planner.positions`).

    Raises:
        UsageError: not NAME=N, N not a positive integer, a name bound twice, or no shape.
    """
    dims: dict[str, int] = {}
    for text in texts or []:
        name, equals, number = text.rpartition("=")
        name, size = name.strip(), parse_whole(number)
        if not equals or not name or not size:
            raise UsageError(f"--dim {shown(text)} is not NAME=N with N a positive integer")
        if dims.get(name, size) != size:
            raise UsageError(f"--dim {name} is given twice, as {dims[name]} and as {size}")
        dims[name] = size
    return dims | shape_dims(shapes or ())


def parse_bounds(texts: list[str] | None) -> dict[str, Given]:
    """`["idx=512"]` -> `{"idx": "512"}`; raises UsageError where one is no bound."""
    return bound_texts(texts or [])


Resident = Annotated[
    Reside | None,
    typer.Option(
        "--resident",
        show_default=False,
        help="Where parameters, state, other inputs, gradients and new values live: on the device, on "
        "the host, or each where it takes less time [auto; device where --swap is none].",
    ),
]
Feeds = Annotated[
    Fed,
    typer.Option(
        "--feeds",
        help="Where the caller has what it feeds and wants: what the host has is copied in any case.",
    ),
]


Recompute = Annotated[
    Literal["auto", "none", "only"],
    typer.Option("--recompute", help="Run operations again: when it pays, never, or only that."),
]
CastSaved = Annotated[
    CastSavedAs,
    typer.Option(
        "--cast-saved",
        help="Lossy: store what is saved from forward to backward as bfloat16 or float16, where it pays.",
    ),
]
Fuse = Annotated[
    FuseMode,
    typer.Option(
        "--fuse",
        help="Run element operations together, as nodes of planner's native library, where that takes "
        "less time or fits alone: none, those that keep every bit, or others too. For the CPU.",
    ),
]
NoPattern = Annotated[
    bool,
    typer.Option(
        "--no-pattern",
        help="Sessions with default options hold less: the smallest input's type becomes optional, and "
        "ONNX Runtime leaves its memory pattern off.",
    ),
]
As = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        metavar="WHAT",
        help="Estimate the peak with every float in half (bf16, fp16), or with a share of each "
        "parameter's elements kept (sparse=0.3); a comma asks for both at once; may be repeated.",
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PATTERN",
        help="Recompute and copy nothing else: 'layers.3.*', 'op:Softmax', 'category:activation'; may "
        "be repeated.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PATTERN", help="Leave these as they are; may be repeated."),
]
MinTensor = Annotated[
    str | None,
    typer.Option("--min-tensor", metavar="SIZE", help="Copy no tensor that is smaller."),
]
HostBudget = Annotated[
    str | None,
    typer.Option("--host-budget", metavar="SIZE", help="The most to have on the host at once."),
]
Disk = Annotated[
    Path | None,
    typer.Option(
        "--disk",
        metavar="DIR",
        help="Swap to a file in this folder, beside the operations (CPU); the budget then bounds all "
        "that is held.",
        show_default=False,
    ),
]
DiskBudget = Annotated[
    str | None,
    typer.Option(
        "--disk-budget",
        metavar="SIZE",
        help="The most that swaps may take in --disk [its free space less 1 GiB].",
        show_default=False,
    ),
]
MicroBatch = Annotated[
    str,
    typer.Option(
        "--micro-batch",
        metavar="auto|K",
        help="Make a step in K runs on parts of the batch, whose gradients add up; auto: as many as take "
        "least time.",
    ),
]
Split = Annotated[
    SplitMode,
    typer.Option(
        "--split",
        help="Run operations that are too large in chunks of rows: never, or where no plan fits without "
        "that or one takes less time.",
    ),
]
SwapChoice = Literal["auto", "none", "only"]


def with_recompute(
    recompute: str, *, swap: SwapChoice | None, resident: Reside | None
) -> tuple[SwapChoice | None, Reside | None]:
    """What `--swap` and `--resident` come to with `--recompute`.

    Raises:
        UsageError: they contradict each other.
    """
    if recompute == "only":
        if swap == "only" or resident == "host":
            other = "--swap only" if swap == "only" else "--resident host"
            raise UsageError(f"--recompute only and {other} contradict each other")
        return "none", "device"
    return swap, resident


def check_copies(copies: str, swap: str | None) -> None:
    """Raise UsageError where copies are to overlap and may not be made."""
    from planner.pipeline.prepare.copies import check_copies

    check_copies(copies, swap)


def check_micro_batch(text: str) -> None:
    """Raise UsageError where it is neither auto nor a number of runs."""
    from planner.units import parse_micro_batch

    parse_micro_batch(text)


def check_what_if(texts: list[str] | None) -> None:
    """Raise UsageError where one of them is no way to store tensors."""
    from planner.graph.what_if import parse_what_if

    for text in texts or []:
        parse_what_if(text)


def check_inputs(**paths: Path | None) -> None:
    """`check_input` for each, called what its keyword says."""
    for what, path in paths.items():
        check_input(path, what=what)


def check_input(path: Path | None, *, what: str) -> None:
    """Raise UsageError where `path` is given and is not a regular file."""
    if path is not None and (why := why_not_a_file(path)):
        raise UsageError(f"{what} {path} {why}")
