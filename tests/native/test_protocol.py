"""Swaps keep every bit: at every level, with settings that move buffers about, and on random programs."""

from __future__ import annotations

import gc
import json
import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

import planner
from planner.native import counts, drain
from tests.native.graphs import (
    bits,
    chain,
    chain_feeds,
    chain_nodes,
    load_nodes,
    loads,
    model_of,
    plain,
    ran,
    session,
    store_feeds,
    stores,
    swap,
)

RACE = {"planner.check_swaps": "1", "planner.link_mbps": "400", "planner.link_jitter_us": "300"}


@pytest.mark.parametrize("level", [0, 1, 2, 3, 99])
def test_bits_and_order_at_every_level(level: int, tmp_path: Path):
    reference = plain(chain(swaps=False))
    swapped = session(
        chain(), level, entries=RACE, enable_profiling=True, profile_file_prefix=str(tmp_path / "p")
    )
    before = counts()
    for seed in range(4):
        feeds = chain_feeds(seed=seed)
        assert bits(swapped, feeds) == bits(reference, feeds)
    after = counts()
    wanted = [node.name for node in chain_nodes(8, 96, 2)]
    assert ran(swapped.end_profiling()) == wanted * 4
    assert after.swaps_out - before.swaps_out == after.swaps_in - before.swaps_in == 4 * 7
    assert after.violations == before.violations
    assert after.copied_views == before.copied_views
    assert after.live_slots == 0
    del swapped
    gc.collect()
    assert counts().slots == counts().slot_bytes == 0


@pytest.mark.parametrize(
    "set_to",
    [
        {"enable_mem_pattern": True},
        {"enable_mem_pattern": False, "enable_mem_reuse": False},
        {"enable_cpu_mem_arena": False},
    ],
    ids=str,
)
def test_bits_whatever_the_memory_options_are(set_to: dict[str, bool]):
    reference = plain(chain(swaps=False))
    swapped = session(chain(), entries=RACE, **set_to)
    before = counts().violations
    for seed in range(6):
        feeds = chain_feeds(seed=seed)
        assert bits(swapped, feeds) == bits(reference, feeds)
    assert counts().violations == before


def random_nodes(seed: int, *, swaps: bool) -> list[NodeProto]:
    """Operations over random earlier tensors of several sizes, which leave and come back at random.

    The draw is the same with and without swaps.
    """
    draw = random.Random(seed)
    nodes: list[NodeProto] = [swap("SwapBegin", [], "r")] if swaps else []
    sizes = {"x0": 16, "x1": 4000, "x2": 90_000}
    here = {name: name for name in sizes}  # by the tensor: the value that has it now
    leaving, gone, coming = {}, {}, {}

    def issue(node: NodeProto, *, is_swap: bool = True) -> None:
        if swaps or not is_swap:
            nodes.append(node)

    def advance(name: str) -> None:
        """One operator of the protocol further."""
        tag = f"{name}_{len(nodes)}_{draw.random()}"
        if name in here:
            leaving[name] = (here.pop(name), f"t{tag}")
            issue(swap("SwapOut", [leaving[name][0], "r"], f"t{tag}"))
        elif name in leaving:
            x, t = leaving.pop(name)
            gone[name] = f"u{tag}"
            issue(swap("SwapOutDone", [t, x], f"u{tag}"))
        elif name in gone:
            coming[name] = f"y{tag}"
            shape = [sizes[name]]
            issue(swap("SwapIn", [gone.pop(name)], f"y{tag}", dtype=1, shape=shape))
        else:
            here[name] = f"z{tag}"
            issue(swap("SwapInDone", [coming.pop(name)], f"z{tag}"))

    for step in range(60):
        if draw.random() < 0.55:
            made = [name for name in sizes if name[0] == "v"]
            if made:
                advance(draw.choice(made))
            continue
        a = draw.choice(list(here))
        same = [name for name in here if sizes[name] == sizes[a]]
        b, name = draw.choice(same), f"v{step}"
        kind, reads = draw.choice([("Add", 2), ("Mul", 2), ("Tanh", 1), ("Neg", 1)])
        values = [(here if swaps else dict(zip(sizes, sizes, strict=True)))[n] for n in (a, b)]
        issue(helper.make_node(kind, values[:reads], [name], f"N{step}"), is_swap=False)
        sizes[name], here[name] = sizes[a], name
    made = [name for name in sizes if name[0] == "v"]
    for name in made:
        while name not in here:
            advance(name)
    ends = [here[name] if swaps else name for name in made]
    for end, name in zip(ends, made, strict=True):
        node = helper.make_node("ReduceSum", [end], [f"s{name}"], f"R{name}", keepdims=0)
        issue(node, is_swap=False)
    issue(helper.make_node("Sum", [f"s{name}" for name in made], ["y"], "Y"), is_swap=False)
    return nodes


