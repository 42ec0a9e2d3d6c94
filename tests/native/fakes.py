"""CUDA without a card: the library's test build, a fake driver and a fake compiler."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.native.building import compile_unit, system_compiler

HERE = Path(__file__).parent
FLAGS = ("-O0", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-DPLANNER_PLAIN_LOOPS")
TEST_BUILD = ("-DPLANNER_TEST_BUILD",)
OF_A_LIBRARY = ("-fPIC", "-fvisibility=hidden")


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


def compiled_sources(made: Path, *sanitize: str) -> Path:
    """The library's sources for a test build, as an object file to link with."""
    flags = (*FLAGS, *OF_A_LIBRARY, *sanitize, *TEST_BUILD, "-c")
    assert compile_unit(compiler(), flags, made) == ""
    return made


def shared_sources(factory: pytest.TempPathFactory) -> Path:
    """Compiled once for all processes that share the tests: it takes longest."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / "sources.o"
    with (folder / "sources.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_file():
            compiled_sources(folder / "begun.o").rename(made)
    return made


def library_for_tests(folder: Path, sources: Path) -> Path:
    """The library's test build, of its compiled sources."""
    made = folder / "library.so"
    command = [*compiler(), "-pthread", "-shared", str(sources), "-ldl", "-o", str(made)]
    subprocess.run(command, check=True)
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
