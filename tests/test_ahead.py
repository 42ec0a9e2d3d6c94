"""Work done ahead in a process beside: what it compiles is found, and it does not outlive anybody."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from planner.processes import ahead, compiled
from planner.processes.children import quiet

_SOURCE = """
import time
import numba

@numba.njit(cache=True)
def double(x):
    return 2 * x

def compile_double():
    double(1)

def wait():
    time.sleep(600)

def count():
    with open(__file__.replace("doubled.py", "counted"), "w") as file:
        for _ in range(60_000):
            print(file=file, flush=True)
            time.sleep(0.01)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a compiled function whose cache is empty."""
    (tmp_path / "doubled.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(ahead, "_begun", {})
    yield importlib.import_module("doubled")
    sys.modules.pop("doubled", None)


def test_what_was_begun_is_there_when_it_is_finished(module: ModuleType) -> None:
    assert not compiled.is_compiled(module.double)
    ahead.begin("doubled:compile_double")
    ahead.finish("doubled:compile_double")
    assert compiled.is_compiled(module.double)


def test_a_changed_source_is_not_compiled(module: ModuleType) -> None:
    module.double(1)
    assert compiled.is_compiled(module.double)
    Path(str(module.__file__)).write_text(_SOURCE.replace("2 *", "1 * 2 *"))
    again = imported_again(module)
    assert not compiled.is_compiled(again.double)


def test_what_runs_as_it_is_counts_as_compiled() -> None:
    assert compiled.is_compiled(len)


def imported_again(module: ModuleType) -> ModuleType:
    sys.modules.pop(module.__name__)
    importlib.invalidate_caches()
    return importlib.import_module(module.__name__)


def test_what_was_not_begun_is_not_waited_for() -> None:
    ahead.finish("doubled:never_begun")


def test_no_process_is_left_behind(module: ModuleType) -> None:
    program = (
        "from planner.processes import ahead; ahead.begin('doubled:wait'); "
        "print(*(p.pid for p in ahead._begun.values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_what_is_done_ahead_stands_still_while_it_is_paused(module: ModuleType) -> None:
    ahead.begin("doubled:count")
    try:
        counted = Path(str(module.__file__)).with_name("counted")
        _wait_for(counted.exists)
        with quiet():
            time.sleep(0.2)  # a signal takes its time
            size = counted.stat().st_size
            time.sleep(0.2)
            assert counted.stat().st_size == size
        _wait_for(lambda: counted.stat().st_size > size)
    finally:
        for process in ahead._begun.values():
            process.kill()
            process.wait()


def _wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
