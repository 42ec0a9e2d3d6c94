"""Both backends and both pools under random streams; CUDA on a driver of a thread a stream.

The library's test build serves the CPU provider with the CUDA backend, so that ONNX Runtime drives
it. Leaving out a wait, a mutant, shows what the wait is for. Nothing here is a claim about a GPU.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.native.building import SOURCES
from planner.runtime.memory.paged import PIECE_BYTES, PagedPool, Taken
from tests.native.fakes import (
    FLAGS,
    HERE,
    TEST_BUILD,
    compiled_sources,
    compiler,
    environment,
    library_for_tests,
    python,
    shared_library,
    shared_sources,
)

WAITS = {1: "end of the copy out", 2: "x is ready", 3: "y is free", 4: "end of the copy in"}


@dataclass(frozen=True, slots=True)
class Built:
    """The fake driver, the library's sources compiled, and the program of random streams."""

    driver: Path
    sources: Path
    program: Path

    def link(self, name: str, made: Path, *sanitize: str) -> None:
        """One of this folder's programs, with the library's sources in it."""
        parts = [HERE / f"{name}.cpp", self.sources, self.driver]
        command = [*compiler(), *FLAGS, *sanitize, *TEST_BUILD, f"-I{SOURCES}", *parts]
        subprocess.run([*map(str, command), "-ldl", "-o", str(made)], check=True)

    def run(
        self, programs: int, backend: str = "cuda", mutant: int = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """So many programs, with a wait left out."""
        return subprocess.run(
            [self.program, str(programs), backend, self.program.parent],
            env=environment(self.driver, mutant, **more),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def built(folder: Path, sources: Path, *sanitize: str) -> Built:
    """The fake driver, and the program with the library's compiled sources in it."""
    driver = shared_library("fake_driver", folder / "driver.so", *sanitize)
    found = Built(driver, sources, folder / "streams")
    found.link("streams", found.program, *sanitize)
    return found


@pytest.fixture(scope="module")
def plain_build(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built(tmp_path_factory.mktemp("plain"), shared_sources(tmp_path_factory))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's test build."""
    return library_for_tests(tmp_path_factory.mktemp("library"), shared_sources(tmp_path_factory))


@pytest.mark.parametrize("backend", ["cuda", "threads", "cpu", "disk"])
def test_random_streams_keep_their_numbers_in_a_pool_without_a_byte_to_spare(
    backend: str, plain_build: Built
):
    done = plain_build.run(40, backend)
    assert done.returncode == 0, done.stdout + done.stderr
    swaps, checks, wrong, mappings = map(int, re.findall(r"\d+", done.stdout))
    assert swaps > 300 and checks > 1000 and wrong == 0
    assert mappings > 0  # some buffers lay in pieces


@pytest.mark.parametrize("mutant", WAITS, ids=WAITS.values())
def test_each_wait_of_the_cuda_backend_is_needed(mutant: int, plain_build: Built):
    done = plain_build.run(15, mutant=mutant)
    assert done.returncode == 1 and " 0 wrong" not in done.stdout, done.stdout + done.stderr


def test_the_pool_waits_for_the_device_before_pages_go_to_another_thread_or_away(
    plain_build: Built,
):
    shared = plain_build.run(40, "threads", FAKE_DRIVER_NO_WAIT="1")
    assert shared.returncode == 1 and " 0 wrong" not in shared.stdout, shared.stdout + shared.stderr
    replaced = plain_build.run(4, FAKE_DRIVER_NO_WAIT="1")
    assert replaced.returncode == -signal.SIGSEGV, replaced.stdout + replaced.stderr


def other_bits(library: Path, driver: Path, kind: str = "chain", mutant: int = 0) -> int:
    """How many steps in ONNX Runtime had other bits."""
    child = environment(driver, mutant)
    done = python("-m", "tests.native.on_fake_driver", library, kind, **child)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_onnxruntime_keeps_every_bit_and_the_controls_do_not(plain_build: Built, library: Path):
    assert other_bits(library, plain_build.driver) == 0
    assert other_bits(library, plain_build.driver, "no-x") > 0
    assert other_bits(library, plain_build.driver, mutant=4) > 0


def test_updates_are_stored_on_the_host_and_not_without_the_wait(plain_build: Built, library: Path):
    assert other_bits(library, plain_build.driver, "stores") == 0
    assert other_bits(library, plain_build.driver, "stores", mutant=1) > 0


DEVICE_POOL = """
import ctypes, sys
from pathlib import Path
from planner import native
from planner.errors import UsageError
native.library_path = lambda: Path(sys.argv[1])
page = 4096
options = native.device_pool_options(64 * page, page)
alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
buffers = [alloc(8 * page) for _ in range(8)]
for i, buffer in enumerate(buffers):
    ctypes.memset(buffer, i, 8 * page)
for buffer in buffers[::2]:
    free(buffer)
apart = alloc(32 * page)  # of the four gaps
ctypes.memset(apart, 255, 32 * page)
for i, buffer in enumerate(buffers):
    if i % 2:
        assert ctypes.string_at(buffer, 8 * page) == bytes([i]) * 8 * page
facts = native.pool(device=True)
assert facts.pages == facts.pages_most == 64 and facts.mappings == 1, facts
assert facts.asked_bytes == 64 * page, facts
assert native.pool() is None
try:
    native.device_pool_options(65 * page, page)
except UsageError as error:
    print(error)
"""


def test_the_cuda_providers_options_lead_to_the_devices_pool(plain_build: Built, library: Path):
    done = python("-c", DEVICE_POOL, library, **environment(plain_build.driver))
    assert done.returncode == 0, done.stderr
    assert "device pool of another size" in done.stdout


ANOTHER_THREAD = """
import ctypes, os, sys, threading, time
from pathlib import Path
from planner import native
native.library_path = lambda: Path(sys.argv[1])
size = 16 << 20
options = native.device_pool_options(size, 4096)
alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
driver = ctypes.CDLL(os.environ["PLANNER_TEST_DRIVER"])
ones = ctypes.create_string_buffer(bytes([1]) * size, size)

def frees():
    stream, buffer = ctypes.c_void_p(), alloc(size)
    driver.cuStreamCreate(ctypes.byref(stream), 1)
    driver.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(buffer), ones, ctypes.c_size_t(size), stream)
    free(buffer)

def asks():
    print(ctypes.string_at(alloc(size) + size - 1, 1) == bytes([1]))

for target in (frees, asks):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    time.sleep(0.01)  # the system's thread ends later; the copy takes longer
"""


def test_the_pool_waits_for_the_work_of_a_thread_that_is_gone(plain_build: Built, library: Path):
    """The thread that asks next has its id, as a rule."""
    done = python("-c", ANOTHER_THREAD, library, **environment(plain_build.driver))
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


PIECES = {"host": PIECE_BYTES, "device": 256}


@pytest.mark.parametrize("place", PIECES)
def test_the_pages_that_are_predicted_are_taken(place: str, plain_build: Built, tmp_path: Path):
    program = tmp_path / "requests"
    plain_build.link("requests", program)
    for seed in range(20):
        draw, predicted = random.Random(seed), PagedPool(piece_bytes=PIECES[place])
        there: dict[int, Taken] = {}
        lines: list[str] = []
        wanted: list[int] = []
        taken = 0
        while len(lines) < 2000:
            if there and draw.random() < 0.49:
                which = draw.choice(tuple(there))
                predicted.release(there.pop(which))
                lines.append(f"-{which}")
            else:
                size = draw.choice((1, 1, 8, 65, 300, 900, 3000, 4096, 9000))
                there[taken] = predicted.allocate(size)
                lines.append(f"+{size}")
                taken += 1
            wanted.append(predicted.pages)
        done = subprocess.run(
            [program, place],
            input="\n".join(lines),
            env=environment(plain_build.driver),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout[-20:] + done.stderr
        assert list(map(int, done.stdout.split())) == wanted, seed


PAGE_LOCKED = """
import gc, sys
from pathlib import Path
import numpy as np
from planner import native
native.library_path = lambda: Path(sys.argv[1])
memory = native.page_locked(4000)
if memory is not None:
    array = np.ndarray((1000,), np.float32, memory)
    array[...] = 3
    del memory
    gc.collect()
    assert array.sum() == 3000
    del array
    gc.collect()
print(native.page_locked(4000) is not None)
"""


def test_page_locked_memory_is_there_where_the_driver_has_some(plain_build: Built, library: Path):
    few = environment(plain_build.driver, FAKE_DRIVER_HOST_BYTES="1000")
    for child, there in ((environment(plain_build.driver), "True"), (few, "False")):
        done = python("-c", PAGE_LOCKED, library, **child)
        assert (done.returncode, done.stdout.strip()) == (0, there), done.stderr


ON_FAKE_DRIVER = """
import json, os, sys
from pathlib import Path
from planner import native
native.library_path = lambda: Path(sys.argv[1])
import tests.native.graphs as graphs
from planner.runtime import swapping
graphs.library_path = swapping.library_path = native.library_path
from reports.gpu import basics, graphs as chains, large
options = chains.options
def of_cuda(level, entries, **given):
    kept = {key: value for key, value in entries.items() if key == "planner.pool_bytes"}
    return options(level, entries=kept, **given)
chains.options = of_cuda
basics._in_memory = basics.memory  # here, each session of a process has a pool
where = chains.Where(False)
for name, check in basics.CHECKS.items():
    print(json.dumps({"check": name, **check(where)}), flush=True)
for name in (name for case in large.REHEARSED if case.fuse == "none" for name in case.checks):
    found = large.check(name, where, Path(), Path(sys.argv[2]))
    print(json.dumps({"check": name, **found}), flush=True)
os._exit(0)
"""


def test_the_checks_for_a_gpu_hold_and_their_control_does_not(
    plain_build: Built, library: Path, tmp_path: Path
):
    """All but the fused cases, whose programs CUDA's compiler makes: tests/fuse/test_cuda.py has them."""
    child = environment(plain_build.driver)
    done = python("-c", ON_FAKE_DRIVER, library, tmp_path, seconds=300, **child)
    assert done.returncode == 0, done.stderr
    found = {row["check"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert len(found) == 9 + 10
    odd = [row for row in found.values() if not row["holds"]]
    assert not odd, odd


def test_no_page_locked_memory_is_an_error_of_that_swap(plain_build: Built, library: Path):
    few = environment(plain_build.driver, FAKE_DRIVER_HOST_BYTES="1000")
    done = python("-m", "tests.native.on_fake_driver", library, "chain", **few)
    assert done.returncode == 1 and "SwapOut:t0" in done.stderr
    assert f"no page-locked memory for a host slot of {96 * 96 * 4} bytes" in done.stderr


NO_EVENTS = """
import gc, sys
from pathlib import Path
from planner import native
native.library_path = lambda: Path(sys.argv[1])
from tests.native.graphs import chain, chain_feeds, session
swapped = session(chain(), library=Path(sys.argv[1]))
try:
    swapped.run(None, chain_feeds())
except Exception as error:
    print(error)
del swapped
gc.collect()
print(native.counts().slot_bytes)
"""


def test_a_slot_that_gets_no_event_keeps_no_memory(plain_build: Built, library: Path):
    few = environment(plain_build.driver, FAKE_DRIVER_EVENTS="10")
    done = python("-c", NO_EVENTS, library, **few)
    assert done.returncode == 0, done.stderr
    *said, left = done.stdout.split()
    assert "cuEventCreate" in said and left == "0", done.stdout


def test_thread_sanitizer_finds_no_race_and_sees_one_where_a_wait_is_left_out(tmp_path: Path):
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}\n")
    command = [*compiler(), "-fsanitize=thread", str(probe), "-o", str(tmp_path / "probe")]
    works = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not works or subprocess.run([tmp_path / "probe"], check=False).returncode:
        pytest.skip("the compiler has no -fsanitize=thread that works here")
    sources = compiled_sources(tmp_path / "sources.o", "-fsanitize=thread")
    sanitized = built(tmp_path, sources, "-fsanitize=thread")
    for right in (sanitized.run(12, kind) for kind in ("cuda", "threads", "cpu", "disk")):
        assert right.returncode == 0, right.stdout + right.stderr
        assert "ThreadSanitizer" not in right.stderr
    raced = sanitized.run(3, mutant=2)
    assert "WARNING: ThreadSanitizer: data race" in raced.stderr
