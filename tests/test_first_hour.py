"""README and tutorial do what they say, in a fresh folder, in the environment here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.first_hour import TUTORIAL, Command, Done, run_all, steps_of

ROOT = Path(__file__).parents[1]
PAGE = TUTORIAL.read_text(encoding="utf-8")


def test_every_command_of_the_tutorial_prints_what_it_shows(tmp_path: Path):
    pytest.importorskip("torch")
    scripts, work = tmp_path / "bin", tmp_path / "work"
    work.mkdir()
    scripts.mkdir()
    for name, module in (("python", ""), ("planner", "-m planner ")):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        script.chmod(0o755)
    variables = {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    commands = 0
    page = re.sub(r"^(\$ planner optimize .*)$", r"\1 --time-limit 2", PAGE, flags=re.MULTILINE)
    for done in run_all(page, work, variables):
        assert done.status == 0, (done.command.line, done.printed)
        assert done.missing() == [], (done.command.line, done.printed)
        commands += 1
    assert commands >= 10
    assert {"model.planned.onnx", "model.report.html"} <= {p.name for p in work.iterdir()}


README = (ROOT / "README.md").read_text(encoding="utf-8")
TYPED = re.compile(r"^    (?:.* && )?((?:\.venv/bin/)?planner .*?)(?:\s+#.*)?$", re.MULTILINE)
STANDS_FOR = {"NAME": "_softmax_3", "m.onnx": "again.onnx", "models/zoo/gpt.onnx": "model.onnx"}
SEARCHES = ("analyze", "fit", "optimize", "sweep")


def test_every_command_of_the_readme_runs_on_the_model_of_its_first_one(tmp_path: Path):
    """But those that need the reader's own script, which the tutorial runs, and a size to sweep."""
    (tmp_path / "model.onnx").write_bytes((ROOT / "models" / "zoo" / "gpt.onnx").read_bytes())
    lines = [line.removeprefix(".venv/bin/") for line in TYPED.findall(README)]
    first = next(line for line in lines if "models/zoo" in line)
    ran: set[str] = set()
    for line in [first, *lines]:
        words = [STANDS_FOR.get(word, word) for word in line.split()]
        name = words[1]
        if name in ("export", "run") or "--dim" in words or words[-1] == "16GB":
            continue
        words += ["--time-limit", "2"] if name in SEARCHES else []
        words += ["--force"] if name in ("optimize", "apply") else []
        command = [sys.executable, "-m", "planner", *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        assert (done.stdout + done.stderr).strip(), line
        ran.add(name)
        if line is first and len(ran) == 1:
            written = {"model.planned.onnx", "model.plan.json", "model.report.html"}
            assert written <= {path.name for path in tmp_path.iterdir()}
            assert "bit-identical" in done.stdout
    assert ran == {"fit", "optimize", "analyze", "apply", "explain", "doctor"}
    assert "docs/tutorial.md" in README  # which runs the others


def test_an_environment_is_made_first():
    commands = [step for step in steps_of(PAGE) if isinstance(step, Command)]
    assert [c.is_set_up for c in commands].count(True) == 2
    assert all(c.is_set_up for c in commands[:2])


@pytest.mark.parametrize(
    ("printed", "missing"),
    [
        ("Peak  9.5 MiB -> 3 MiB\nother\nWrote a.onnx", []),
        ("Wrote a.onnx\nPeak 1", ["Wrote a.onnx"]),
        ("Wrote b.onnx", ["Peak …", "Wrote a.onnx"]),
    ],
)
def test_lines_that_are_not_printed_are_told(printed: str, missing: list[str]):
    command = Command(line="x", shown=("Peak …", "Wrote a.onnx"))
    done = Done(command=command, status=0, seconds=0.0, printed=printed)
    assert done.missing() == missing
