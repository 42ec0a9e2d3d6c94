"""Commands ended at random moments: `python -m tests.reliability.kills [--points 100]`.

Each point draws a command, a signal (SIGINT to the whole process group, as a terminal does; SIGTERM;
SIGKILL) and a moment within the time that the command takes when it is left alone. Some points run on
a full disk (a tmpfs of a random size) instead. What must hold afterwards:

- every output is as it was before, or whole and new, and where a command has several, all or none;
- no input has changed;
- no process of the command is left after two seconds;
- SIGINT and SIGTERM end in one line, without a traceback, with their exit code, and nothing
  temporary is left; after SIGKILL nothing is once the next planner has run.

Writes `reports/reliability/kills.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from planner.files.temporary import NAME, clear

RESULT = Path(__file__).parents[2] / "reports" / "reliability" / "kills.json"
ZOO = Path(__file__).parents[2] / "models" / "zoo"
PLANNER = [sys.executable, "-c", "from planner.cli.main import run; run()"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_GRACE_S = 2.0
_FULL_SHARE = 0.1  # of the points, on a full disk
_AT_ONCE_S = 0.5  # a command that ends well so soon after a signal was ending
_MIN_S = 0.08  # before that, Python itself starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and what it writes; it runs in a folder with what `prepare` has put there."""

    name: str
    line: str
    outputs: tuple[str, ...] = ()


COMMANDS = (
    Command(
        name="optimize",
        line="optimize mlp.onnx --budget 80% --time-limit 3 -f --trace t.json",
        outputs=("mlp.planned.onnx", "mlp.plan.json", "mlp.report.html", "t.json"),
    ),
    Command(
        name="optimize under a cap",
        line="optimize mlp.onnx --budget 90% --swap none --time-limit 1 -f",
        outputs=("mlp.planned.onnx", "mlp.plan.json", "mlp.report.html"),
    ),
    Command(
        name="sweep -j2",
        line="sweep mlp.onnx -j2 --points 4 --time-limit 6 -o sweep.html -f",
        outputs=("sweep.html",),
    ),
    Command(
        name="apply",
        line="apply mlp.onnx given.plan.json -o applied.onnx -f",
        outputs=("applied.onnx",),
    ),
    Command(
        name="verify",
        line="verify mlp.onnx given.onnx --plan given.plan.json",
    ),
    Command(
        name="analyze",
        line="analyze mlp.onnx -o analysis.html -f",
        outputs=("analysis.html",),
    ),
    Command(
        name="problem",
        line="problem mlp.onnx -o problem.json -f",
        outputs=("problem.json",),
    ),
    Command(
        name="solve",
        line="solve given.problem.json --budget 60% --time-limit 4 -o s.json -f",
        outputs=("s.json",),
    ),
)


def digest(path: Path) -> str:
    """Of a file's content; "" where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def prepare(folder: Path) -> None:
    """The inputs of every command."""
    shutil.copy(ZOO / "mlp_adamw.onnx", folder / "mlp.onnx")
    for arguments in (
        "optimize mlp.onnx --budget 80% --time-limit 2 --no-verify -q -o given.onnx",
        f"problem {ZOO / 'gpt.onnx'} -q -o given.problem.json",
    ):
        subprocess.run([*PLANNER, *arguments.split()], cwd=folder, check=True)
    (folder / "given.report.html").unlink()


def is_whole(path: Path) -> bool:
    """Whether a file can be read to its end."""
    try:
        if path.suffix == ".onnx":
            # operator sets come last in the file, and a graph's outputs behind its nodes
            model = onnx.load(path)
            return bool(model.opset_import and model.graph.output)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        else:
            return path.read_text().rstrip().endswith("</html>")
    except Exception:
        return False
    return True


def of_session(session: int) -> list[str]:
    """Living processes of a session, by name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " ")[:120])
        except OSError:
            continue
    return found


