"""However a command ends, its outputs are whole or absent, and nothing of it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.cli import ending
from planner.files.temporary import clear
from planner.pipeline.record.assemble import read_plan
from tests.process import PLANNER, started

GPT = Path(__file__).parents[2] / "models" / "zoo" / "gpt.onnx"
MLP = GPT.with_name("mlp_adamw.onnx")
OPTIMIZE = ("optimize", str(GPT), "--budget", "40%", "--time-limit", "60", "-v")
SWEEP = ("sweep", str(MLP), "-j2", "--points", "6", "--time-limit", "30", "-v", "-o", "sweep.html")


@pytest.fixture
def scratch(tmp_path):
    """A folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def ended_by(
    number: int, arguments: tuple[str, ...], scratch: Path, *, when: str, later_s: float = 0.3
) -> tuple[int, str, list[int]]:
    """Run planner in a session of its own, send a signal so long after it says `when`; (status, what it
    said after that, processes of the session that are left)."""
    process = started(
        *arguments,
        cwd=scratch.parent,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if when in line:
                break
        time.sleep(later_s)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as the terminal does
        else:
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said, of_session(process.pid)


def of_session(session: int) -> list[int]:
    """Living processes of a session, after a while for those that are about to end."""
    for _ in range(100):
        left = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                left.append(int(folder.name))
        if not left:
            return []
        time.sleep(0.1)
    return left


@pytest.mark.parametrize(
    ("number", "arguments", "when"),
    [
        (signal.SIGINT, SWEEP, "compared"),
        (signal.SIGTERM, OPTIMIZE, "solving"),
        (signal.SIGTERM, OPTIMIZE, "loading"),
        (signal.SIGHUP, OPTIMIZE, "optimize the"),
    ],
)
def test_a_signal_ends_it_in_one_line(number, arguments, when, scratch):
    status, lines, left = ended_by(number, arguments, scratch, when=when)
    assert (status, left) == (128 + number, [])
    why = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert lines.endswith(f"planner: {why}; nothing was written\n")
    assert all(line.startswith("planner: ") for line in lines.splitlines())
    assert os.listdir(scratch.parent) == ["scratch"]
    assert not list(scratch.glob("planner*"))


MAKING = """
from planner.cli.ending import watch_signals
from planner.files.temporary import temporary_folder
watch_signals()
print("begun", flush=True)
while True:
    with temporary_folder() as folder:
        for number in range(30):
            (folder / str(number)).write_bytes(b"x")
"""


def test_a_signal_leaves_no_folder_that_is_being_made_filled_or_removed(scratch):
    environment = {**os.environ, "TMPDIR": str(scratch)}
    for number in range(40):
        process = subprocess.Popen(
            [sys.executable, "-c", MAKING], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(number / 4000)  # a round of the loop takes a millisecond
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        process.stdout.close()
        assert not os.listdir(scratch)


@pytest.mark.parametrize("late", [False, True], ids=["in the block", "after it"])
@pytest.mark.parametrize("beside_first", [False, True])
def test_both_threads_pass_over_the_first_signal_alone(beside_first, late, monkeypatch):
    left = []
    monkeypatch.setattr(ending, "leave_for", left.append)
    number = signal.SIGINT

    def in_the_main_thread():
        with pytest.raises(KeyboardInterrupt):
            ending._on_signal(number, None)

    with ending.signals_raise(number):
        if beside_first:
            ending._seen_beside(number)
            in_the_main_thread()
        else:
            in_the_main_thread()
            if not late:
                ending._seen_beside(number)
    if late and not beside_first:
        ending._seen_beside(number)
    assert left == []
    ending._seen_beside(number)
    assert left == [number]
    ending._on_signal(number, None)
    assert left == [number, number]


def test_a_signal_after_the_block_ends_the_process(monkeypatch):
    left = []
    monkeypatch.setattr(ending, "leave_for", left.append)
    with ending.signals_raise(signal.SIGINT):
        pass
    ending._seen_beside(signal.SIGINT)
    assert left == [signal.SIGINT]


def test_ctrl_c_ends_the_search_and_keeps_its_plan(scratch):
    arguments = (*OPTIMIZE, "--no-verify")
    status, lines, left = ended_by(signal.SIGINT, arguments, scratch, when="solving: +")
    assert (status, left) == (0, []), lines
    assert "the search was interrupted: this is the best plan that it had found" in lines
    plan = read_plan(scratch.parent / "gpt.plan.json")
    assert any("interrupted" in text for text in plan.assumptions)
    assert plan.planned.peak_bytes <= plan.budget_bytes
    assert (scratch.parent / "gpt.planned.onnx").exists()
    assert not list(scratch.glob("planner*"))


def test_ctrl_c_before_there_is_a_plan_ends_the_command(scratch):
    status, lines, left = ended_by(
        signal.SIGINT, OPTIMIZE, scratch, when="searching for base orders", later_s=0.0
    )
    assert (status, left) == (130, [])
    assert lines.endswith("planner: interrupted; nothing was written\n")


@pytest.mark.parametrize(("arguments", "when"), [(OPTIMIZE, "optimize the"), (SWEEP, "compared")])
def test_what_kill_leaves_is_removed_by_the_next(arguments, when, scratch):
    status, _, left = ended_by(signal.SIGKILL, arguments, scratch, when=when)
    assert (status, left) == (-signal.SIGKILL, [])
    clear(scratch)  # what the next run does first
    clear(scratch.parent)
    assert os.listdir(scratch.parent) == ["scratch"]
    assert not list(scratch.glob("planner*"))


def test_the_process_under_a_cap_ends_with_planner(scratch):
    arguments = (
        "optimize",
        str(MLP),
        "--budget",
        "90%",
        "--swap",
        "none",
        "--time-limit",
        "0.5",
        "-v",
    )
    status, _, left = ended_by(signal.SIGKILL, arguments, scratch, when="hard memory cap")
    assert (status, left) == (-signal.SIGKILL, [])


def test_a_signal_that_the_process_was_started_to_ignore_is_ignored(scratch):
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + PLANNER[1]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "analyze", str(MLP), "--time-limit", "0.5", "-v"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "peak" in out


def in_a_small_folder(folder: Path, size: str, command: list[str], **variables: str) -> str:
    """Run a command with `size` bytes of room in `folder`; its stderr, and what is left there."""
    script = f'mount -t tmpfs -o size={size} tmpfs {folder} && "$@"; ls -A {folder}'
    done = subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no folder of a small size can be made here: {done.stderr.strip()}")
    return done.stderr + done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
def test_a_full_disk_is_said_and_nothing_is_left(scratch):
    command = [sys.executable, *PLANNER, "optimize", str(MLP), "--budget", "90%", "-q"]
    command += ["--no-verify", "--time-limit=0.5", "--no-calibrate", "-o", str(scratch / "m.onnx")]
    assert in_a_small_folder(scratch, "200k", command) == (
        f"planner: error: output {scratch}/m.report.html cannot be written: No space left on device; "
        "free some room or name another folder\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
def test_a_full_temporary_folder_is_said(scratch):
    command = [sys.executable, *PLANNER, "analyze", str(MLP), "-q"]
    said = in_a_small_folder(scratch, "16k", command, TMPDIR=str(scratch))
    assert said.splitlines()[0] == (
        f"planner: error: the disk of the temporary folder {scratch} is full; set TMPDIR to a folder "
        "with more room"
    )


def test_a_full_standard_output_is_said():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *PLANNER, "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "planner: error: standard output: No space left on device\n"
