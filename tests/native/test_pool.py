"""The paged pool: exactly its bytes, named refusals, memory that is reused, a size for each session."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto, helper
from onnxruntime.capi import _pybind_state

from planner.native import MemoryPool, pool, restart_pool_peaks
from tests.native.graphs import (
    Feeds,
    bits,
    chain,
    chain_feeds,
    model_of,
    options,
    plain,
    session,
    swap,
)

PAGE = 4096
MOST_ELEMENTS = 400_000


def ragged(tensors: int = 40, seed: int = 3) -> onnx.ModelProto:
    """Tensors of random sizes, each alive for a random while: they break up an arena."""
    draw = random.Random(seed)
    last: dict[int, list[int]] = {}
    nodes: list[NodeProto] = []

    def read(which: int) -> None:
        nodes.append(helper.make_node("ReduceSum", [f"t{which}"], [f"r{which}"], keepdims=0))

    for i in range(tensors):
        size = draw.randint(1, MOST_ELEMENTS) if i % 4 else draw.randint(1, 800)
        cut = onnx.numpy_helper.from_array(np.array([size], np.int64))
        nodes.append(helper.make_node("Constant", [], [f"k{i}"], value=cut))
        nodes.append(helper.make_node("Slice", ["x", "zero", f"k{i}"], [f"s{i}"], f"S{i}"))
        nodes.append(helper.make_node("Add", [f"s{i}", f"s{i}"], [f"t{i}"], f"A{i}"))
        last.setdefault(i + draw.randint(1, 12), []).append(i)
        for which in last.pop(i, []):
            read(which)
    for which in (w for left in last.values() for w in left):
        read(which)
    nodes.append(helper.make_node("Sum", [f"r{i}" for i in range(tensors)], ["y"], "SUM"))
    zero = onnx.numpy_helper.from_array(np.array([0], np.int64))
    nodes.insert(0, helper.make_node("Constant", [], ["zero"], value=zero))
    for i, node in enumerate(nodes):
        node.name = node.name or f"n{i}"
    return model_of(nodes, {"x": [MOST_ELEMENTS]}, {"y": []})


FEEDS: Feeds = {"x": np.random.default_rng(1).standard_normal(MOST_ELEMENTS, dtype=np.float32)}


def pooled(model: onnx.ModelProto, pool_bytes: int, page_bytes: int = PAGE) -> ort.InferenceSession:
    entries = {"planner.pool_bytes": str(pool_bytes), "planner.page_bytes": str(page_bytes)}
    return session(model, entries=entries, enable_mem_reuse=False)


def facts() -> MemoryPool:
    found = pool()
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No session of an earlier test holds memory of the pool."""
    gc.collect()
    yield
    gc.collect()
    left = pool()
    assert left is None or left.asked_bytes == left.pages == 0


def test_it_runs_in_the_pages_of_what_is_asked_and_in_no_page_less():
    model = ragged()
    wanted = bits(plain(model), FEEDS)
    ample = pooled(model, 64 << 20)
    restart_pool_peaks()
    assert bits(ample, FEEDS) == wanted
    asked, pages = facts().asked_most_bytes, facts().pages_most
    assert asked < pages * PAGE < 1.01 * asked
    del ample

    exact = pooled(model, pages * PAGE)
    for _ in range(4):
        restart_pool_peaks()
        assert bits(exact, FEEDS) == wanted
    assert facts().asked_most_bytes == asked and facts().pages_most == pages
    assert facts().refusals == 0
    assert facts().mappings == 0  # the last step found each range mapped
    del exact

    short = pooled(model, (pages - 1) * PAGE)
    with pytest.raises(
        Exception, match=r"running \w+ node. Name:'[AS]\d+'.*planner\.pool"
    ) as failed:
        short.run(None, FEEDS)
    said = str(failed.value)
    assert f"the pool has {(pages - 1) * PAGE}" in said and "are in use" in said
    assert facts().refusals == 1


def test_buffers_below_a_page_share_pages():
    model = ragged()
    large = pooled(model, 64 << 20, 2 << 20)  # pages of a GPU: every tensor here is below one
    restart_pool_peaks()
    assert bits(large, FEEDS) == bits(plain(model), FEEDS)
    assert facts().pages_most * (2 << 20) < 2 * facts().asked_most_bytes + (2 << 20)
    del large


def test_sessions_have_pools_of_their_own_sizes():
    model = ragged()
    wanted = bits(plain(model), FEEDS)
    first = pooled(model, 32 << 20)
    second = pooled(model, 48 << 20)
    asked = facts().asked_bytes  # its constants
    assert facts().pool_bytes == 48 << 20 and asked > 0
    restart_pool_peaks()
    assert bits(first, FEEDS) == wanted
    assert facts().pages_most == facts().pages  # the first ran in its own
    assert bits(second, FEEDS) == wanted
    assert facts().pages_most > facts().pages
    assert bits(first, FEEDS) == wanted
    twin = pooled(model, 48 << 20)  # the constants of the second are not in its pool
    assert facts().asked_bytes == asked
    assert bits(twin, FEEDS) == bits(second, FEEDS) == wanted
    del first, second, twin
    gc.collect()
    assert facts().asked_bytes == 0


