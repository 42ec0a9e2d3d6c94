"""CUDA without a card: the library's test build, a fake driver and a fake compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.native.building import compile_unit, system_compiler

HERE = Path(__file__).parent
FLAGS = ("-O0", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-DPLANNER_PLAIN_LOOPS")
TEST_BUILD = ("-DPLANNER_TEST_BUILD",)
SHARED = ("-fPIC", "-shared", "-fvisibility=hidden")


def compiler() -> tuple[str, ...]:
    """The system's C++ compiler; skips where there is none."""
    found = system_compiler()
    if found is None:
        pytest.skip("there is no C++ compiler to build the fake driver with")
    return found.command


def shared_library(name: str, made: Path, *flags: str) -> Path:
    """One of this folder's sources as a library of its own."""
    command = [*compiler(), *FLAGS, *flags, "-fPIC", "-shared", HERE / f"{name}.cpp", "-ldl"]
    subprocess.run([*map(str, command), "-o", str(made)], check=True)
    return made


def library_for_tests(folder: Path) -> Path:
    """The library's test build."""
    made = folder / "library.so"
    assert compile_unit(compiler(), (*FLAGS, *SHARED, *TEST_BUILD), made) == ""
    return made


def environment(driver: Path, mutant: int = 0, **more: str) -> dict[str, str]:
    """What the test build reads."""
    chosen = {"PLANNER_TEST_DRIVER": str(driver), "PLANNER_TEST_MUTANT": str(mutant)}
    return os.environ | chosen | more


def python(
    *arguments: str | Path, seconds: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A child process in the repository."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
