"""How often garbage is looked for is set for a call, and then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from planner.processes.garbage import collected_seldom


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the test's own process alone."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("threshold", [(700, 10, 10), (2_000, 5, 7)])
def test_garbage_is_looked_for_seldom_within_a_call_alone(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)

    @collected_seldom()
    def call() -> int:
        return gc.get_threshold()[0]

    assert call() > 10 * threshold[0]
    assert gc.get_threshold() == threshold
    with pytest.raises(ZeroDivisionError), collected_seldom():
        _ = 1 / 0
    assert gc.get_threshold() == threshold


@pytest.mark.parametrize("threshold", [(0, 10, 10), (10_000_000, 1, 1)])
def test_who_wants_less_than_that_gets_it(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)
    with collected_seldom():
        assert gc.get_threshold() == threshold
