"""The allocators' invariants: nothing overlaps, nothing is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.runtime.memory.bfc import (
    ArenaFullError,
    BfcArena,
    Block,
    Growth,
    PatternLayout,
    round_up,
)

_SIZES = st.lists(
    st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 50)), min_size=1, max_size=80
)


def _arena(growth: Growth = Growth.DOUBLING, limit: int | None = None) -> BfcArena:
    return BfcArena(growth=growth, initial_chunk_bytes=4096, max_dead_bytes=512, limit_bytes=limit)


@given(steps=_SIZES, growth=st.sampled_from(Growth))
def test_blocks_never_overlap_and_the_sums_hold(
    steps: list[tuple[bool, int, int]], growth: Growth
) -> None:
    arena, live = _arena(growth), list[tuple[Block, int]]()
    for is_free, size, which in steps:
        if is_free and live:
            arena.release(live.pop(which % len(live))[0])
        else:
            live.append((arena.allocate(size), size))
        spans = sorted((b.offset, b.offset + b.size) for b, _ in live)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert arena.in_use == sum(b.size for b, _ in live) <= arena.held
        assert arena.requested == sum(size for _, size in live)
        assert all(b.size >= round_up(size) for b, size in live)
    held = arena.held
    for block, _ in live:
        arena.release(block)
    assert (arena.in_use, arena.requested, arena.held) == (0, 0, held)


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30))
def test_freed_memory_of_one_region_becomes_one_chunk_again(sizes: list[int]) -> None:
    arena = BfcArena(
        growth=Growth.DOUBLING, initial_chunk_bytes=1 << 20, max_dead_bytes=1, limit_bytes=1 << 20
    )
    blocks = [arena.allocate(size) for size in sizes]
    for block in blocks[::2] + blocks[1::2]:
        arena.release(block)
    assert arena.allocate(1 << 20).size == arena.held == 1 << 20


def test_the_limit_counts_what_is_held() -> None:
    arena = _arena(Growth.EXACT, limit=1024)
    block = arena.allocate(700)
    with pytest.raises(ArenaFullError, match="512 bytes requested, 256 available"):
        arena.allocate(500)
    arena.release(block)
    assert arena.allocate(500).size == 768  # too little would be left to split


@given(steps=_SIZES)
def test_the_pattern_places_without_overlap_and_within_its_size(
    steps: list[tuple[bool, int, int]],
) -> None:
    layout, live = PatternLayout(), list[int]()
    for key, (is_free, size, which) in enumerate(steps):
        if is_free and live:
            layout.release(live.pop(which % len(live)))
        else:
            layout.allocate(key, round_up(size))
            live.append(key)
        spans = sorted(layout.placed(k) for k in live)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert all(end <= layout.size for _, end in spans)
