"""`--memory-limit` and `--timeout`: planner's own processes, and what is said where one is passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli import console, limits
from planner.cli.limits import held_bytes
from planner.cli.main import main
from planner.files import temporary
from tests.process import PLANNER

MLP = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


def planner(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *PLANNER, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_limit_that_is_passed_ends_it_in_one_line_and_leaves_nothing(tmp_path):
    done = planner(
        "optimize", str(MLP), "--budget", "90%", "--memory-limit", "60MB", "-q", cwd=tmp_path
    )
    assert done.returncode == 8
    (line,) = done.stderr.splitlines()
    assert line.startswith("planner: error: planner itself took ")
    assert "more than --memory-limit 60.00 MB" in line
    assert not os.listdir(tmp_path)


def test_limits_that_are_kept_change_nothing(tmp_path):
    limits = ("--memory-limit", "8GB", "--timeout", "500")
    done = planner("analyze", str(MLP), *limits, "--time-limit", "1", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{")


def test_a_limit_that_is_no_size_is_refused(capsys):
    assert main(["analyze", str(MLP), "--memory-limit", "much"]) == 2
    assert "--memory-limit 'much' is not understood" in capsys.readouterr().err


def test_what_child_processes_hold_is_counted():
    before = held_bytes()
    code = "kept = bytearray(100_000_000); kept[::4096] = b'1' * len(kept[::4096]); input()"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            while held_bytes() - before < 100_000_000 and child.poll() is None:
                pass
            assert held_bytes() - before >= 100_000_000
        finally:
            child.kill()


@pytest.mark.parametrize("command", ["optimize", "analyze", "verify"])
def test_a_time_that_is_over_ends_it_in_one_line_and_leaves_nothing(tmp_path, command):
    arguments = {"optimize": ["--budget", "90%"], "analyze": [], "verify": [str(MLP)]}[command]
    done = planner(command, str(MLP), *arguments, "--timeout", "0.05", "-q", cwd=tmp_path)
    assert done.returncode == 6
    (line,) = done.stderr.splitlines()
    assert line.startswith("planner: error: --timeout 0.05 s passed")
    assert line.endswith("; nothing was written; allow more, or plan a smaller model")
    assert not os.listdir(tmp_path)


def test_the_stage_at_which_the_time_was_over_is_named(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(limits, "leave", lambda line, status: said.append(f"{line} ({status})"))
    monkeypatch.setattr(console.verbosity, "stage", "")
    monkeypatch.setattr(temporary, "PLACED", [])
    with console.progress() as progress:
        progress("original model: outputs")
    limits.limit_time(0.01)
    while not said:
        pass
    assert said == [
        "planner: error: --timeout 0.01 s passed while at: original model: outputs; nothing was written; "
        "allow more, or plan a smaller model (6)"
    ]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(capsys, text):
    assert main(["analyze", str(MLP), "--timeout", text]) == 2
    assert "--timeout" in capsys.readouterr().err
