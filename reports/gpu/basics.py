"""What everything else rests on, asked of small graphs: each check says whether it holds, and figures."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import planner
from planner import native
from planner.processes.children import run_child
from planner.runtime.options import Opening, buffer_model, cap_arena
from planner.targets import target_named
from reports.gpu.graphs import AHEAD, LAYERS, Where, node_events
from tests.native import graphs

Found = dict[str, Any]
_LARGE_POOL = 4 << 30
_OVER = (0, 2, 5, 10, 20, 40)
"""Sizes of an arena above the pool's, in percent, tried until the chain runs."""


def load(where: Where) -> Found:
    """Check that the library's nodes run on the device in planned order, without added copies."""
    wanted = [node.name for node in graphs.chain_nodes(LAYERS, where.side, AHEAD)]
    found: Found = {"in_order": {}, "elsewhere": [], "copies_added": 0}
    before = native.counts().copied_views
    with tempfile.TemporaryDirectory() as folder:
        profiled = {"enable_profiling": True, "profile_file_prefix": str(Path(folder) / "p")}
        for level in (0, 1, 2, 99):
            session = where.session(where.chain(), level, **profiled)
            where.bits(session, where.feeds())
            ran = node_events(session)
            names = [name for name, _ in ran if not name.startswith("anchor")]
            found["in_order"][level] = names == wanted
            found["copies_added"] += sum("Memcpy" in facts["op_name"] for _, facts in ran)
            away = {name for name, facts in ran if facts["provider"] != where.provider}
            found["elsewhere"] += sorted(name for name in away if name.startswith("Swap"))
    found["copied_views"] = native.counts().copied_views - before
    odd = found["elsewhere"] or found["copies_added"] or found["copied_views"]
    return {**found, "holds": all(found["in_order"].values()) and not odd}


def bits(where: Where) -> Found:
    """Check that every step has the same bits as without copies, with tensors of 4 MiB."""
    found = _different(replace(where, large_side=1024), "beside", where.many(10_000, 10))
    all_ran = found["swaps"] == found["steps"] * (LAYERS - 1)
    return {**found, "holds": all_ran and not found["different"]}


def control(where: Where) -> Found:
    """Check that steps have other bits if a reader does not wait for the copy that it needs."""
    found = _different(where, "unwaited", where.many(75, 10))
    return {**found, "holds": found["different"] > 0}


def _different(where: Where, copies: str, steps: int) -> Found:
    entries = None if where.cuda else {"planner.link_mbps": "400"}
    plain = where.session(where.chain("none"))
    swapped = where.session(where.chain(copies), entries=entries)
    different, before = 0, native.counts().swaps_in
    feeds = [where.feeds(seed) for seed in range(10)]
    wanted = [where.bits(plain, each) for each in feeds]
    for step in range(steps):
        different += where.bits(swapped, feeds[step % 10]) != wanted[step % 10]
    swaps = native.counts().swaps_in - before
    return {"steps": steps, "different": different, "swaps": swaps}


def overlap(where: Where) -> Found:
    """Time steps without copies, with copies between the operations, and beside them."""
    rows: list[Found] = []
    for products in (1, 2, 4, 8):
        models = {way: where.chain(way, products) for way in ("none", "between", "beside")}
        steps = {way: bound(where, where.session(m), where.feeds()) for way, m in models.items()}
        rows.append({"products": products, "ms": least_ms(steps, where.many(20, 2))})
    hides = all(row["ms"]["beside"] <= row["ms"]["between"] for row in rows)
    moved_bytes = (LAYERS - 1) * where.side**2 * 4
    return {"rows": rows, "bytes_each_way": moved_bytes, "holds": hides or not where.cuda}


def bound(
    where: Where, session: ort.InferenceSession, feeds: Mapping[str, np.ndarray]
) -> Callable[[], Any]:
    """Return a step whose inputs and outputs are on the device."""
    binding = session.io_binding()
    for name, array in feeds.items():
        value = ort.OrtValue.ortvalue_from_numpy(array, where.device, 0)
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, where.device, 0)
    return lambda: session.run_with_iobinding(binding)


