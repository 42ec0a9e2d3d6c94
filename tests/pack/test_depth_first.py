"""The depth-first search against all orders of a few buffers, and against packings known to exist."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pack import depth_first as offsets_dfs
from planner.pack.depth_first import DepthFirst, Outcome, Pick
from planner.pack.instance import Instance, Intervals, Ints
from planner.pack.pack import Buffer, Packing, check_packing
from tests.pack.buffers import guillotine

FOREVER = float("inf")


@st.composite
def few_buffers(draw: st.DrawFn) -> list[Buffer]:
    """Some alike, some aligned; in one part of the run or in several."""
    found: list[Buffer] = []
    for _ in range(draw(st.integers(1, 6))):
        if found and draw(st.booleans()):
            found.append(draw(st.sampled_from(found)))
            continue
        start = draw(st.integers(0, 6))
        found.append(
            Buffer(
                start=start,
                end=start + draw(st.integers(1, 5)),
                size_bytes=draw(st.integers(1, 12)),
                alignment=draw(st.sampled_from([1, 1, 2, 3, 4])),
            )
        )
    return found


def least_height(buffers: Sequence[Buffer]) -> int:
    """Of the packings in which buffers, in some order, each rest on those before."""
    return min(stacked(order) for order in itertools.permutations(buffers))


def stacked(buffers: Sequence[Buffer]) -> int:
    tops: list[int] = []
    for i, buffer in enumerate(buffers):
        below = [top for other, top in zip(buffers[:i], tops, strict=True) if meet(buffer, other)]
        offset = -(-max(below, default=0) // buffer.alignment) * buffer.alignment
        tops.append(offset + buffer.size_bytes)
    return max(tops)


def meet(a: Buffer, b: Buffer) -> bool:
    return max(a.start, b.start) < min(a.end, b.end)


def as_instance(buffers: Sequence[Buffer]) -> Instance:
    columns = np.array([(b.start, b.end, b.size_bytes, b.alignment) for b in buffers])
    start, end, size, alignment = columns.T.astype(np.int64)
    return Instance.of(Intervals(start=start, end=end, size=size, alignment=alignment))


def a_rank(count: int, seed: int) -> Ints:
    return np.random.default_rng(seed).permutation(count).astype(np.int64)


def assert_packs(
    buffers: Sequence[Buffer], instance: Instance, offsets: Ints | None, capacity: int
) -> None:
    assert offsets is not None
    in_bytes = (offsets * instance.unit_bytes).tolist()
    height = max(o + b.size_bytes for o, b in zip(in_bytes, buffers, strict=True))
    assert height <= capacity
    packing = Packing(
        offsets=tuple(in_bytes),
        height_bytes=height,
        bound_bytes=instance.bound_bytes,
        capacity_bytes=capacity,
        engine="depth-first",
        seconds=0.0,
    )
    check_packing(buffers, packing)


@pytest.mark.parametrize("pick", list(Pick))
@given(buffers=few_buffers(), seed=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_packs_what_any_order_packs_and_proves_the_rest_impossible(pick, buffers, seed):
    least = least_height(buffers)
    instance = as_instance(buffers)
    rank = a_rank(len(buffers), seed)
    found, offsets = DepthFirst(instance, least).search(
        rank, pick, most_states=100_000, deadline=FOREVER
    )
    assert found is Outcome.PACKED
    assert_packs(buffers, instance, offsets, least)

    found, offsets = DepthFirst(instance, least - 1).search(
        rank, pick, most_states=100_000, deadline=FOREVER
    )
    assert found is Outcome.EXHAUSTED
    assert offsets is None


@given(
    pieces=st.integers(2, 24),
    steps=st.integers(2, 12),
    height=st.integers(3, 60),
    seed=st.integers(),
)
@settings(max_examples=150, deadline=None)
def test_what_runs_remember_loses_no_packing(pieces, steps, height, seed):
    buffers = guillotine(seed, min(pieces, steps * height), steps=steps, height=height)
    instance = as_instance(buffers)
    search = DepthFirst(instance, height)
    for run in range(40):
        found, offsets = search.search(
            a_rank(len(buffers), run), Pick(run % 2), most_states=8 + 2 * run, deadline=FOREVER
        )
        assert found is not Outcome.EXHAUSTED
        if offsets is not None:
            assert_packs(buffers, instance, offsets, height)


def test_a_look_at_the_clock_does_not_change_the_search(monkeypatch):
    buffers = guillotine(5, 60, steps=40, height=1000)
    instance = as_instance(buffers)
    runs = []
    for cells in (1, 1 << 40):
        monkeypatch.setattr(offsets_dfs, "_SLICE_CELLS", cells)
        search = DepthFirst(instance, 1000)
        runs.append(
            [
                search.search(a_rank(60, i), Pick.LOWEST, most_states=1000, deadline=FOREVER)
                for i in range(10)
            ]
        )
    assert [outcome for outcome, _ in runs[0]] == [outcome for outcome, _ in runs[1]]
    for (_, a), (_, b) in zip(*runs, strict=True):
        assert (a is None and b is None) or np.array_equal(a, b)


def test_loose_buffers_do_not_raise_each_other_byte_by_byte():
    # small ones that nothing holds any more, below a terabyte of room: this would not end
    large = 10**12
    rows = [(2, 3, 1), (1, 2, 1), (1, 2, 1), (1, 3, large), (2, 3, large), (0, 2, 1)]
    rows += [(0, 1, large), (1, 2, 1), (0, 2, 2)]
    buffers = [Buffer(start=start, end=end, size_bytes=size) for start, end, size in rows]
    instance = as_instance(buffers)
    for pick in Pick:
        found, offsets = DepthFirst(instance, instance.bound_bytes).search(
            a_rank(len(buffers), 0), pick, most_states=2000, deadline=FOREVER
        )
        assert found is Outcome.PACKED
        assert_packs(buffers, instance, offsets, instance.bound_bytes)


def test_no_time_and_no_states_prove_nothing():
    buffers = guillotine(1, 30, steps=20, height=100)
    search = DepthFirst(as_instance(buffers), 100)
    rank = a_rank(30, 0)
    for states, deadline in ((1000, 0.0), (0, FOREVER), (5, FOREVER)):
        found, offsets = search.search(rank, Pick.LOWEST, most_states=states, deadline=deadline)
        assert found is Outcome.OUT_OF_STATES
        assert offsets is None


def test_large_instances_are_left_to_others():
    wide = [Buffer(start=i, end=i + 3, size_bytes=1) for i in range(3000)]
    assert DepthFirst.suits(as_instance(wide[:500]))
    assert not DepthFirst.suits(as_instance(wide))