@pytest.mark.parametrize("order", ["options first", "one after another"])
def test_sessions_of_one_size_that_are_there_at_once_have_a_pool_each(order: str):
    """With no constant in it, a pool is empty between the steps of a session."""
    model, entries = chain(swaps=False), {"planner.pool_bytes": str(1 << 20)}
    given = [options(entries=entries) for _ in range(2 if order == "options first" else 0)]
    first, second = (
        ort.InferenceSession(
            model.SerializeToString(), given[i] if given else options(entries=entries)
        )
        for i in range(2)
    )
    kept = first.run(None, chain_feeds())
    assert facts().asked_bytes == 0  # the second's
    assert second.run(None, chain_feeds())[0].tobytes() == kept[0].tobytes()
    assert first.run(None, chain_feeds())[0].tobytes() == kept[0].tobytes()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files are found by /proc")
def test_pools_of_sessions_that_are_gone_give_their_memory_back():
    def files() -> int:
        names = (f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd"))
        return sum("planner.pool" in os.readlink(name) for name in names if os.path.exists(name))

    model = ragged()
    wanted = bits(plain(model), FEEDS)
    stays = pooled(model, 32 << 20)
    before = files()
    for size in (32 << 20, 48 << 20, 32 << 20):
        assert bits(pooled(model, size), FEEDS) == wanted
        gc.collect()
    assert files() == before + 1  # the last one's
    assert bits(stays, FEEDS) == wanted
    with pytest.raises(Exception, match="no addresses for a pool"):
        pooled(model, 1 << 50)
    assert files() <= before + 1


def test_a_session_whose_memory_is_not_of_its_pool_is_refused_by_name():
    model, entries = chain(), {"planner.pool_bytes": str(1 << 20)}
    without = options(entries=entries)
    without.add_session_config_entry("session.use_env_allocators", "0")
    at_once = _pybind_state.InferenceSession(
        options(entries=entries), model.SerializeToString(), False, False
    )
    other = session(model, entries={"planner.pool_bytes": str(2 << 20)})
    at_once.initialize_session([], [], set())
    for refused in (
        ort.InferenceSession(model.SerializeToString(), without),
        at_once,
    ):
        with pytest.raises(Exception, match=r"SwapBegin.*its memory is not of that pool"):
            refused.run(["b0"], chain_feeds(), None)
    assert bits(other, chain_feeds()) == bits(plain(chain(swaps=False)), chain_feeds())


def test_a_run_whose_first_byte_has_no_room_in_the_pool_may_spill_it():
    nodes = [
        swap("SwapBegin", [], "r"),
        helper.make_node("Neg", ["x"], ["f"], "F"),
        swap("SwapOut", ["f", "r"], "t"),
        swap("SwapOutDone", ["t", "f"], "u"),
        swap("SwapIn", ["u"], "y", dtype=1, shape=[1024]),
        swap("SwapInDone", ["y"], "z"),
        helper.make_node("Exp", ["z"], ["o"], "O"),
    ]
    model = model_of(nodes, {"x": [1024]}, {"o": [1024]})  # of one page each
    entries = {"planner.pool_bytes": str(PAGE), "planner.spill_bytes": str(1 << 20)}
    spilling = session(model, entries=entries, enable_mem_reuse=False)
    feeds = {"x": np.ones(1024, np.float32)}
    kept = spilling.run(None, feeds)[0]
    assert facts().pages == 1 and facts().spilled_bytes == 0  # it lies in the pool, and fills it
    assert bits(spilling, feeds) == [kept.tobytes()]
    del kept


def test_options_and_sessions_may_be_made_in_any_order():
    model, sizes = ragged(), (32 << 20, 48 << 20)
    made = [options(entries={"planner.pool_bytes": str(size)}) for size in sizes]
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo(
            "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
        ),
        ort.OrtArenaCfg({"arena_extend_strategy": 1}),
    )
    for given, size in zip(made, sizes, strict=True):
        one = ort.InferenceSession(model.SerializeToString(), given)
        assert facts().pool_bytes == size and facts().asked_bytes > 0
        del one


def test_a_pool_that_spills_runs_where_another_refuses():
    model = ragged()
    entries = {"planner.pool_bytes": str(64 * PAGE), "planner.spill_bytes": str(64 << 20)}
    spilling = session(model, entries=entries)
    assert bits(spilling, FEEDS) == bits(plain(model), FEEDS)
    found = facts()
    assert found.pages_most <= 64 and found.spilled_most_bytes > 0 and found.spilled_bytes == 0
    assert found.asked_most_bytes + found.spilled_most_bytes > 64 * PAGE
    del spilling


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"planner.pool_bytes": "1000"}, "less than a page"),
        ({"planner.pool_bytes": "8MB"}, "must be a whole number"),
        ({"planner.pool_bytes": "1048576", "planner.page_bytes": "1000"}, "multiple of 4096"),
        ({"planner.check_swaps": "-1"}, "not negative"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_by_name(entries: dict[str, str], said: str):
    with pytest.raises(Exception, match=rf"{next(iter(reversed(entries)))} .*{said}"):
        session(ragged(2), entries=entries)


RESIDENT = """
import sys
from tests.native import test_pool as t
def status(field):
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines[field].split()[0]) * 1024
made = t.pooled(t.ragged(60, seed=5), int(sys.argv[1]))
before = status("VmRSS")
for _ in range(6):
    made.run(None, t.FEEDS)
print(status("VmHWM") - before, t.facts().pages_most * t.PAGE, t.facts().mappings)
"""


def test_the_process_grows_by_the_pool_and_not_by_its_addresses():
    """Pages are mapped at several addresses, and count once."""

    def grown(pool_bytes: int) -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", RESIDENT, str(pool_bytes)],
            cwd=Path(__file__).parents[2],
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return list(map(int, done.stdout.split()))

    _, taken, _ = grown(64 << 20)
    grew, pages, mappings = grown(taken)
    assert pages == taken and mappings > 0
    assert 0.9 * taken < grew < 1.05 * taken
