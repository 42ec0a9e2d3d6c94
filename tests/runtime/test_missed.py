"""What the model of the cache says: what fits is never missed, what is too large always is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.graph.schedule import default_order
from planner.runtime.machine import BUSY, last_cache_bytes, waited_s, waited_share
from planner.runtime.memory.missed import missed_bytes
from planner.runtime.op_times import cache_of
from planner.runtime.options import Opening
from tests.runtime.support import model_of, op, random_model, save, tensor

MIB = 1 << 20
_QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@_QUICK
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(2, 30),
    sizes=st.tuples(*[st.integers(1, 300)] * 2),
)
def test_a_larger_cache_never_misses_more(seed: int, nodes: int, sizes: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, graph = save(random_model(seed, nodes), Path(folder) / "m.onnx")
    order = default_order(graph)
    small, large = (missed_bytes(graph, order, cache_bytes=s * (MIB // 16)) for s in sorted(sizes))
    everything = sum(t.bytes + MIB for t in graph.tensors)
    assert not any(missed_bytes(graph, order, cache_bytes=everything))
    for operation in graph.operations:
        touched = {*operation.inputs, *operation.outputs}
        most = 0 if operation.is_view else sum(graph.tensors[t].bytes for t in touched)
        assert 0 <= large[operation.id] <= small[operation.id] <= most


def test_what_was_used_longest_ago_is_dropped(tmp_path: Path) -> None:
    x = tensor("x", MIB // 4)
    y = op("y", "Neg", x, shape=(MIB // 4,))
    z = op("z", "Neg", y.outputs[0], shape=(MIB // 4,))
    _, graph = save(model_of([x], [z.outputs[0]], [y, z]), tmp_path / "m.onnx")
    order = default_order(graph)
    # a step uses x and y, then y and z: of three, two are held, and x is the one that is not
    assert missed_bytes(graph, order, cache_bytes=3 * MIB) == (0, 0)
    assert missed_bytes(graph, order, cache_bytes=2 * MIB) == (2 * MIB, MIB)
    assert missed_bytes(graph, order, cache_bytes=MIB // 2) == (2 * MIB, 2 * MIB)


def test_the_cache_of_this_machine_is_measured() -> None:
    found = cache_of(Opening(level="disabled", threads=1))
    if found is None:
        pytest.skip("no cache is known here, or memory is short")
    assert found.bytes == last_cache_bytes() > 0
    assert 1e8 < found.missed_bytes_per_s < 1e13
    assert found.added_us(-MIB) == -found.added_us(MIB) < 0


_SHARED = """
import os, subprocess, sys, time
from planner.runtime.machine import waited_s, waited_share
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    time.sleep(0.3)
    before, began = waited_s(), time.perf_counter()
    while time.perf_counter() < began + 1: pass
    print(waited_share(before, time.perf_counter() - began, 1))
finally:
    other.kill()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins processes to a core")
def test_a_core_that_is_shared_is_noticed() -> None:
    if waited_s() is None:
        pytest.skip("the system does not count how long threads wait")
    done = subprocess.run(
        [sys.executable, "-c", _SHARED], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > BUSY
    assert waited_share(None, 1.0, 1) == 0
