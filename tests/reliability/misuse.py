"""Everything wrong that somebody can do at the command line: `python -m tests.reliability.misuse`.

Each case runs in a process of its own, in a folder of its own, under a limit of memory and of time.
It holds where the exit code is the one stated, one error line says what is wrong, no output and no
temporary file is left, and no input has changed. Writes `misuse.json` and `misuse.md`; exits with 1
where a case does not hold.

    python -m tests.reliability.misuse [ROOM or words ...]     runs those alone, writes nothing
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.reliability.case import Case
from tests.reliability.cases import all_cases
from tests.reliability.judge import Ending, Files, faults, files_in
from tests.reliability.kit import kit
from tests.swiftshader import HOOK, MODULE

FOLDER = Path(__file__).parents[2] / "reports" / "reliability"
MEMORY_BYTES = 12 << 30
"""Of address space, much of which compiled libraries take without using it."""
TIME_S = 120
_AT_ONCE = 2
_IMPORTED_ONCE = (
    "onnxruntime",
    "planner.api",
    "planner.api_sweep",
    "planner.cli.main",
    "planner.pipeline.answer.explain",
    "planner.report.page",
    "planner.report.document.outcome",
    "planner.report.terminal.whole",
    "planner.runtime.judge.verify",
)
"""Each case is a fork of a process that has imported these and done no more."""


@dataclass(slots=True)
class _Running:
    """A case at work."""

    case: Case
    top: tempfile.TemporaryDirectory[str]
    before: Files
    process: int
    ends: float

    @property
    def folder(self) -> Path:
        return Path(self.top.name) / "case"

    def done(self) -> dict[str, Any] | None:
        """The row, once the process has ended or has run past its time."""
        process, status = os.waitpid(self.process, os.WNOHANG)
        late = time.monotonic() > self.ends
        if not process and not late:
            return None
        if not process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        top = Path(self.top.name)
        ending = Ending(
            code=os.waitstatus_to_exitcode(status) if process else None,
            out=(top / "out").read_text(errors="backslashreplace"),
            err=(top / "err").read_text(errors="backslashreplace"),
        )
        found = faults(self.case, ending, self.before, files_in(self.folder), top / "scratch")
        self.top.cleanup()
        return {
            "room": self.case.room,
            "wrong": self.case.wrong,
            "command": self.case.command,
            "exit": ending.code,
            "message": ending.message.replace(str(top), ""),
            "faults": found,
        }


def _started(case: Case) -> _Running:
    top = tempfile.TemporaryDirectory(prefix="misuse-")
    folder = Path(top.name) / "case"
    folder.mkdir()
    (Path(top.name) / "scratch").mkdir()
    case.build(folder)
    before = files_in(folder)
    process = os.fork()
    if process == 0:
        _become(case, Path(top.name))
    return _Running(
        case=case, top=top, before=before, process=process, ends=time.monotonic() + TIME_S
    )


def _become(case: Case, top: Path) -> NoReturn:
    """planner's command line, in a process that has only imported it."""
    from planner.cli.main import main as planner_main

    code = 70
    try:
        os.chdir(top / "case")
        os.environ["TMPDIR"] = tempfile.tempdir = str(top / "scratch")
        for number, name, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, top / "out", os.O_WRONLY | os.O_CREAT),
            (2, top / "err", os.O_WRONLY | os.O_CREAT),
        ):
            os.dup2(os.open(name, flags, 0o600), number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = planner_main(list(case.arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """The rows, in the cases' order; two processes at once."""
    kit()
    os.environ[HOOK] = MODULE  # cases with --device webgpu run on the software device
    for module in _IMPORTED_ONCE:
        importlib.import_module(module)
    waiting, running = list(enumerate(cases))[::-1], {}
    rows: dict[int, dict[str, Any]] = {}
    given = 0
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            number, case = waiting.pop()
            running[number] = _started(case)
        for number in list(running):
            row = running[number].done()
            if row is not None:
                rows[number] = row
                del running[number]
        while given in rows:
            yield rows.pop(given)
            given += 1
        time.sleep(0.002)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table."""
    held = sum(not row["faults"] for row in rows)
    codes = Counter(row["exit"] for row in rows)
    lines = [
        "# Misuse",
        "",
        f"{held} of {len(rows)} cases hold; written by `python -m tests.reliability.misuse`, which "
        "runs each command in a process and a folder of its own. A case holds where the exit code is "
        "the one that was stated beforehand, one error line says what is wrong, nothing is left "
        "behind and no input has changed. Cases that are legal end with 0.",
        "",
        "Exit codes: "
        + ", ".join(f"{code}: {n}" for code, n in sorted(codes.items(), key=str))
        + ".",
        "",
        "| | command | what is wrong | exit code | message |",
        "|---|---|---|---:|---|",
    ]
    for row in rows:
        mark = "" if not row["faults"] else f" **{'; '.join(row['faults'])}**"
        cells = (row["room"], f"`{_cell(row['command'])}`", _cell(row["wrong"]) + mark)
        code = "none" if row["exit"] is None else row["exit"]
        lines.append(f"| {' | '.join(cells)} | {code} | {_cell(_shortened(row['message']))} |")
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Cases and exit codes by what is wrong: the section of the report."""
    codes = sorted({row["exit"] for row in rows}, key=str)
    lines = [
        "| what is wrong | cases | hold | " + " | ".join(f"exit {code}" for code in codes) + " |",
        "|---|---:|---:|" + "---:|" * len(codes),
    ]
    rooms = list(dict.fromkeys(row["room"] for row in rows))
    for name in (*rooms, ""):
        here = [row for row in rows if name in ("", row["room"])]
        held = sum(not row["faults"] for row in here)
        counts = Counter(row["exit"] for row in here)
        cells = " | ".join(str(counts[code]) for code in codes)
        lines.append(f"| {name or '**all**'} | {len(here)} | {held} | {cells} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    safe = text.encode("unicode_escape").decode().replace("\\xe9", "é").replace("\\u2026", "…")
    return safe.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _shortened(text: str) -> str:
    return text if len(text) <= 240 else f"{text[:200]}… {text[-30:]}"


def main(arguments: Sequence[str] = ()) -> int:
    """Run the cases that `arguments` name, or all, and write the table of all."""
    cases = [
        case
        for case in all_cases()
        if not arguments or any(a == case.room or a in case.wrong for a in arguments)
    ]
    rows = []
    for row in run_all(cases):
        rows.append(row)
        if row["faults"]:
            print(f"{row['room']}: {row['wrong']}: {'; '.join(row['faults'])}")
            print(f"    {row['command']}: {row['message'][:300]}", flush=True)
    held = sum(not row["faults"] for row in rows)
    print(f"{held} of {len(rows)} cases hold")
    if not arguments:
        text = json.dumps(rows, indent=0, ensure_ascii=True) + "\n"
        (FOLDER / "misuse.json").write_text(text, encoding="utf-8")
        (FOLDER / "misuse.md").write_text(markdown(rows), encoding="utf-8")
    return int(held < len(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
