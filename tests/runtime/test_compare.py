"""Bit-for-bit comparison."""

from __future__ import annotations

import numpy as np
import pytest

from planner.runtime import compare as module
from planner.runtime.compare import compare


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
