"""Offsets against a second check, the simplest packing, and cases that pack perfectly by construction."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.pack.depth_first import DepthFirst, Outcome, Pick
from planner.pack.instance import Instance, Intervals
from planner.pack.pack import Buffer, InvalidPackingError, Packing, check_packing, pack
from tests.pack.buffers import guillotine

ALIGNMENTS = st.sampled_from([1, 1, 1, 4, 6, 256])


@st.composite
def buffer_lists(draw: st.DrawFn, most: int = 14, aligned: bool = True) -> list[Buffer]:
    """A few buffers in a short run; some empty, some never live."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(-3, 10))
        found.append(
            Buffer(
                start=start,
                end=start + draw(st.integers(0, 6)),
                size_bytes=draw(st.integers(0, 40)),
                alignment=draw(ALIGNMENTS) if aligned else 1,
            )
        )
    return found


def live_at(buffers: Sequence[Buffer], moment: int) -> list[int]:
    return [i for i, b in enumerate(buffers) if b.start <= moment < b.end and b.size_bytes]


def contention(buffers: Sequence[Buffer]) -> int:
    """The largest sum of live bytes, moment by moment."""
    moments = range(min(b.start for b in buffers), max(b.end for b in buffers) + 1)
    return max(sum(buffers[i].size_bytes for i in live_at(buffers, m)) for m in moments)


def assert_packed(buffers: Sequence[Buffer], packing: Packing) -> None:
    """Every pair, byte by byte: slow, and unlike the check under test."""
    spans = [range(o, o + b.size_bytes) for b, o in zip(buffers, packing.offsets, strict=True)]
    for (i, a), (j, b) in itertools.combinations(enumerate(buffers), 2):
        if max(a.start, b.start) < min(a.end, b.end):
            assert not set(spans[i]) & set(spans[j]), f"{i} and {j} share a byte"
    for buffer, offset in zip(buffers, packing.offsets, strict=True):
        assert offset >= 0
        assert offset % buffer.alignment == 0
    tops = [s.stop for s, b in zip(spans, buffers, strict=True) if b.start < b.end and len(s)]
    assert packing.height_bytes == max(tops, default=0)


def simple_first_fit(buffers: Sequence[Buffer]) -> int:
    """Height of: by start, each at the lowest offset that is free."""
    placed: list[tuple[Buffer, int]] = []
    for buffer in sorted(buffers, key=lambda b: b.start):
        if not buffer.size_bytes or buffer.start == buffer.end:
            continue
        beside = sorted(
            (o, o + b.size_bytes)
            for b, o in placed
            if max(b.start, buffer.start) < min(b.end, buffer.end)
        )
        offset = 0
        for low, high in beside:
            if offset + buffer.size_bytes <= low:
                break
            offset = max(offset, high)
        placed.append((buffer, offset))
    return max((o + b.size_bytes for b, o in placed), default=0)


@given(buffers=buffer_lists())
@settings(max_examples=60, deadline=None)
@example(buffers=[])
@example(buffers=[Buffer(start=0, end=0, size_bytes=5), Buffer(start=0, end=1, size_bytes=0)])
def test_any_buffers_are_packed(buffers):
    packing = pack(buffers, time_limit_s=0.2)

    assert_packed(buffers, packing)
    check_packing(buffers, packing)
    assert packing.bound_bytes == (contention(buffers) if buffers else 0)
    assert packing.height_bytes >= packing.bound_bytes
    assert packing.fits


@given(buffers=buffer_lists(most=25, aligned=False))
@settings(max_examples=60, deadline=None)
def test_never_higher_than_the_simplest_packing(buffers):
    # no time at all: the greedy packings alone
    assert pack(buffers, time_limit_s=0.0).height_bytes <= simple_first_fit(buffers)


