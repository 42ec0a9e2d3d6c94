"""Slots in a file: the same bits, nothing left in the folder, and what goes wrong there by name."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from planner.native import counts, pool
from tests.native.graphs import (
    bits,
    chain,
    chain_feeds,
    child,
    failing_chain,
    model_of,
    plain,
    session,
    sized,
    swap,
)

ROWS = 96
SLOT_BYTES = ROWS * ROWS * 4
RACE = {"planner.check_swaps": "1", "planner.link_mbps": "100", "planner.link_jitter_us": "300"}


def on_disk(folder: Path, size: int = 0, **entries: str) -> dict[str, str]:
    """Entries of a session whose slots lie in `folder`, in a file of `size` bytes at first."""
    there = {"planner.disk_folder": str(folder), "planner.disk_bytes": str(size)}
    return there | {f"planner.{key}": value for key, value in entries.items()}


@pytest.mark.parametrize("memory", ["arena", "pool"])
def test_bits_of_steps_and_nothing_has_a_name_in_the_folder(memory: str, tmp_path: Path):
    rows = 97  # no whole pages
    reference = plain(chain(rows=rows, swaps=False))
    pooled = {"pool_bytes": str(4 << 20)} if memory == "pool" else {}
    before = counts()
    swapped = session(chain(rows=rows), entries=on_disk(tmp_path, 20 * 4096, **pooled) | RACE)
    assert counts().file_bytes - before.file_bytes == 20 * 4096
    for seed in range(4):
        feeds = chain_feeds(rows, seed)
        assert bits(swapped, feeds) == bits(reference, feeds)
        assert not list(tmp_path.iterdir())
    after = counts()
    assert after.swaps_in - before.swaps_in == 4 * 7
    assert after.violations == before.violations
    assert after.slot_bytes == before.slot_bytes
    if memory == "pool":
        assert (found := pool()) is not None and found.spilled_most_bytes == 0
    del swapped
    gc.collect()
    assert counts().file_bytes == counts().slots == 0


@pytest.mark.parametrize("other", ["arena", "shared page"])
def test_a_tensor_of_the_pool_goes_straight_to_the_file(other: str, tmp_path: Path):
    """And one of ONNX Runtime's arena, or that shares a page, by way of memory, in threads that stay."""
    script = """
import sys
from pathlib import Path
from planner.native import counts
from tests.native.graphs import bits, chain, chain_feeds, plain, session
from tests.native.test_disk import on_disk
wanted = bits(plain(chain(swaps=False)), chain_feeds())
pool = {"pool_bytes": str(4 << 20)}
for entries in (pool, {} if sys.argv[2] == "arena" else pool | {"page_bytes": str(64 << 10)}):
    assert bits(session(chain(), entries=on_disk(Path(sys.argv[1]), **entries)), chain_feeds()) == wanted
    print(counts().staging_bytes)
"""
    assert child(script, tmp_path, other).split() == ["0", str(2 << 20)]


def test_what_shares_a_page_with_a_tensor_that_is_read_stays(tmp_path: Path):
    count = ROWS * ROWS + 193  # of bytes that are no whole pages
    nodes = [
        swap("SwapBegin", [], "r"),
        helper.make_node("Neg", ["x"], ["f"], "F"),
        swap("SwapOut", ["f", "r"], "t"),
        swap("SwapOutDone", ["t", "f"], "u"),
        swap("SwapIn", ["u"], "y", dtype=1, shape=[count]),
        helper.make_node("Neg", ["w"], ["s"], "S"),  # behind y, while y is read
        swap("SwapInDone", ["y"], "z"),
        helper.make_node("Neg", ["z"], ["a"], "A"),
        helper.make_node("Neg", ["s"], ["b"], "B"),
    ]
    model = model_of(nodes, {"x": [count], "w": [4000]}, {"a": [count], "b": [4000]})
    shared = {"pool_bytes": str(4 << 20), "page_bytes": str(64 << 10), "link_mbps": "1"}
    swapped = session(model, entries=on_disk(tmp_path, **shared), enable_mem_reuse=False)
    feeds = {
        name: np.random.default_rng(n).random(n, np.float32)
        for name, n in (("x", count), ("w", 4000))
    }
    assert bits(swapped, feeds) == [feeds["x"].tobytes(), feeds["w"].tobytes()]


def test_what_a_closed_session_had_is_free_while_another_lives(tmp_path: Path):
    made = [{}, on_disk(tmp_path, 7 * SLOT_BYTES)]
    stay = [session(chain(), entries=entries) for entries in made]
    before = counts().file_bytes
    for _ in range(3):
        others = [session(chain(), entries=entries) for entries in made]
        assert all(bits(other, chain_feeds()) for other in others)
        assert counts().file_bytes == before + 7 * SLOT_BYTES
        del others
        gc.collect()
        assert counts().slots == counts().slot_bytes == 0
    del stay


def test_slots_are_reused_and_take_whole_pages(tmp_path: Path):
    swapped = session(chain(rows=97), entries=on_disk(tmp_path))
    for _ in range(3):
        bits(swapped, chain_feeds(97))
    assert counts().file_bytes == counts().slots * 10 * 4096  # 97 * 97 * 4 bytes, in pages


