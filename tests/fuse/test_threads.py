"""Blocks on many threads: no race, and the bits of one thread."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from planner.native.building import SOURCES, system_compiler

PARTS = ("loops", "program", "run", "convolution/kernels", "convolution/convolution")
PROGRAM = Path(__file__).parents[1] / "native" / "fused_threads.cpp"
FLAGS = ("-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-DPLANNER_PLAIN_LOOPS")


def test_thread_sanitizer_finds_no_race_between_blocks(tmp_path: Path):
    compiler = system_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    parts = [SOURCES / "fused" / f"{name}.cpp" for name in PARTS]
    unit, program = tmp_path / "unit.cpp", tmp_path / "program"
    unit.write_text("".join(f'#include "{part}"\n' for part in (*parts, PROGRAM)))
    command = [*compiler.command, *FLAGS, "-fsanitize=thread", f"-I{SOURCES}", unit, "-o", program]
    made = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if "fsanitize" in made.stderr or "tsan" in made.stderr:
        pytest.skip("the compiler has no -fsanitize=thread that works here")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run here")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stdout + done.stderr
