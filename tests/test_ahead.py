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

@numba.njit(cache=True)
def triple(x):
    return 3 * x

def compile_triple():
    triple(1)

def wait():
    time.sleep(600)

def refuse():
    raise ValueError

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


def test_who_needs_the_first_call_does_not_wait_for_the_next(module: ModuleType) -> None:
    ahead.begin("doubled:compile_double", "doubled:wait")
    ahead.finish("doubled:compile_double")
    assert compiled.is_compiled(module.double)
    begun = ahead._begun["doubled:wait"].process
    assert begun.poll() is None
    begun.kill()
    ahead.finish("doubled:wait")  # it has ended without


def test_a_call_that_fails_is_waited_for_no_longer(module: ModuleType) -> None:
    ahead.begin("doubled:refuse", "doubled:compile_double")
    ahead.finish("doubled:compile_double")
    assert not compiled.is_compiled(module.double)


def test_what_is_compiled_is_loaded_once_by_however_many_threads(module: ModuleType) -> None:
    loads: list[float] = []

    def load() -> None:
        time.sleep(0.05)
        loads.append(module.double(1))

    compilation = compiled.Compilation(load, lambda: (module.double,))
    compilation.load_ahead()
    assert not loads  # not compiled: who needs it says when
    module.compile_double()
    compilation.load_ahead()
    compilation.load_ahead()
    compilation.warm_up()
    assert loads == [2]


def test_the_later_ones_are_compiled_in_the_same_process(module: ModuleType) -> None:
    first = compiled.Compilation(module.compile_double, lambda: (module.double,))
    later = compiled.Compilation(module.compile_triple, lambda: (module.triple,))
    first.begin(later)
    later.wait()
    assert first.is_done and later.is_done
    assert len(set(ahead._begun.values())) == 1


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
        "print(*(begun.process.pid for begun in ahead._begun.values()))"
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
        for begun in ahead._begun.values():
            begun.process.kill()
            begun.process.wait()


def _wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
