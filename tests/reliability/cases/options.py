"""Options that are none, or out of any range."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.reliability.case import INFEASIBLE, OK, TIME, USAGE, Case
from tests.reliability.graphs import SIDE, diamond, info, proto, save
from tests.reliability.kit import take

_MODEL = ("optimize", "model.onnx", "--budget", "60%", "-q", "--dry-run")
_DIGITS = "9" * 5000


def cases() -> list[Case]:
    """Each is refused before any work is done, or is legal."""
    found = [
        Case(
            room="option",
            wrong=f"--budget {_short(budget)}",
            arguments=("optimize", "model.onnx", f"--budget={budget}"),
            build=_model,
            exits=(USAGE,),
            words=("budget",),
        )
        for budget in _BUDGETS
    ]
    found += [
        Case(
            room="option",
            wrong=" ".join(map(_short, arguments)),
            arguments=(*_MODEL, *arguments),
            build=_symbolic if arguments[0] == "--dim" else _model,
            exits=exits,
        )
        for arguments, exits in _options()
    ]
    found += [
        Case(
            room="option",
            wrong="planner " + " ".join(map(_short, arguments)),
            arguments=arguments,
            build=_model,
            exits=(USAGE,),
        )
        for arguments in _commands()
    ]
    found += [
        Case(
            room="option",
            wrong=f"--budget {budget}, which is legal",
            arguments=("optimize", "model.onnx", "--budget", budget, "-q", "--dry-run"),
            build=_model,
            exits=exits,
        )
        for budget, exits in (
            ("9007199254740993B", (OK,)),
            ("4096PiB", (OK,)),
            ("0.000001PB", (OK,)),
            ("100%", (OK,)),
            ("1B", (INFEASIBLE,)),
            ("0.0000001%", (INFEASIBLE,)),
        )
    ]
    return found


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:12]}… ({len(text)} characters)"


def _model(folder: Path) -> None:
    take("model.onnx", into=folder)


def _symbolic(folder: Path) -> None:
    both = [info("x", "batch", SIDE)], [info("y", "batch", SIDE)]
    save(proto(diamond(), inputs=both[0], outputs=both[1]), folder / "model.onnx")


_BUDGETS = (
    *(
        "",
        " ",
        "0",
        "0B",
        "-1",
        "-1GB",
        "16",
        "16G",
        "abc",
        "150%",
        "0%",
        "-5%",
        "nan%",
        "nan",
        "inf",
    ),
    *(
        "1e9B",
        "1e400GB",
        "16 GB GB",
        "16GB;ls",
        "0x10GB",
        "1_000MB",
        "１６GB",
        "60%%",
        "60 %x",
        "GB",
    ),
    *(_DIGITS, _DIGITS + "GB", _DIGITS[:4000] + "GB", _DIGITS + "%", "0." + "0" * 5000 + "1GB"),
    *("4097PiB", "1" + "0" * 60 + "B", "\x1b[31m60%"),
)


def _options() -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    for seed in ("-1", "1.5", "x", "2147483648", "9223372036854775808", "-9223372036854775809"):
        yield ("--seed", seed), (USAGE,)
    yield ("--seed", _DIGITS), (USAGE,)
    yield ("--seed", "2147483647"), (OK,)
    for limit in ("0", "-1", "nan", "inf", "-inf", "1e308", "1e18", "abc", "-0", "1e-400"):
        yield ("--time-limit", limit), (USAGE,)
    yield ("--time-limit", "1e-300"), (OK, TIME)
    yield ("--time-limit", "0.001"), (OK, TIME)
    for reserve in ("-1B", "16", "60%", "nanB", _DIGITS + "B", ""):
        yield ("--reserve", reserve), (USAGE,)
    for reserve in ("10PB", "1000000PB", "9007199254740993B"):
        yield ("--reserve", reserve), (INFEASIBLE,)
    yield ("--reserve", "0B"), (OK,)
    for slowdown in ("-5%", "5", "nan%", "inf", _DIGITS + "%", ""):
        yield ("--max-slowdown", slowdown), (USAGE,)
    for dim in (
        "batch",
        "batch=",
        "=4",
        "batch=0",
        "batch=-4",
        "batch=4.0",
        "batch=1e3",
        "batch=x",
    ):
        yield ("--dim", dim), (USAGE,)
    yield ("--dim", f"batch={_DIGITS}"), (USAGE,)
    yield ("--dim", "batch=４"), (USAGE,)
    yield ("--dim", "ghost=4"), (USAGE,)
    yield ("--dim", "batch=4", "--dim", "batch=5"), (USAGE,)
    yield ("--dim", f"batch={1 << 62}"), (3,)
    yield ("--dim", f"batch={10**19 - 1}"), (3,)
    # so small a graph that what its arena loses is a large part
    yield ("--dim", "batch=4", "--budget-of", "live"), (OK,)
    for threshold in ("0%", "x", "16", "-5%", _DIGITS + "GB"):
        yield ("--fail-if-peak-above", threshold), (USAGE,)
    yield ("--fail-if-slower-than", "5"), (USAGE,)
    for option in (
        "--swap",
        "--copies",
        "--order",
        "--device",
        "--recompute",
        "--resident",
        "--feeds",
    ):
        yield (option, "sometimes"), (USAGE,)
    for option in ("--include", "--exclude"):
        for pattern in ("ghost", "op:Ghost", "category:ghost", "op:", "", "n" * 5000, "[", "{x}"):
            yield (option, pattern), (USAGE,)
    for option in ("--host-budget", "--min-tensor"):
        for size in ("much", "-1GB", "1.5.2GB", _DIGITS + "GB"):
            yield (option, size), (USAGE,)
    yield ("--host-budget", "0B"), (USAGE,)
    yield ("--recompute", "only", "--swap", "only"), (USAGE,)
    yield ("--recompute", "only", "--resident", "host"), (USAGE,)
    yield ("--copies", "overlapped", "--swap", "none"), (USAGE,)
    for option in ("--inputs", "--profile"):
        yield (option, "gone.file"), (USAGE,)
        yield (option, "."), (USAGE,)
        yield (option, "/dev/null"), (USAGE,)
        yield (option, "n" * 300), (USAGE,)


def _commands() -> Iterator[tuple[str, ...]]:
    yield ("frobnicate",)
    yield ("optimize", "model.onnx")
    yield ("optimize", "model.onnx", "--frob")
    yield ("optimize", "--budget", "60%")
    yield ("optimize", "model.onnx", "other.onnx", "--budget", "60%")
    yield ("analyze", "model.onnx", "--budget", "60%")
    yield ("sweep", "model.onnx", "--points", "1")
    yield ("sweep", "model.onnx", "--points", "1000000000")
    yield ("sweep", "model.onnx", "--budgets", "60%,,40%")
    yield ("sweep", "model.onnx", "--budgets", "60%,abc")
    yield ("sweep", "model.onnx", "--budgets", "")
    yield ("sweep", "model.onnx", "-j", "0")
    yield ("sweep", "model.onnx", "--dim", "batch=1:1000000000000")
    yield ("sweep", "model.onnx", "--dim", "batch=8:4")
    yield ("sweep", "model.onnx", "--dim", "batch=" + "1," * 3000 + "1")
    yield ("sweep", "model.onnx", "--dim", f"batch={_DIGITS}")
    yield ("fit", "model.onnx")
    yield ("fit", "model.onnx", "--hardware", "")
    yield ("fit", "model.onnx", "--hardware", "h100,,t4")
    yield ("fit", "model.onnx", "--hardware", "frob")
    yield ("fit", "model.onnx", "--hardware", "all", "--reserve", "100%")
    yield ("fit", "model.onnx", "--hardware", "h100", "--reserve", "1.5.2GB")
    yield ("fit", "model.onnx", "--hardware", "h100", "--dim", "frob")
    yield ("fit", "model.onnx", "--hardware", "h100", "--dim", f"batch={_DIGITS}")
    yield ("explain", "model.onnx", "model.onnx")
    yield ("verify", "model.onnx", "gone.onnx")
    yield ("verify", "model.onnx", "model.onnx", "--budget", "0%")
    yield ("verify", "model.onnx", "model.onnx", "--seed", "-1")
    yield ("diff", "gone.json", "gone.json")
    yield ("apply", "model.onnx", "gone.json")
    yield ("problem", "gone.onnx")
    yield ("solve", "gone.json")