@given(buffers=buffer_lists(most=6, aligned=False), seed=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_few_buffers_are_packed_as_low_as_any_order_packs_them(buffers, seed):
    # every packing can be pushed down into one where buffers, in some order, fall as low as they can
    best = min((stacked(order) for order in itertools.permutations(buffers)), default=0)
    # a bisection to a thousandth of so few bytes ends at the byte
    assert pack(buffers, time_limit_s=5.0, seed=seed).height_bytes == best


def stacked(buffers: Sequence[Buffer]) -> int:
    """Height when each rests on the highest of those before it that are beside it."""
    tops: list[int] = []
    for i, buffer in enumerate(buffers):
        beside = [
            top
            for other, top in zip(buffers[:i], tops, strict=True)
            if max(other.start, buffer.start) < min(other.end, buffer.end)
        ]
        tops.append(max(beside, default=0) + buffer.size_bytes)
    live = [t for t, b in zip(tops, buffers, strict=True) if b.size_bytes and b.start < b.end]
    return max(live, default=0)


@pytest.mark.parametrize("pieces", [20, 60, 120])
@pytest.mark.parametrize("seed", [1, 2])
def test_perfect_packings_are_found(pieces, seed):
    buffers = guillotine(seed, pieces)

    packing = pack(buffers, capacity_bytes=1 << 12, time_limit_s=60.0)

    assert_packed(buffers, packing)
    assert packing.bound_bytes == 1 << 12
    assert packing.fits
    assert packing.height_bytes == 1 << 12
    assert packing.fragmentation == 0.0


def test_the_search_packs_perfectly_where_greed_does_not():
    buffers = guillotine(3, 40)
    assert pack(buffers, time_limit_s=0.0).height_bytes > 1 << 12
    intervals = as_intervals(buffers)
    instance = Instance.of(intervals)
    capacity = 1 << 12
    rank = np.argsort(np.argsort(-instance.lifetime, kind="stable"))

    outcome, offsets = DepthFirst(instance, capacity).search(
        rank, Pick.FEWEST_CHOICES, most_states=100_000, deadline=float("inf")
    )

    assert outcome is Outcome.PACKED
    assert offsets is not None
    in_bytes = tuple((offsets * instance.unit_bytes).tolist())
    packing = pack(buffers, time_limit_s=0.0)
    assert_packed(buffers, replace(packing, offsets=in_bytes, height_bytes=1 << 12))


def as_intervals(buffers: Sequence[Buffer]) -> Intervals:
    columns = np.array([(b.start, b.end, b.size_bytes, b.alignment) for b in buffers])
    start, end, size, alignment = columns.T.astype(np.int64)
    return Intervals(start=start, end=end, size=size, alignment=alignment)


def test_what_cannot_be_packed_is_proved_so_before_the_time_is_up():
    # contention 6, but of two at multiples of 4 one lies at 4 or above, and ends at 7 or above
    buffers = [Buffer(start=0, end=1, size_bytes=3, alignment=4) for _ in range(2)]

    assert not pack(buffers, capacity_bytes=6, time_limit_s=600.0).fits
    assert pack(buffers, time_limit_s=600.0).height_bytes == 7


def test_parts_that_nothing_joins_are_packed_apart():
    first = guillotine(4, 30)
    second = [
        replace(b, start=b.start + 500, end=b.end + 500) for b in guillotine(5, 30, height=64)
    ]

    packing = pack([*second, *first], capacity_bytes=1 << 12, time_limit_s=60.0)

    assert_packed([*second, *first], packing)
    assert packing.fits


def test_a_seed_gives_the_same_offsets_again():
    buffers = guillotine(6, 60)
    runs = [pack(buffers, capacity_bytes=1 << 12, time_limit_s=60.0, seed=5) for _ in range(2)]
    assert runs[0].offsets == runs[1].offsets


def test_alignment_costs_no_more_than_it_must():
    # 300 bytes take 512 of an arena of 256-byte granules, but the last need not be filled up
    buffers = [Buffer(start=0, end=2, size_bytes=300, alignment=256) for _ in range(3)]
    packing = pack(buffers, capacity_bytes=1024 + 300, time_limit_s=5.0)
    assert sorted(packing.offsets) == [0, 512, 1024]
    assert packing.height_bytes == 1324
    assert packing.fits
    assert packing.bound_bytes == 900


def test_a_long_run_is_packed_close_to_its_contention():
    """A chain's training step: half the buffers wait for the way back. 40,000 buffers."""
    draw = random.Random(1)
    depth = 10_000
    buffers = []
    for i in range(depth):
        size = 256 * draw.randrange(50, 3200)
        back = 2 * depth - i
        buffers += [
            Buffer(start=i, end=back + 1, size_bytes=size),
            Buffer(start=i, end=i + draw.randrange(1, 4), size_bytes=size // 2),
            Buffer(start=back, end=back + 2, size_bytes=size),
            Buffer(start=back, end=back + draw.randrange(1, 30), size_bytes=size // 4),
        ]
    packing = pack(buffers, time_limit_s=2.0)
    check_packing(buffers, packing)
    assert packing.fragmentation < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end": -1}, "ends at -1"),
        ({"size_bytes": -1}, "negative size"),
        ({"alignment": 0}, "alignment"),
    ],
)
def test_impossible_buffers_are_refused(change, message):
    buffer = replace(Buffer(start=0, end=1, size_bytes=1), **change)
    with pytest.raises(ValueError, match=message):
        pack([buffer])


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="capacity"):
        pack([], capacity_bytes=-1)


def test_a_capacity_below_the_contention_is_not_met_and_the_packing_stands():
    buffers = [Buffer(start=0, end=1, size_bytes=3), Buffer(start=0, end=1, size_bytes=4)]
    packing = pack(buffers, capacity_bytes=6)
    assert not packing.fits
    assert packing.height_bytes == 7


PAIR = [Buffer(start=0, end=2, size_bytes=4), Buffer(start=1, end=3, size_bytes=4, alignment=2)]


@pytest.mark.parametrize(
    ("offsets", "height", "message"),
    [
        ((0, 2), 8, "overlap"),
        ((2, 0), 8, "overlap"),
        ((0, 5), 9, "alignment"),
        ((-4, 0), 4, "alignment"),
        ((0, 4), 9, "height"),
        ((0,), 4, "1 offsets for 2"),
    ],
)
def test_wrong_packings_are_told(offsets, height, message):
    packing = replace(pack(PAIR), offsets=offsets, height_bytes=height)
    with pytest.raises(InvalidPackingError, match=message):
        check_packing(PAIR, packing)
