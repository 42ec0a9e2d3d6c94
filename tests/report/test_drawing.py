"""Reducing series to what can be drawn keeps the peak, and rectangles never overlap."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.report.drawing import bin_steps, pack


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.integers(1, 50))
def test_bins_cover_every_step_once_and_keep_the_peak(live, at_most):
    bins = bin_steps(live, at_most=at_most)
    assert len(bins.step) <= at_most
    assert bins.left[0] == 0 and bins.right[-1] == len(live)
    assert (bins.left[1:] == bins.right[:-1]).all()
    assert ((bins.left <= bins.step) & (bins.step < bins.right)).all()
    assert max(live[s] for s in bins.step) == max(live)


def test_a_short_timeline_is_drawn_as_it_is():
    bins = bin_steps([5, 3, 9])
    assert bins.step.tolist() == [0, 1, 2]


ranges = st.lists(
    st.tuples(st.integers(0, 19), st.integers(1, 20), st.integers(1, 1000)).map(
        lambda t: {
            "start": t[0],
            "end": min(t[0] + t[1], 20),
            "bytes": t[2],
            "category": "ab"[t[2] % 2],
        }
    ),
    max_size=40,
)


def small_band(packing):
    return sum(packing.small_bytes.values(), start=np.zeros(20, dtype=np.int64))


@given(ranges, st.integers(1, 40), st.integers(0, 500))
def test_rectangles_do_not_overlap(found, at_most, floor):
    packing = pack(found, steps=20, floor_bytes=floor, at_most=at_most)
    used = np.zeros((20, packing.height_bytes + 1), dtype=bool)
    for i, offset in zip(packing.rows, packing.offset, strict=True):
        r = found[i]
        here = used[r["start"] : r["end"], offset : offset + r["bytes"]]
        assert offset >= floor + small_band(packing).max()
        assert not here.any()
        here[:] = True
    assert len(packing.rows) + packing.small_count == len(found)


@given(ranges, st.integers(1, 40))
def test_every_byte_is_drawn(found, at_most):
    packing = pack(found, steps=20, floor_bytes=0, at_most=at_most)
    live = np.zeros(20, dtype=np.int64)
    for r in found:
        live[r["start"] : r["end"]] += r["bytes"]
    drawn = small_band(packing)
    for i in packing.rows:
        drawn[found[i]["start"] : found[i]["end"]] += found[i]["bytes"]
    assert (drawn == live).all()
