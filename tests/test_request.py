"""An option is written at its field of a request: signatures, docstrings and flags agree with it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from planner import analyze, fit_devices, optimize, sweep, verify
from planner.cli.app import app
from planner.cli.main import main
from planner.defaults import requested
from planner.errors import UsageError
from planner.request import OPTIONS, Costs, Levers, Limits, Request, options_of
from planner.request.asking import Command, Option

PUBLIC: dict[Command, Callable[..., Any]] = {
    "analyze": analyze,
    "fit": fit_devices,
    "optimize": optimize,
    "sweep": sweep,
    "verify": verify,
}
IDS = [(command, option) for command in PUBLIC for option in options_of(command)]


def told(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "name", str(value))


@pytest.mark.parametrize(("command", "option"), IDS, ids=told)
def test_a_public_function_takes_each_option_as_its_field_says(command: Command, option: Option):
    function = PUBLIC[command]
    parameter = inspect.signature(function).parameters[option.name]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default == option.unsaid and type(parameter.default) is type(option.unsaid)
    wanted = option.argument if option.unsaid is not None else option.argument | None
    assert typing.get_type_hints(function)[option.name] == wanted


@pytest.mark.parametrize("command", PUBLIC)
def test_help_says_what_every_argument_is_once(command: Command):
    function = PUBLIC[command]
    text = inspect.getdoc(function) or ""
    _, _, behind = text.partition("\nArgs:\n")
    said = re.findall(r"^    (\w[\w, ]*): ", behind.partition("\n\n")[0], re.MULTILINE)
    names = [name for names in said for name in names.split(", ")]
    assert sorted(names) == sorted(inspect.signature(function).parameters)
    assert max(map(len, text.splitlines())) <= 106
    flags = {flag.text for option in options_of(command) for flag in option.flags}
    assert not flags & set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("command", typing.get_args(Command))
def test_a_command_has_the_flags_of_its_options_with_the_same_defaults(command: Command):
    found = typer.main.get_command(app).commands[command].params  # pyright: ignore[reportAttributeAccessIssue]
    params = {param.name: param for param in found}
    for option in options_of(command):
        for flag in option.flags:
            shown = params[flag.name].default
            if flag.kind is bool and option.unsaid is True:
                assert shown is False and option.read(shown) is True
            else:
                assert shown in (option.unsaid, str(option.unsaid)) or (
                    not shown and not option.unsaid
                )


def test_each_field_of_a_request_is_asked_for_or_said_to_be_another():
    """A field without an option is one that nobody types."""
    asked = {(option.part, option.name) for option in OPTIONS}
    assert len(asked) == len(OPTIONS) == len({option.name for option in OPTIONS})
    parts = {"": Request, "costs": Costs, "levers": Levers, "limits": Limits}
    fields = {(part, name) for part, kind in parts.items() for name in kind.__dataclass_fields__}
    others = {("", name) for name in ("model", "budget_from", "costs", "levers", "limits")}
    assert fields == asked | others
    assert all(option.commands for option in OPTIONS)


def test_nothing_said_is_the_request_that_its_fields_say():
    """But for where the line looks at the machine: copies follow the device."""
    found = requested("optimize", {"model": "m.onnx"})
    cpu = Levers(swap="none", resident="auto")
    assert found == Request(model=Path("m.onnx"), levers=cpu)


@pytest.mark.parametrize(
    ("typed", "both"),
    [
        ("--disk . --copies serial", ("--disk", "--copies serial")),
        ("--disk . --swap none", ("--disk", "--swap none")),
        ("--disk . --recompute only", ("--disk", "--recompute only")),
        ("--disk . --resident host", ("--disk", "--resident host")),
        ("--disk . --host-budget 1GB", ("--disk", "--disk-budget")),
        ("--disk . --device cuda", ("--disk", "cuda")),
        ("--disk-budget 1GB", ("--disk-budget", "--disk")),
        ("--copies overlapped --swap none", ("--copies overlapped", "--swap none")),
        ("--copies overlapped --recompute only", ("--copies overlapped", "--recompute only")),
        ("--recompute only --swap auto", ("--recompute only", "--swap auto")),
        ("--recompute only --resident host", ("--recompute only", "--resident host")),
        ("--reproducible --calibrate", ("--reproducible", "--calibrate")),
        ("--reproducible --disk .", ("--reproducible", "--disk")),
        ("--cast-saved bf16 --micro-batch 2", ("--cast-saved", "--micro-batch")),
        ("--no-verify --verify thorough", ("--no-verify", "--verify thorough")),
        ("--reserve 5%", ("--reserve", "5%")),
    ],
)
def test_what_is_typed_and_contradicts_is_one_error_that_names_both(
    typed: str, both: tuple[str, str], tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    assert main(["optimize", "model.onnx", "--budget", "60%", *typed.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(each in line for each in both)


@pytest.mark.parametrize("copies", [None, "auto", "overlapped"])
def test_a_disk_is_swapped_to_beside_the_operations(copies: str | None, tmp_path):
    found = requested("optimize", {"model": "m.onnx", "disk": tmp_path, "copies": copies})
    assert found.levers.copies == "overlapped" and found.levers.swap == "auto"
    assert found.levers.disk is not None and found.levers.disk.folder == str(tmp_path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"swap": "sometimes"}, "--swap is auto, none or only, not 'sometimes'"),
        ({"recompute": "never"}, "--recompute is auto, none or only, not 'never'"),
        ({"budget_of": "all"}, "--budget-of is held or live, not 'all'"),
        ({"order": "random"}, "--order is default or priority, not 'random'"),
        ({"min_tensor": "1"}, "--min-tensor '1' is not understood"),
        ({"time_limit_s": 0.0}, "--time-limit 0 must be a positive"),
        ({"profile": "none.json"}, "profile none.json does not exist"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_named(said: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        requested("optimize", {"model": "m.onnx", **said})


def test_an_option_of_a_throw_away_request_reaches_a_command():
    """Of one that is written in the request alone, the command line knows flag, help and value."""
    code = """
import planner.request as request, dataclasses, sys
from typing import Annotated
from planner.request.asking import LEVERS, PLANS, option, options_in

@dataclasses.dataclass(frozen=True, kw_only=True)
class More(request.Request):
    shine: Annotated[str | None, option("--shine", "How much.", group=LEVERS, commands=PLANS)] = None

request.OPTIONS = tuple(options_in(More))
import planner.api
calls = {}
planner.api.optimize = lambda model, **options: calls.update(options) or sys.exit(0)
from planner.cli.main import main
assert main(["optimize", "--help"]) == 0
main(["optimize", sys.argv[1], "--budget", "60%", "--shine", "9", "--dry-run"])
"""
    code = code.replace("sys.exit(0)", "print('shine', options['shine']) or sys.exit(0)")
    done = subprocess.run(
        [sys.executable, "-c", code, __file__], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  --shine <str> +How much\.$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "shine 9"


def test_the_command_lines_help_needs_no_model_library():
    heavy = ("msgspec", "numpy", "onnx_ir", "ortools")
    code = f"import sys, planner.cli.app\nprint([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
