"""Grouped help and what a shell completes, as it asks for it."""

import os
import re
import subprocess
import sys

import pytest
import typer

from planner.cli.app import app
from planner.cli.main import main
from planner.request.asking import GROUPS
from tests.process import PLANNER


@pytest.mark.parametrize("command", ["analyze", "optimize", "sweep", "fit"])
def test_every_option_is_under_one_heading(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    headings = [line[:-1] for line in text.splitlines() if line[:1].isalpha() and line[-1] == ":"]
    assert headings == ["Arguments", *(title for title in GROUPS if title in headings)]
    known = typer.main.get_command(app).commands[command].params  # pyright: ignore[reportAttributeAccessIssue]
    for param in known:
        if param.param_type_name == "option":
            assert (
                len(re.findall(rf"^  (?:-\w, )?{param.opts[-1]}(?![\w-])", text, re.MULTILINE)) == 1
            )


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
