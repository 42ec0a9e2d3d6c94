"""Swaps keep every bit: at every level, with settings that move buffers about, and on random programs."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from planner.native import counts
from tests.native.graphs import bits, chain, chain_feeds, chain_nodes, plain, ran, session

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