def test_sessions_in_one_folder_and_threads_on_one_session_keep_apart(tmp_path: Path):
    reference = plain(chain(swaps=False))
    sessions = [session(chain(), entries=on_disk(tmp_path, SLOT_BYTES) | RACE) for _ in range(2)]
    before, wrong = counts(), []

    def work(seed: int) -> None:
        feeds = chain_feeds(seed=seed)
        wanted = bits(reference, feeds)
        for _ in range(4):
            if bits(sessions[seed % 2], feeds) != wanted:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counts().violations == before.violations and counts().live_slots == 0


def test_after_a_failed_run_and_after_closing_while_copies_run(tmp_path: Path):
    reference = plain(chain(swaps=False))
    entries = on_disk(tmp_path, link_mbps="20", check_swaps="1")
    swapped, before = session(failing_chain(), entries=entries), counts()
    feeds = chain_feeds()
    with pytest.raises(Exception, match="MAYFAIL"):
        swapped.run(None, sized(feeds, good=False))
    with pytest.raises(Exception, match=r"SwapBegin.*earlier run of this session failed"):
        swapped.run(None, sized(feeds))
    assert bits(swapped, sized(feeds)) == bits(reference, feeds)
    with pytest.raises(Exception, match="MAYFAIL"):
        swapped.run(None, sized(feeds, good=False))
    del swapped
    gc.collect()
    after = counts()
    assert after.violations == before.violations
    assert after.live_slots == after.slots == after.file_bytes == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(Exception, match=f"no swap file can be made in {tmp_path}: Permission"):
        session(chain(), entries=on_disk(tmp_path))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    missing = tmp_path / "missing"
    with pytest.raises(Exception, match=f"no swap file can be made in {missing}: No such file"):
        session(chain(), entries=on_disk(missing))
    assert counts().file_bytes == 0


def test_no_room_for_the_file_is_said_when_the_session_is_made(tmp_path: Path):
    size = 1 << 60
    with pytest.raises(Exception, match=f"no room for {size} bytes more of swaps in {tmp_path}"):
        session(chain(), entries=on_disk(tmp_path, size))
    assert counts().file_bytes == 0
    assert bits(session(chain(), entries=on_disk(tmp_path)), chain_feeds()) == bits(
        plain(chain(swaps=False)), chain_feeds()
    )


FULL = """
import resource, sys
from pathlib import Path
from planner.native import counts
from tests.native.graphs import bits, chain, chain_feeds, plain, session
from tests.native.test_disk import SLOT_BYTES, on_disk
wanted = bits(plain(chain(swaps=False)), chain_feeds())
swapped = session(chain(), entries=on_disk(Path(sys.argv[1]), 2 * SLOT_BYTES))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 * SLOT_BYTES, hard))  # as a disk that is full there
try:
    swapped.run(None, chain_feeds())
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert counts().live_slots > 0
try:
    swapped.run(None, chain_feeds())
except Exception as error:
    print(error)
assert bits(swapped, chain_feeds()) == wanted
assert counts().live_slots == 0
"""


def test_a_disk_that_is_full_within_a_step_ends_the_run_by_name(tmp_path: Path):
    full, refused = child(FULL, tmp_path).strip().splitlines()
    assert "SwapOut:t3" in full and f"no room for {SLOT_BYTES} bytes more of swaps" in full
    assert str(tmp_path) in full and "File too large" in full
    assert "an earlier run of this session failed" in refused


BROKEN = """
import os, sys, threading, time
from pathlib import Path
from planner.native import counts, drain
from tests.native.graphs import bits, chain, chain_feeds, plain, session
from tests.native.test_disk import SLOT_BYTES, on_disk
wanted = bits(plain(chain(swaps=False)), chain_feeds())
swapped = session(chain(), entries=on_disk(Path(sys.argv[1]), 7 * SLOT_BYTES, link_mbps="20"))
names = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{fd}")}
file = next(fd for fd, name in names.items() if "planner-swap" in name)
whole = os.dup(file)
done = threading.Event()

def run():
    try:
        swapped.run(None, chain_feeds())
    except Exception as error:
        print(error)
    done.set()

if sys.argv[2] == "read":
    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        os.ftruncate(file, 0)  # what was written is gone
        time.sleep(0.001)
else:
    os.dup2(os.open(os.devnull, os.O_RDONLY), file)
    run()
    os.dup2(whole, file)
drain()
assert bits(swapped, chain_feeds()) == wanted
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the file is found by /proc")
@pytest.mark.parametrize(
    ("way", "node", "why"),
    [("read", "SwapInDone", "it ends there"), ("written", "SwapOutDone", "")],
)
def test_an_error_of_the_disk_is_the_waiting_operators(
    way: str, node: str, why: str, tmp_path: Path
):
    said = child(BROKEN, tmp_path, way)
    assert f"'{node}:" in said.replace('"', "'")
    assert f"the swap file in {tmp_path} could not be {way} at byte " in said and why in said


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path):
    script = """
import sys
from pathlib import Path
from tests.native.graphs import chain, chain_feeds, session
from tests.native.test_disk import on_disk
swapped = session(chain(), entries=on_disk(Path(sys.argv[1]), link_mbps="1"))
print("running", flush=True)
swapped.run(None, chain_feeds())
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGKILL)
    assert not list(tmp_path.iterdir())
