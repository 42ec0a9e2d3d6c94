"""The tolerance of a device: absolute, plus relative to the largest element."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.runtime.device.near import is_near, tolerance
from planner.targets import WEBGPU

TARGET = replace(WEBGPU, absolute=1e-5, relative=1e-2)
ONES = np.array([1.0, 100.0, 0.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ([0.0, 0.9, 0.0], True),  # below 1% of 100
        ([0.9, 0.0, 0.0], True),  # relative to the largest element, not to its own
        ([0.0, 1.2, 0.0], False),
        ([0.0, np.nan, 0.0], False),
        ([0.0, np.inf, 0.0], False),
    ],
)
def test_differences_are_measured_by_the_largest_element(change: list[float], near: bool) -> None:
    assert is_near(TARGET, ONES, ONES + np.array(change, dtype=np.float32)) == near


def test_what_is_zero_in_theory_may_be_rounding_but_no_more() -> None:
    zeros = np.zeros(3, dtype=np.float32)
    assert is_near(TARGET, zeros, zeros + np.float32(9e-6))
    assert not is_near(TARGET, zeros, zeros + np.float32(2e-5))


def test_the_same_infinities_and_nans_are_near_and_do_not_widen_the_limit() -> None:
    odd = np.array([np.inf, np.nan, 1.0])
    assert is_near(TARGET, odd, odd.copy())
    assert not is_near(TARGET, odd, np.array([np.inf, np.nan, 1.5]))


def test_types_shapes_and_integers_are_exact() -> None:
    assert not is_near(TARGET, ONES, ONES.astype(np.float64))
    assert not is_near(TARGET, ONES, ONES[:2])
    assert not is_near(TARGET, np.array([100, 1]), np.array([100, 2]))
    assert tolerance(TARGET) == "1e-05 + 0.01 of the largest element"
