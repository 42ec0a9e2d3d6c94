"""Grouped help and what a shell completes, as it asks for it."""

import os
import subprocess
import sys

import pytest
import typer

from planner.cli.app import app
from planner.cli.grouping import GROUPS, OTHERS
from planner.cli.main import main
from tests.process import PLANNER


@pytest.mark.parametrize("command", ["analyze", "optimize", "sweep"])
def test_every_option_is_in_one_group(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"{OTHERS}:" not in text and "\nOptions:" not in text
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))


def test_every_name_in_a_group_is_an_option_of_some_command():
    commands = typer.main.get_command(app).commands.values()  # pyright: ignore[reportAttributeAccessIssue]
    known = {param.name for command in commands for param in command.params} | {"help"}
    assert {name for group in GROUPS.values() for name in group} <= known


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("planner opt", {"optimize"}),
        ("planner optimize m.onnx --swap ", {"auto", "none", "only"}),
        ("planner optimize m.onnx --hardware a1", {"a100-40gb", "a100-80gb"}),
        ("planner sweep m.onnx --max", set()),
        ("planner optimize m.onnx --max", {"--max-slowdown"}),
    ],
)
def test_bash_is_told_what_may_follow(line, expected):
    asked = {
        "_PLANNER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, *PLANNER],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == expected