class Bench:
    """A folder in which commands run, and what must not change there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        prepare(folder)
        self.inputs = {path: digest(path) for path in folder.iterdir() if path.is_file()}
        self.seconds = {command.name: self._alone(command) for command in COMMANDS}

    def _alone(self, command: Command) -> float:
        began = time.monotonic()
        self.start(command).communicate()
        return time.monotonic() - began

    def start(self, command: Command, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """The command, in a session of its own."""
        return subprocess.Popen(
            [*prefix, *PLANNER, *command.line.split()],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.scratch)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def point(self, draw: random.Random) -> dict[str, Any]:
        """End one command at one moment; what was found."""
        command = draw.choice(COMMANDS)
        if draw.random() < 0.5:  # what was there must be there still
            for name in command.outputs:
                (self.folder / name).write_text("precious")
        else:
            for name in command.outputs:
                (self.folder / name).unlink(missing_ok=True)
        before = {name: digest(self.folder / name) for name in command.outputs}
        number = draw.choice(SIGNALS)
        at = draw.uniform(_MIN_S, 1.1 * self.seconds[command.name])
        full_kib = draw.choice((4, 16, 64, 256)) if draw.random() < _FULL_SHARE else 0
        prefix: tuple[str, ...] = ()
        if full_kib:  # of the temporary folder
            script = f'mount -t tmpfs -o size={full_kib}k tmpfs {self.scratch} && exec "$@"'
            prefix = ("unshare", "-m", "sh", "-c", script, "sh")
        process = self.start(command, prefix)
        ended = False
        if not full_kib:
            try:
                process.wait(at)
                ended = True
            except subprocess.TimeoutExpired:
                (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        signalled = time.monotonic()
        _, said = process.communicate(timeout=120)
        took = time.monotonic() - signalled
        deadline = time.monotonic() + _GRACE_S
        while (left := of_session(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return {
            "command": command.name,
            "ended_by": f"full disk, {full_kib} KiB" if full_kib else signal.Signals(number).name,
            "at_s": round(at, 2),
            "status": process.returncode,
            "said": said.strip().splitlines()[-1:],
            "took_s": None if full_kib else round(took, 2),
            "ended_before": ended,
            "faults": self._faults(
                command,
                before,
                said,
                left,
                process.returncode,
                took,
                0 if full_kib or ended else number,
            ),
        }

    def _faults(
        self,
        command: Command,
        before: Mapping[str, str],
        said: str,
        left: list[str],
        status: int,
        took: float,
        number: int,
    ) -> list[str]:
        faults = [f"left running: {name}" for name in left]
        faults += [f"input changed: {p.name}" for p, d in self.inputs.items() if digest(p) != d]
        after = {name: digest(self.folder / name) for name in command.outputs}
        new = [name for name in command.outputs if after[name] != before[name]]
        faults += [f"not whole: {name}" for name in new if not is_whole(self.folder / name)]
        if new and len(new) < len(command.outputs):
            faults.append(f"only {', '.join(new)} of {len(command.outputs)} outputs")
        if "Traceback" in said or "bug in planner" in said or "terminate" in said:
            faults.append(f"said: {said[-200:]}")
        if number == signal.SIGKILL:
            if status not in (-number, 0):
                faults.append(f"status {status}")
            clear(self.folder)  # as the next planner does first
            clear(self.scratch)
        elif number and status == 0 and (took < _AT_ONCE_S or _keeps(command.name, number)):
            pass  # the search gives its best plan; any other was done already
        elif status not in ((128 + number,) if number else (0, 2)):
            faults.append(f"status {status}")
        known = {p.name for p in self.inputs} | {n for c in COMMANDS for n in c.outputs}
        known |= {"scratch"}
        faults += [f"left: {p.name}" for p in self.folder.iterdir() if p.name not in known]
        faults += [f"left: {p.name}" for p in self.scratch.iterdir() if NAME.fullmatch(p.name)]
        return faults


def _keeps(command: str, number: int) -> bool:
    """Whether the signal ends the search of a command and not the command."""
    return command == "solve" or (command.startswith("optimize") and number == signal.SIGINT)


def kill(points: int, *, seed: int = 0) -> dict[str, Any]:
    """End commands at so many points; what `kills.json` holds."""
    rows: list[dict[str, Any]] = []
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        for number in range(points):
            rows.append(bench.point(draw))
            row = rows[-1]
            print(
                f"{number + 1}/{points} {row['command']}, {row['ended_by']} at {row['at_s']} s: "
                f"{row['status']} {'; '.join(row['faults']) or 'ok'}",
                flush=True,
            )
        alone = {name: round(seconds, 1) for name, seconds in bench.seconds.items()}
    return {"seed": seed, "points": points, "alone_s": alone, "rows": rows}


def table(data: Mapping[str, Any]) -> str:
    """The part of the report: a row for each command."""
    lines = [
        "| command | alone, s | SIGINT | SIGTERM | SIGKILL | full disk | over before | faults |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, seconds in data["alone_s"].items():
        rows = [row for row in data["rows"] if row["command"] == name]
        ended = [row["ended_by"] for row in rows if not row["ended_before"]]
        counts = [sum(e.startswith(k) for e in ended) for k in (*(s.name for s in SIGNALS), "full")]
        over = sum(row["ended_before"] for row in rows)
        faults = sum(bool(row["faults"]) for row in rows)
        cells = " | ".join(map(str, counts))
        lines.append(f"| {name} | {seconds} | {cells} | {over} | {faults} |")
    slowest = max((row["took_s"] or 0.0 for row in data["rows"]), default=0.0)
    faults = [(row["command"], fault) for row in data["rows"] for fault in row["faults"]]
    lines += [
        "",
        f"{data['points']} points, seed {data['seed']}: {len(faults)} faults. After its signal a command "
        f"took {slowest:.1f} s at most to end.",
        *(f"- {command}: {fault}" for command, fault in faults),
    ]
    return "\n".join(lines)


def main() -> None:
    """End commands, write the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    # a shell that starts this in the background has it, and so the commands, ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data = kill(given.points, seed=given.seed)
    RESULT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(table(data))


if __name__ == "__main__":
    main()
