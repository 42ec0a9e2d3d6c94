"""Bit-for-bit comparison."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from planner.choices import NUMBERS, RELATIVE, Numbers, least_exact
from planner.runtime.judge import compare as module
from planner.runtime.judge.compare import compare, judged


def test_nan_payloads_and_signs_of_zero_are_bits_too() -> None:
    nan = np.array([np.nan], np.float32)
    other = nan.view(np.uint32) ^ np.uint32(1)
    same = compare("y", nan, nan.copy())
    assert same.identical and same.has_nan and same.max_abs_diff == 0
    assert not compare("y", nan, other.view(np.float32)).identical
    zero = compare("y", np.array(0.0), np.array(-0.0))
    assert not zero.identical and zero.max_abs_diff == 0


def test_differences_are_the_largest_over_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 4)
    before = np.ones(11, np.float32)
    after = before.copy()
    after[2], after[9] = 1.5, 3.0
    found = compare("y", before, after)
    assert found.max_abs_diff == 2.0
    assert found.max_rel_diff == pytest.approx(2 / 3)


def test_one_sided_nan_or_another_type_or_shape_is_infinitely_far() -> None:
    one = np.ones(3, np.float32)
    for other in (np.array([1, np.nan, 1], np.float32), one.astype(np.float64), one[:2]):
        found = compare("y", one, other)
        assert not found.identical and found.max_abs_diff == float("inf")


@pytest.mark.parametrize("array", [np.array(True), np.array([], np.int64), np.array(3 + 4j)])
def test_scalars_empties_and_other_types_compare(array: np.ndarray) -> None:
    assert compare("y", array, array.copy()).identical


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6)),
    st.floats(1e-9, 1.0),
    st.integers(1, 7),
)
def test_near_and_root_mean_square_are_those_of_the_whole_array(
    before: np.ndarray, share: float, chunk: int
) -> None:
    after = before + share * np.sin(np.arange(before.size))
    with mock.patch.object(module, "_CHUNK", chunk):
        found = compare("y", before, after)
    gap = np.abs(after - before)
    assert found.is_near == bool(gap.max() <= RELATIVE["float64"] * np.abs(before).max())
    if np.abs(before).max() > 1e-3:
        expected = np.linalg.norm(gap) / np.linalg.norm(before)
        assert found.rms_rel_diff == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (0.0, ()),
        (1e-6, ("exact",)),
        (0.5, ("exact", "rounding")),
        (np.inf, NUMBERS),
    ],
)
def test_what_was_done_says_how_close_the_numbers_have_to_be(
    change: float, failing: tuple[Numbers, ...]
) -> None:
    before = np.ones(5, np.float32)
    found = compare("y", before, before + np.float32(change))
    for numbers in NUMBERS:
        failures, notes = judged([found], numbers)
        assert bool(failures) == (numbers in failing)
        assert bool(notes) == (change > 0 and numbers != "exact")


def test_another_type_or_shape_always_fails() -> None:
    one = np.ones(3, np.float32)
    for numbers in NUMBERS:
        assert judged([compare("y", one, one[:2])], numbers)[0]
        assert judged([compare("y", one, one.astype(np.float16))], numbers)[0]


def test_several_things_done_are_as_exact_as_the_least() -> None:
    assert least_exact("exact", "exact") == "exact"
    assert least_exact("lossy", "rounding", "exact") == "lossy"
    assert least_exact("exact", "rounding") == "rounding"