def least_ms(steps: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the least time of each step, run in turns, without the first two rounds."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(min(taken[2:]), 3) for name, taken in times.items()}


def failed(where: Where) -> Found:
    """Check that after a failed run the next is refused by name, or drained, and bits are right then."""
    side, rounds = where.side, where.many(30, 4)
    plain = where.session(where.chain("none"))
    swapped = where.session(graphs.failing_chain(LAYERS, side, AHEAD))
    counted = {"failed": 0, "refused": 0, "wrong": 0}
    for step in range(rounds):
        feeds = where.feeds(step)
        good, bad = (graphs.sized(feeds, side, good=is_good) for is_good in (True, False))
        counted["failed"] += "MAYFAIL" in _error(where, swapped, bad)
        if step % 2:
            native.drain()
        else:
            said = _error(where, swapped, good)
            counted["refused"] += "earlier run of this session failed" in said
        counted["wrong"] += where.bits(swapped, good) != where.bits(plain, feeds)
    wanted = {"failed": rounds, "refused": rounds // 2, "wrong": 0}
    return {**counted, "rounds": rounds, "holds": counted == wanted}


def _error(where: Where, session: ort.InferenceSession, feeds: Any) -> str:
    try:
        where.bits(session, feeds)
    except Exception as error:
        return str(error)
    return ""


def threads(where: Where) -> Found:
    """Check the bits of every run of four threads on two sessions at once."""
    plain, sessions = where.session(where.chain("none")), []
    sessions += [where.session(where.chain()) for _ in range(2)]
    wanted = {seed: where.bits(plain, where.feeds(seed)) for seed in range(4)}
    runs, wrong = where.many(25, 3), list[str]()

    def work(seed: int) -> None:
        feeds = where.feeds(seed)
        try:
            for _ in range(runs):
                if where.bits(sessions[seed % 2], feeds) != wanted[seed]:
                    wrong.append("other bits")
        except Exception as error:
            wrong.append(str(error)[:300])

    with ThreadPoolExecutor(len(wanted)) as pool:
        list(pool.map(work, wanted))
    return {"runs": 4 * runs, "wrong": len(wrong), "said": wrong[:3], "holds": not wrong}


def pool(where: Where) -> Found:
    """Run the chain in the least pool, in one page less, and in ONNX Runtime's least arena."""
    whole = _in_memory(where, "pool", _LARGE_POOL)
    if not whole.get("ran"):
        return {"whole": whole, "holds": False}
    page = whole["page_bytes"]
    need = whole["pages_most"] * page
    least, less = (_in_memory(where, "pool", need - off) for off in (0, page))
    found = {"pool_bytes": need, "whole": whole, "least": least, "less": less}
    for percent in _OVER if where.cuda else ():
        arena = _in_memory(where, "arena", need * (100 + percent) // 100)
        if arena["ran"]:
            found |= {"arena_percent": percent, "arena": arena}
            break
    holds = least["ran"] and not less["ran"] and least["digest"] == whole["digest"]
    return {**found, "holds": holds}


def _in_memory(where: Where, kind: str, size_bytes: int) -> Found:
    """Run the chain in the given memory, in a separate process: a process has one pool."""
    from reports.gpu.child import answer_in

    asked = [sys.executable, "-m", "reports.gpu.child", f"memory:{kind}:{size_bytes}"]
    asked += [] if where.cuda else ["--rehearse"]
    done = run_child(asked, timeout_s=100)
    return answer_in(done.stdout) or {"ran": False, "said": done.stderr[-300:]}


def memory(where: Where, kind: str, size_bytes: int) -> Found:
    """Run a few steps in a pool or arena of the given bytes."""
    entries, provider = {}, dict[str, str]()
    if kind == "arena":
        provider["gpu_mem_limit"] = str(size_bytes)
    elif where.cuda:
        provider = native.device_pool_options(size_bytes)
    else:
        entries["planner.pool_bytes"] = str(size_bytes)
    found: Found = {"ran": False}
    try:
        session = where.session(where.chain(), provider=provider, entries=entries)
        step = bound(where, session, where.feeds())
        found["ms"] = least_ms({"step": step}, where.many(10, 2))["step"]
        result = b"".join(where.bits(session, where.feeds()))
        found |= {"ran": True, "digest": hashlib.sha256(result).hexdigest()}
    except Exception as error:
        found["said"] = str(error)[:300]
    there = native.pool(device=where.cuda) if kind == "pool" else None
    return found | (asdict(there) if there is not None else {})


def region(where: Where) -> Found:
    """Open an arena of one region, above 2 GiB on a GPU; ask for nearly all of it, and for more."""
    size = (3 << 30) if where.cuda else (64 << 20)
    options = Opening(memory="recommended").options()
    cap_arena(options, size, target=target_named(where.device))
    session = ort.InferenceSession(buffer_model(), options, providers=[where.provider])

    def runs(size_bytes: int) -> bool:
        try:
            session.run(None, {"size": np.array([size_bytes // 8])})
        except Exception:
            return False
        return True

    ran = [runs(asked) for asked in (size // 3, size - 4096, size // 3, size + 4096)]
    return {"region_bytes": size, "ran": ran, "holds": ran == [True, True, True, False]}


def feeds(where: Where) -> Found:
    """Compare weights on the host through planner.bind and LoadIn with ONNX Runtime's own copies."""
    random, shape = np.random.default_rng(4), (where.side, where.side)
    weights = {f"w{i}": random.standard_normal(shape, dtype=np.float32) for i in range(LAYERS)}
    weights = {name: array / np.float32(where.side**0.5) for name, array in weights.items()}
    x = {"x": random.standard_normal(shape, dtype=np.float32)}
    nodes = [graphs.load_nodes(LAYERS, load=load) for load in (False, True)]
    models = [graphs.loads(graphs.with_products(each, 4), LAYERS, where.side) for each in nodes]
    with tempfile.TemporaryDirectory() as folder:
        profiled = {"enable_profiling": True, "profile_file_prefix": str(Path(folder) / "p")}
        plain, loaded = where.session(models[0]), where.session(models[1], **profiled)
        device, beside = planner.bind(plain, weights), planner.bind(loaded, weights)
        every = {**x, **weights}
        steps = {
            "on the device": lambda: device.step(x),
            "arrays of NumPy": lambda: plain.run(None, every),
            "LoadIn": lambda: beside.step(x),
        }
        ms = least_ms(steps, where.many(15, 2))
        (name,) = (output.name for output in plain.get_outputs())
        results = [device.step(x)[name], beside.step(x)[name], plain.run(None, every)[0]]
        added = sum("Memcpy" in facts["op_name"] for _, facts in node_events(loaded))
    places = [device.places["w0"], beside.places["w0"]]
    same = len({np.asarray(result).tobytes() for result in results}) == 1
    right = places == (["device", "page-locked"] if where.cuda else ["host", "host"])
    found = {"ms": ms, "places": places, "same_bits": same, "copies_added": added}
    return {**found, "bytes": LAYERS * where.side**2 * 4, "holds": same and right and not added}


CHECKS: dict[str, Callable[[Where], Found]] = {
    check.__name__: check
    for check in (load, bits, control, overlap, failed, threads, pool, region, feeds)
}
"""The checks, in the order in which they run."""
