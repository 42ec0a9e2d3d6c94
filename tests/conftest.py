"""Two workers share the tests, a file at a time (pytest-xdist; `-n 0` runs them in one process)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import typer.main

from planner.native import SOURCES, is_built
from planner.native.building import BuildError, build
from tests.pressing import kills

if TYPE_CHECKING:
    from tests.swiftshader.device import SoftwareDevice

TOGETHER = ("tests/training/",)
"""Folders that one worker takes whole: their tests share what is dear to make."""

FIRST = (
    "tests/training/",
    "tests/fuzz/test_finds.py",
    "tests/test_docs.py",
    "tests/test_checks.py",
    "tests/test_api.py",
    "tests/test_first_hour.py",
)
"""What takes longest begins first, so that no worker is left with it at the end."""

# numpy and PyTorch read it when they are imported: a worker has one core
os.environ.setdefault("OMP_NUM_THREADS", "1")

# plans that are compared, or kept as snapshots, want the same times in each run: tests of measured times
# ask for them
os.environ.setdefault("PLANNER_CALIBRATE", "never")


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    """Typer takes planner's commands apart once for all tests that call `main`: it makes the same of them
    each time, in 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_timing() -> Iterator[None]:
    """Verification times both models for as many runs as ever, but no longer: no test looks at how
    long a step takes."""
    from planner.runtime.judge import verify  # the process that hands out the tests goes without

    with pytest.MonkeyPatch.context() as patch:
        for length in ("QUICK", "THOROUGH"):
            patch.setattr(verify, length, dataclasses.replace(getattr(verify, length), min_s=0.0))
        yield


@pytest.fixture(scope="session")
def native_library() -> None:
    """planner's native library is there; tests that need it are skipped where no compiler makes it."""
    if not is_built():
        pytest.skip("planner's native library cannot be built here")


@pytest.fixture(scope="module")
def webgpu_device() -> Iterator[SoftwareDevice]:
    """A GPU in software for `--device webgpu`, on machines with a GPU too: its bytes are counted, its
    numbers the same. Tests that want it are skipped where it does not run, and say why."""
    from planner.errors import UsageError
    from tests.swiftshader import HOOK, MODULE
    from tests.swiftshader.device import find_device

    try:
        device = find_device()
    except UsageError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOOK, MODULE)
        yield device


@pytest.fixture(scope="module")
def counted_device(webgpu_device: SoftwareDevice) -> SoftwareDevice:
    """The same, where there is a C compiler to build the driver that counts."""
    if webgpu_device.why_not_counted:
        pytest.skip(webgpu_device.why_not_counted)
    return webgpu_device


@pytest.fixture(scope="module", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """No module leaves this process one that Ctrl-C kills: the next test that presses it would end it
    without a trace."""
    could_die = kills()
    yield
    assert could_die or not kills(), "what ran here took SIGINT from Python"


def pytest_configure(config: pytest.Config) -> None:
    """Build the native library where it is not, before there are workers: planning needs it."""
    if not hasattr(config, "workerinput") and not is_built():
        with contextlib.suppress(BuildError):  # what needs it says so, or is skipped
            build(SOURCES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put `FIRST` first; the rest stays as collected."""

    def place(item: pytest.Item) -> int:
        starts = (i for i, start in enumerate(FIRST) if item.nodeid.startswith(start))
        return next(starts, len(FIRST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """By file, and the folders of `TOGETHER` as if they were one."""
    from tests.scheduling import ByFile

    return ByFile(config, log, TOGETHER) if config.getoption("dist") == "loadfile" else None