@pytest.mark.parametrize("memory", ["arena", "pool"])
def test_random_programs_keep_every_bit(memory: str):
    inputs = {"x0": [16], "x1": [4000], "x2": [90_000]}
    entries = RACE | ({"planner.pool_bytes": str(64 << 20)} if memory == "pool" else {})
    before = counts()
    for seed in range(12):
        draw = np.random.default_rng(seed)
        feeds = {n: draw.standard_normal(s, dtype=np.float32) for n, s in inputs.items()}
        models = [model_of(random_nodes(seed, swaps=s), inputs, {"y": []}) for s in (False, True)]
        reference, swapped = plain(models[0]), session(models[1], entries=entries)
        for _ in range(2):
            assert bits(swapped, feeds) == bits(reference, feeds)
    after = counts()
    assert after.violations == before.violations and after.live_slots == 0
    assert after.swaps_in - before.swaps_in == after.swaps_out - before.swaps_out > 100


def test_feeds_are_loaded_from_the_callers_memory():
    draw = np.random.default_rng(2)
    feeds = {
        n: draw.standard_normal((48, 48), dtype=np.float32) for n in ["x", "w0", "w1", "w2", "w3"]
    }
    loaded, reference = (
        session(loads(load_nodes(4, load=True), 4, 48), entries=RACE),
        plain(loads(load_nodes(4, load=False), 4, 48)),
    )
    before = counts()
    for _ in range(3):
        feeds["w3"] = feeds["w3"] + 1  # from another array each time
        assert bits(loaded, feeds) == bits(reference, feeds)
    after = counts()
    assert after.swaps_in - before.swaps_in == 12 and after.slot_bytes == 0
    assert after.violations == before.violations


@pytest.mark.parametrize("memory", ["arena", "pool"])
def test_updates_are_stored_in_the_callers_memory_step_after_step(memory: str):
    pool = {"planner.pool_bytes": str(1 << 20)} if memory == "pool" else {}
    reference = planner.bind(plain(stores(store=False)), store_feeds())
    stored = planner.bind(session(stores(store=True), entries=RACE | pool), store_feeds())
    before = counts()
    for step in range(24):
        x = {"x": chain_feeds(64, seed=step)["x"]}
        (found,), (wanted,) = stored.step(x).values(), reference.step(x).values()
        assert found.tobytes() == wanted.tobytes()
    values = reference.values()
    assert all(array.tobytes() == values[name].tobytes() for name, array in stored.values().items())
    after = counts()
    assert after.swaps_out - before.swaps_out == after.swaps_in - before.swaps_in == 24 * 4
    assert after.violations == before.violations and after.abandoned == before.abandoned
    assert after.live_slots == after.slot_bytes == 0


def test_a_step_that_does_not_wait_for_its_stores_has_other_bits_and_is_told():
    """The control of the test above: all but the waits is the same."""
    feeds = {**store_feeds(), "x": chain_feeds(64)["x"]}
    unwaited = session(stores(store=True, ahead=-1), entries={"planner.link_mbps": "1"})
    assert bits(unwaited, feeds) != bits(plain(stores(store=False)), feeds)
    with pytest.raises(Exception, match="an earlier run of this session failed while 4 of its"):
        unwaited.run(None, feeds)
    assert drain() == 0


def test_what_comes_back_may_be_an_output_of_the_graph():
    """z then has a buffer of its own: it is copied, and counted."""
    model = chain()
    model.graph.output.append(helper.make_tensor_value_info("z2", TensorProto.FLOAT, [96, 96]))
    wanted = chain(swaps=False)
    wanted.graph.output.append(helper.make_tensor_value_info("f2", TensorProto.FLOAT, [96, 96]))
    before = counts().copied_views
    assert bits(session(model), chain_feeds()) == bits(plain(wanted), chain_feeds())
    assert counts().copied_views == before + 1


def test_threads_and_sessions_share_the_slots():
    reference = plain(chain(swaps=False))
    sessions = [session(chain(), entries=RACE) for _ in range(2)]
    before, wrong = counts().violations, []

    def work(seed: int) -> None:
        for step in range(5):
            feeds = chain_feeds(seed=10 * seed + step)
            if bits(sessions[seed % 2], feeds) != bits(reference, feeds):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and counts().violations == before and counts().live_slots == 0


def test_copies_run_beside_the_operations(tmp_path: Path):
    """Operators that begin a copy return at once; those that need it done wait, on a slow link."""
    swapped = session(
        chain(5),
        entries={"planner.link_mbps": "4"},
        enable_profiling=True,
        profile_file_prefix=str(tmp_path / "p"),
    )
    before = counts()
    swapped.run(None, chain_feeds())
    after = counts()
    events = json.loads(Path(swapped.end_profiling()).read_text())
    took: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            took[event["args"]["op_name"]] += event["dur"]
    assert took["SwapOut"] + took["SwapIn"] < (took["SwapOutDone"] + took["SwapInDone"]) / 3
    assert after.waits > before.waits and after.waited_us > before.waited_us
