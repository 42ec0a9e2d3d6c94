"""Every case of the misuse table that can run in this process: what it says, and what it leaves."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.reliability.case import Case
from tests.reliability.cases import all_cases
from tests.reliability.here import run_here
from tests.reliability.judge import Ending, faults, files_in
from tests.reliability.misuse import FOLDER, markdown

CASES = all_cases()


def _name(case: Case) -> str:
    return f"{case.room}: {case.wrong}: {case.arguments[0] if case.arguments else ''}"


@pytest.mark.parametrize("case", [case for case in CASES if not case.alone], ids=_name)
def test_a_misuse_ends_as_it_should(case: Case, tmp_path: Path, request: pytest.FixtureRequest):
    if "webgpu" in case.arguments:
        request.getfixturevalue("webgpu_device")
    ending, found = run_here(case, tmp_path)
    assert not found, ending.err


def test_the_committed_table_is_of_these_cases_and_all_hold():
    rows = json.loads((FOLDER / "misuse.json").read_text(encoding="utf-8"))
    assert [(r["room"], r["wrong"], r["command"]) for r in rows] == [
        (c.room, c.wrong, c.command) for c in CASES
    ]
    assert [row["wrong"] for row in rows if row["faults"]] == []
    assert (FOLDER / "misuse.md").read_text(encoding="utf-8") == markdown(rows)


def test_no_two_cases_are_the_same():
    assert len(CASES) >= 700
    assert max(Counter((c.room, c.wrong, c.arguments) for c in CASES).values()) == 1


_CASE = Case(room="option", wrong="nothing", arguments=("analyze",), exits=(2,), words=("--dim",))
_LINE = "planner: error: --dim is none\n"


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(code=None, out="", err=""), "did not end in time"),
        (Ending(code=3, out="", err=_LINE), "exit code 3, not 2"),
        (Ending(code=-6, out="", err=_LINE), "exit code -6"),
        (Ending(code=2, out="", err=_LINE + "and more\n"), "2 lines on stderr"),
        (Ending(code=2, out="", err=""), "0 lines on stderr"),
        (Ending(code=2, out="{}", err=_LINE), "something on stdout"),
        (Ending(code=2, out="", err="planner: error: no\n"), "no word of '--dim'"),
        (Ending(code=2, out="", err=_LINE.replace("none", "a bug in planner")), "bug in planner"),
    ],
)
def test_the_judge_sees_what_is_wrong(ending: Ending, said: str, tmp_path: Path):
    assert not faults(_CASE, Ending(code=2, out="", err=_LINE), {}, {}, tmp_path)
    assert said in "; ".join(faults(_CASE, ending, {}, {}, tmp_path))


def test_the_judge_sees_what_is_left_and_what_has_changed(tmp_path: Path):
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    (folder / "model.onnx").write_bytes(b"before")
    before = files_in(folder)
    ending = Ending(code=2, out="", err=_LINE)
    (folder / "model.onnx").write_bytes(b"after")
    (folder / ".out.onnx.x.tmp").write_bytes(b"")
    (scratch / "planner-abc").mkdir()
    found = "; ".join(faults(_CASE, ending, before, files_in(folder), scratch))
    assert "changed: model.onnx" in found
    assert "left behind: .out.onnx.x.tmp" in found
    assert "left in the temporary folder: planner-abc" in found
