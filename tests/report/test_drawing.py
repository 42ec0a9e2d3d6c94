"""Reducing series to what can be drawn keeps the peak."""

from hypothesis import given
from hypothesis import strategies as st

from planner.report.drawing import bin_steps


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
