"""A request to planner, as one frozen value.

The command line and the public functions fill a `Request` (`planner.defaults.requested`), and every stage
behind them reads it. Sizes and shares of the peak stay as they were typed:
`planner.pipeline.prepare.settings` turns them into bytes once the peak of the model as it is is known.

Each field that a user can set declares its option here, and only here: `planner.request.asking`. The help
of a field's option is its documentation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from planner.choices import HOST_PROFILE, BudgetOf, OrderTarget
from planner.onnxio.positions import dims_of, sizes_of, sizes_to_look_for
from planner.request.asking import (
    BUDGET,
    PLANS,
    READ_MODELS,
    SIZES,
    SOLVER,
    TARGET,
    VERIFICATION,
    WITH_COPIES,
    Command,
    Flag,
    Option,
    is_file,
    is_size,
    option,
    options_in,
)
from planner.request.bounding import Given, UpperBound, bound_texts, bounds_of
from planner.request.levers import Levers
from planner.targets import HOST, Device, titles
from planner.units import (
    MAX_SEED,
    check_budget,
    check_seed,
    check_time_limit,
    parse_bytes,
    parse_percent,
    parse_slowdown,
)

Calibrate = Literal["auto", "always", "kept", "never"]
"""Whether operation times are measured by a short run. "auto": where the model is planned for the cpu
profile, no profile is given, and a run here takes some seconds and the memory that is free; times of an
earlier run are taken where they were kept. "kept" takes those alone, and runs nothing. "always" measures
anew."""

AUTO_RESERVE = "auto"

_LOOKED = "Device whose graph and kernels are analyzed [cpu, also with --hardware of a GPU]."


def _is_reserve(text: str) -> None:
    if parse_percent(text) is None:
        parse_bytes(text, what="--reserve", zero_ok=True)


def _as_calibrate(said: bool | None) -> Calibrate:
    return "auto" if said is None else "always" if said else "never"


def shipped_hardware() -> list[str]:
    """The profiles that come with planner, for the shell to complete."""
    from planner.cost.hardware import hardware_names

    return list(hardware_names())


_budget = partial(option, group=BUDGET)
_size = partial(option, group=SIZES)
_target = partial(option, group=TARGET, commands=WITH_COPIES)
_limit = partial(option, group=SOLVER)
_proof = partial(option, group=VERIFICATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where the durations of the operations come from."""

    hardware: Annotated[
        str,
        _target(
            "--hardware",
            "Hardware profile: the name of one that ships with planner, or a TOML file.",
            commands=(*WITH_COPIES, "problem"),
            metavar="NAME|FILE.toml",
            completions=shipped_hardware,
        ),
    ] = HOST_PROFILE
    profile: Annotated[
        Path | None,
        _target(
            "--profile",
            "Take times from a profile that ONNX Runtime wrote.",
            commands=(*WITH_COPIES, "problem", "explain"),
            metavar="FILE",
            check=is_file("profile"),
        ),
    ] = None
    calibrate: Annotated[
        Calibrate,
        _target(
            "--calibrate/--no-calibrate",
            "Measure operation times in a short run on this machine's CPU, or predict them. By "
            "default they are measured if --hardware is cpu and a run takes only seconds, and "
            "reused by later commands.",
            unsaid=None,
            kind=bool,
            take=_as_calibrate,
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a search."""

    time_limit_s: Annotated[
        float,
        _limit(
            "--time-limit",
            "Time limit for the search alone; reading, writing and verifying the model come on top.",
            commands=(*READ_MODELS, "solve"),
            metavar="SECONDS",
            check=check_time_limit,
            unlike={
                "optimize": dict(
                    help="Time limit for the search, and for what precedes it beyond the first 10 s; "
                    "writing and verifying the model come on top."
                ),
                "sweep": dict(unsaid=120.0),
                "fit": dict(unsaid=120.0),
            },
        ),
    ] = 60.0
    reproducible: Annotated[
        bool,
        _limit(
            "--reproducible",
            "Make the same plan and file on any machine, however busy: predict operation times, "
            "and search beyond --time-limit if the machine is slow.",
            commands=(*WITH_COPIES, "fit"),
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A whole request, before any file is read.

    Attributes:
        model: an .onnx file.
        budget_from: a phrase that says where a budget that nobody typed comes from.
        costs, levers, limits: sources of durations; actions allowed to a plan; limits of the search.
    """

    model: Path
    budget: Annotated[
        str | None,
        _budget(
            "--budget",
            "Device memory that the model may take: 16GB, 12GiB, or 60% of its own peak [on a GPU "
            "given by --device and --hardware: its memory less --reserve].",
            commands=("optimize", "verify"),
            metavar="SIZE",
            more="On other devices, without --max-slowdown: the model's own peak.",
            check=check_budget,
            unlike={
                "verify": dict(
                    help="Hard memory cap for the runs of both models.",
                    more="None: the budget of the plan, if there is one.",
                )
            },
        ),
    ] = None
    budget_from: str = ""
    max_slowdown: Annotated[
        str | None,
        _budget(
            "--max-slowdown",
            "How much slower a step may get; without --budget, planner looks for the lowest peak "
            "within that limit.",
            metavar="PERCENT",
            check=parse_slowdown,
        ),
    ] = None
    reserve: Annotated[
        str,
        _budget(
            "--reserve",
            "How much of the budget to leave unused. auto: nothing of a --budget; of a GPU's "
            "memory that is the budget, 1 GiB for driver, context and libraries.",
            commands=("optimize", "sweep", "fit"),
            unsaid=AUTO_RESERVE,
            metavar="SIZE|PERCENT",
            check=_is_reserve,
            take=lambda text: "0B" if text == AUTO_RESERVE else text,
            unlike={
                "sweep": dict(
                    help="Part of the budget to leave unused.",
                    metavar="SIZE",
                    unsaid="0B",
                    check=is_size("--reserve", zero_ok=True),
                ),
                "fit": dict(
                    help="How much of each device's memory to leave for driver, context and libraries; "
                    "auto: 1 GiB, or a tenth of the memory if that is less, as planner optimize "
                    "does without --budget."
                ),
            },
        ),
    ] = "0B"
    budget_of: Annotated[
        BudgetOf,
        _budget(
            "--budget-of",
            "What the budget limits: all memory held by a session that planner.open_session "
            "opens, where planner can predict it, or live tensors alone, as papers count them.",
            more=f"It cannot be predicted for copies on {HOST.title}, whose arena they share, or on "
            f"{titles(lambda row: row.own_memory and not row.is_arena)}.",
        ),
    ] = "held"
    levers: Levers = field(default_factory=Levers)
    dims: Annotated[
        Mapping[str, int],
        _size(
            "--dim",
            "Size of an open dim, by its name or its position (x:0=8); may be repeated.",
            commands=(*READ_MODELS, "verify", "run", "export"),
            unsaid=None,
            metavar="NAME=N",
            kind=list[str],
            argument=Mapping[str, int],
            beside=(
                Flag(
                    text="--shape",
                    help="Shape of an input: x=1x3x224x224; may be repeated.",
                    metavar="INPUT=AxBxC",
                    kind=list[str],
                ),
            ),
            more='`{"x:0": 1}` is axis 0 of the input x.',
            read=dims_of,
            take=lambda given: given or {},
            unlike={
                "sweep": dict(
                    help="Size of an open dim, by its name or its position (x:0=8); one dim may have "
                    "several sizes.",
                    metavar="NAME=N[,N...]|A:B[:STEP]",
                    argument=Mapping[str, Sequence[int]],
                    read=sizes_of,
                ),
                "fit": dict(
                    help="Size of an open dim, by its name or its position (x:0=8). If one dim has "
                    "several sizes, or none (then 1, 2, 4 and so on), planner looks for the largest "
                    "that fits.",
                    metavar="NAME[=N[,N...]|=A:B[:STEP]]",
                    argument=Mapping[str, Sequence[int]],
                    more="planner assumes that every size below one that fits, fits too.",
                    read=sizes_to_look_for,
                ),
            },
        ),
    ] = field(default_factory=dict)
    bounds: Annotated[
        tuple[UpperBound, ...],
        _size(
            "--bound",
            "Upper bound on a tensor whose size depends on data (elements, a shape, or bytes), or "
            "on the memory of a node's subgraphs (bytes); may be repeated [the sizes of one run].",
            commands=READ_MODELS,
            unsaid=None,
            metavar="NAME=N|AxBxC|SIZE",
            kind=list[str],
            argument=Mapping[str, Given],
            read=bound_texts,
            take=lambda given: bounds_of(given or {}),
        ),
    ] = ()
    device: Annotated[
        Device,
        _target(
            "--device",
            "Device that the rewritten model is made for; any: one file for all devices [cpu; "
            "required if --hardware is a GPU].",
            commands=(*WITH_COPIES, "verify"),
            unsaid=None,
            unlike={
                "analyze": dict(help=_LOOKED),
                "sweep": dict(help=_LOOKED),
                "verify": dict(
                    help="Device to run the models on, as in the plan.", unsaid=HOST.name
                ),
            },
        ),
    ] = HOST.name
    order: Annotated[
        OrderTarget,
        _target(
            "--order", "Execution order of the sessions that will run the file.", commands=PLANS
        ),
    ] = "default"
    ort_optimize: Annotated[
        bool,
        _target(
            "--no-ort-optimize",
            "Plan the graph as it is, not as ONNX Runtime's optimizers leave it, for sessions "
            "opened with ORT_DISABLE_ALL.",
            commands=READ_MODELS,
        ),
    ] = True
    costs: Costs = Costs()
    limits: Limits = Limits()
    seed: Annotated[
        int,
        _limit(
            "--seed",
            "Seed of the search and of random inputs.",
            commands=(*WITH_COPIES, "fit", "verify", "solve"),
            metavar="N",
            least=0,
            most=MAX_SEED,
            check=check_seed,
        ),
    ] = 0
    strict: Annotated[
        bool,
        _proof(
            "--strict",
            "Also fail the verification (exit code 5) if results are not bit-identical under "
            "default session options.",
            commands=("optimize", "verify"),
        ),
    ] = False
    inputs: Annotated[
        Path | None,
        _proof(
            "--inputs",
            "Inputs to run with [random, drawn with the seed].",
            more="None: drawn as the file of recipes beside the model says, if there is one.",
            commands=(*WITH_COPIES, "fit", "verify"),
            metavar="FILE.npz",
            check=is_file("inputs"),
        ),
    ] = None

    @property
    def aim(self) -> str:
        """The budget as a plan file has it, or the slowdown where that was asked for instead; of one that
        nobody typed, where it is from."""
        if self.budget is None and self.max_slowdown is not None:
            return f"{self.max_slowdown} slower"
        return self.budget_from or self.budget or "100%"


OPTIONS = tuple(options_in(Request))


def options_of(command: Command) -> tuple[Option, ...]:
    """The options that a command takes, as it has them."""
    return tuple(option.of(command) for option in OPTIONS if command in option.commands)
