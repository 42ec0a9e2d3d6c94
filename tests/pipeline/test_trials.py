"""Which capacity is solved for next, and in which base order."""

from __future__ import annotations

import pytest

from planner.pipeline.solve.orders import BaseOrder
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.trials import Trial, TrialOutcome, Trials

ROOM = 1000


def order(name: str, peak: int, bound: int = 0) -> BaseOrder:
    """A base order, of which nothing else is asked."""
    return BaseOrder(name=name, order=(), peak_bytes=peak, least_bound_bytes=bound)


def plan(added_us: float, peak: int, need: float = 1.0) -> TrialOutcome:
    """What a trial came to."""
    return TrialOutcome(added_us=added_us, peak_bytes=peak, need=need)


def cheapest(trials: Trials) -> Trial:
    """The next one."""
    trial = trials.take(left=1.0)
    assert trial is not None
    return trial


def test_the_order_that_adds_least_comes_first_and_the_unknown_last() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("unknown", 1200), None)
    trials.add(order("dear", 1200), 9.0)
    trials.add(order("cheap", 1200), 3.0)
    taken = [cheapest(trials) for _ in range(3)]
    assert [trial.base.name for trial in taken] == ["cheap", "dear", "unknown"]
    assert {trials.capacity_bytes(trial) for trial in taken} == {ROOM}
    assert trials.take(left=1.0) is None


def test_a_lower_capacity_is_tried_before_an_order_that_adds_more() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("dear", 1200), 9.0)
    trials.add(order("cheap", 1200), 3.0)
    trials.retry(cheapest(trials), plan(3.0, ROOM), is_late=False)
    again = cheapest(trials)
    assert (again.base.name, again.step) == ("cheap", 1)
    saved, more = 1200 - ROOM, 1200 - trials.capacity_bytes(again)
    assert again.added_us == pytest.approx(3.0 * more / saved)
    steps = 0
    while again.base.name == "cheap":
        capacity = trials.capacity_bytes(again)
        trials.retry(again, plan(3.0 + steps, capacity), is_late=False)
        again = cheapest(trials)
        steps += 1
    assert 3 <= steps <= 7  # until the cheap one is expected to add as much


def test_what_pins_an_order_is_taken_off_the_room_of_all() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("other", 1200), 3.0)
    trials.add(order("pinned", 1200), 3.0)
    outcome = TrialOutcome(added_us=3.0, peak_bytes=ROOM, over_bytes=20)
    trials.retry(cheapest(trials), outcome, is_late=False)
    assert ROOM - 30 <= trials.room <= ROOM - 20
    taken = [cheapest(trials) for _ in range(2)]
    assert {trials.capacity_bytes(trial) for trial in taken} == {trials.room}
    trials.retry(
        taken[0], TrialOutcome(added_us=3.0, peak_bytes=1, over_bytes=2 * ROOM), is_late=True
    )
    again = trials.take(left=1.0)
    assert again is None or trials.capacity_bytes(again) > 0


def test_a_plan_that_is_over_does_not_fit_the_next_room() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("pinned", 1200), 3.0)
    outcome = TrialOutcome(added_us=3.0, peak_bytes=ROOM - 50, over_bytes=20)
    trials.retry(cheapest(trials), outcome, is_late=False)
    assert ROOM - 80 <= trials.room <= ROOM - 70


def test_a_capacity_that_the_plan_is_within_is_left_out() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("only", 1200), 3.0)
    trials.retry(cheapest(trials), plan(3.0, 960), is_late=False)
    step = cheapest(trials).step
    assert POLICY.capacities[step] * ROOM < 960 <= POLICY.capacities[step - 1] * ROOM


@pytest.mark.parametrize("need", [1.0, 1.02, 1.1, 1.2])
def test_a_plan_that_needs_far_more_is_followed_by_a_far_lower_capacity(need: float) -> None:
    trials = Trials(room=ROOM)
    trials.add(order("only", 1200), 3.0)
    trials.retry(cheapest(trials), plan(3.0, ROOM, need), is_late=False)
    step = cheapest(trials).step
    most = min(1.04 / need, 1 - (need - 1) / 2)
    assert POLICY.capacities[step] <= most
    assert step == 1 or POLICY.capacities[step - 1] > most


def test_an_order_ends_below_its_bound() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("tight", 1200, bound=999), 3.0)
    trials.retry(cheapest(trials), plan(3.0, ROOM), is_late=False)
    assert trials.take(left=1.0) is None


def test_steps_are_larger_where_time_is_out() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("late", 1200), 3.0)
    trials.retry(cheapest(trials), plan(3.0, ROOM), is_late=True)
    assert cheapest(trials).step == 2


def test_an_order_that_breaks_the_arena_up_anyway_begins_at_a_lower_capacity() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("broken", 1200), 3.0)
    trials.judge(cheapest(trials), 1.3, 3.0)
    (judged,) = trials.open
    assert judged.is_judged
    assert trials.capacity_bytes(judged) <= ROOM * 1.04 / 1.3
    assert judged.added_us == pytest.approx(3.0 * (1200 - trials.capacity_bytes(judged)) / 200)
    trials.open.clear()
    trials.add(order("of which nothing is known", 1200), None)
    trials.judge(cheapest(trials), 1.3, None)
    assert [trial.added_us for trial in trials.open] == [None]
    trials.open.clear()
    trials.add(order("of which a rough plan is known now", 1200), None)
    trials.judge(cheapest(trials), 1.0, 4.0)
    assert [trial.added_us for trial in trials.open] == [4.0]


def test_an_order_that_does_not_is_tried_as_it_would_have_been() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("whole", 1200), 3.0)
    trials.add(order("unknown", 1200), None)
    for trial in [cheapest(trials), cheapest(trials)]:
        trials.judge(trial, 1.0, trial.added_us)
    assert [(t.base.name, t.step, t.added_us) for t in trials.open] == [
        ("whole", 0, 3.0),
        ("unknown", 0, None),
    ]
    assert all(trial.is_judged for trial in trials.open)


def test_what_was_put_off_comes_back_with_the_whole_budget() -> None:
    """An order whose arena breaks up is still planned in, where less than the budget comes to nothing."""
    trials = Trials(room=ROOM)
    trials.add(order("broken", 1200), 3.0)
    trials.add(order("hopeless", 1200, bound=ROOM), 5.0)
    for need in (1.2, 1.3):
        trials.judge(cheapest(trials), need, 3.0)
    assert [trial.base.name for trial in trials.open] == ["broken"]
    assert cheapest(trials).step > 0
    trials.restore(order("broken", 1200))
    again = cheapest(trials)
    assert (again.base.name, again.step, again.is_judged) == ("broken", 0, True)
    trials.restore()
    assert cheapest(trials).base.name == "hopeless"
    trials.restore()
    assert trials.take(left=1.0) is None
