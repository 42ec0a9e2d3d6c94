"""The search in the native library: what Python hands over is what C++ reads, and failures are errors."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from planner.fit.demands import READ, RETURN, SCRATCH, TAKE, Demands
from planner.fit.search import ReplayLimits, climb, room
from planner.native.building import SOURCES
from planner.native.calls import function, words
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import OpIndex, PlanOp, PlanTensor, Problem, TensorIndex
from planner.search.evaluate import Evaluator
from planner.search.fast import arrays
from planner.search.fast.arrays import arrays_of, plan_of, steps_for
from planner.search.fast.core import OVERFLOW, Heat

ROOT = Path(__file__).parents[2]
TYPES = {"int32_t": "int32", "int64_t": "int64", "uint8_t": "uint8", "double": "float64"}


def chain(ops: int, *, capacity_bytes: int) -> Problem:
    """A chain whose tensors are all read again at its end, the last one first."""
    reads: list[tuple[TensorIndex, ...]] = [()]
    reads += [(TensorIndex(i - 1),) for i in range(1, ops)]
    reads += [(TensorIndex(i),) for i in reversed(range(ops))]
    uses = [[OpIndex(op) for op, t in enumerate(reads) if (i,) == t] for i in range(ops)]
    return Problem(
        name="chain",
        ops=tuple(
            PlanOp(
                name=f"op{op}",
                duration_us=1.0 + op % 3,
                inputs=inputs,
                outputs=(TensorIndex(op),) if op < ops else (),
            )
            for op, inputs in enumerate(reads)
        ),
        tensors=tuple(
            PlanTensor(name=f"t{i}", bytes=8, producer=OpIndex(i), uses=tuple(uses[i]))
            for i in range(ops)
        ),
        fixed_bytes=0,
        capacity_bytes=capacity_bytes,
        swap_out_bytes_per_s=1e6,
        swap_in_bytes_per_s=1e6,
    )


def declared(header: str, struct: str) -> list[tuple[str, str]]:
    """(name, type) of the fields of a C++ struct, in their order."""
    text = re.sub(r"//.*", "", (SOURCES / "search" / header).read_text())
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", text, re.DOTALL)
    assert body is not None
    fields: list[tuple[str, str]] = []
    pattern = r"^\s*(?:Array<(?:const )?(\w+)>|(int64_t)) ([\w, ]+);"
    for kind, number, names in re.findall(pattern, body[1], re.MULTILINE):
        fields += [(name.strip(), TYPES[kind] if kind else number) for name in names.split(",")]
    return fields


def handed_over(fields: tuple[object, ...], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """The same, of what Python makes a struct of."""
    kinds = [str(f.dtype) if isinstance(f, np.ndarray) else "int64_t" for f in fields]
    return list(zip(names, kinds, strict=True))


def demands_of(*units: tuple[tuple[int, int], ...]) -> Demands:
    """Units of these events, with buffers of 256 bytes, whose order is free."""
    flat = [event for unit in units for event in unit]
    buffers = 1 + max(whom for _, whom in flat)
    read = [whom for what, whom in flat if what == READ]
    empty, free = np.zeros(0, dtype=np.int64), np.zeros(len(units) + 1, dtype=np.int64)
    return Demands(
        event_at=np.cumsum([0, *map(len, units)]),
        event=np.array([what for what, _ in flat]),
        subject=np.array([whom for _, whom in flat]),
        size=np.full(buffers, 256),
        readers=np.bincount(read, minlength=buffers),
        reserved=empty,
        fed=empty,
        before_at=free,
        before=empty,
        after_at=free,
        after=empty,
    )


def test_structs_have_the_same_fields_on_both_sides():
    a = arrays_of(chain(4, capacity_bytes=20))
    plan, steps = plan_of(a, Decisions()), steps_for(a)
    demands = demands_of(((TAKE, 0),), ((READ, 0),))
    for header, struct, made in (
        ("arrays.h", "Problem", a),
        ("arrays.h", "Plan", plan),
        ("arrays.h", "Steps", steps),
        ("orders.h", "Demands", demands),
    ):
        assert declared(header, struct) == handed_over(tuple(made), made._fields)
    limits = [field.removesuffix("_bytes") for field in ReplayLimits._fields]
    assert [name for name, _ in declared("arena.h", "Limits")] == limits
    asked = declared("eviction.h", "Evict")  # in the order in which `Eviction.actions` gives them
    assert [name for name, _ in asked] == [
        *("capacity", "cost_halves", "distance_power", "in_order", "most_work", "runs"),
    ]


def test_numbers_stand_for_the_same_on_both_sides():
    text = "".join(path.read_text() for path in sorted((SOURCES / "search").glob("*.h")))
    order = {
        name: re.split(r",\s*", values)
        for name, values in re.findall(r"enum (\w+) : \w+ \{ (.*?) \};", text)
    }
    assert order["Choice"] == ["kKeep", "kDrop", "kSwap"]
    assert (arrays.KEEP, arrays.DROP, arrays.SWAP) == (0, 1, 2)
    assert order["Event"] == ["kTake", "kScratch", "kReturn", "kRead"]
    assert (TAKE, SCRATCH, RETURN, READ) == (0, 1, 2, 3)
    assert order["Kind"] == ["kRun", "kOut", "kIn"]  # as in planner.search.evaluate
    assert f"kOverflow = {OVERFLOW};" in text


def test_an_array_with_gaps_is_not_handed_over():
    with pytest.raises(AssertionError, match="no gaps"):
        words([np.zeros(8)[::2]])


def test_memory_that_cannot_be_had_is_an_error():
    demands = demands_of(((TAKE, 0),), ((READ, 0),))
    fields = words(demands)
    fields[2 * Demands._fields.index("size") + 1] = 1 << 48  # so many buffers
    order, limits = words([np.arange(2)]), words((256, 256))
    with pytest.raises(MemoryError, match="native library"):
        function("planner_search_reach")(fields, order, limits, None)


def test_an_order_that_reads_what_is_not_there_is_an_error():
    demands = demands_of(((TAKE, 0),), ((READ, 0),))
    limits = ReplayLimits(1024)
    assert room(demands, np.array([0, 1]), limits) == 2
    with pytest.raises(ValueError, match="no unit before it makes"):
        room(demands, np.array([1, 0]), limits)
    with pytest.raises(ValueError, match="no unit before it makes"):
        climb(demands, np.array([1, 0]), limits, (4,), 8, np.random.default_rng(0))


def test_annealing_gives_the_same_with_the_same_seed_and_lets_other_threads_run():
    problem = chain(200, capacity_bytes=1500)
    begun, found = threading.Event(), []

    def anneal() -> None:
        core = Evaluator(problem).core
        gaps = np.arange(core.arrays.gap_tensor.size)
        plan = plan_of(core.arrays, Decisions(gaps={(t, 1): Choice.DROP for t in range(0, 150, 2)}))
        core.schedule(plan)
        best, rng = plan.copy(), np.random.default_rng(7)
        heat = Heat(cost_us=1e6, best_us=1e6, temperature_us=1.0, price_us_per_byte=0.1)
        begun.set()
        better = core.anneal(plan, best, gaps, heat, 4000, rng)
        found.append((better, heat.best_us, *(x.tobytes() for x in (*plan, *best)), rng.random()))

    turns = 0
    for _ in range(2):
        begun.clear()
        thread = threading.Thread(target=anneal)
        thread.start()
        begun.wait()
        while thread.is_alive():
            turns += 1
        thread.join()
    assert found[0] == found[1] and found[0][0] > 0
    assert turns > 10_000


ALONE = """
import os
from pathlib import Path
import numpy as np  # whose own threads are not ours
from planner.search.fast.core import Core
from planner.search.fast.arrays import arrays_of, plan_of
from planner.plan.decisions import Decisions
from tests.native.test_calls import chain
threads = len(os.listdir("/proc/self/task"))
a = arrays_of(chain(4, capacity_bytes=20))
core = Core(a)
print(core.schedule(plan_of(a, Decisions())), len(os.listdir("/proc/self/task")) - threads)
mapped = Path("/proc/self/maps").read_text()
print("libplanner_native" in mapped, "libcuda" in mapped)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells")
def test_the_search_starts_no_thread_and_touches_no_device():
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["8", "0", "True", "False"]
