"""Rounds of searches: what a longer time limit changes, and what ends them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from models import zoo
from planner import clock
from planner.errors import InfeasibleBudgetError, TimeLimitError
from planner.pipeline.levers import rounds
from planner.pipeline.levers.choose import plan_with
from planner.pipeline.levers.half.halves import Halves
from planner.pipeline.levers.rounds import plan_in_rounds
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import Settings, settings_of
from planner.pipeline.solve import least_plan, trying
from planner.pipeline.solve.least_plan import TooShortError
from planner.pipeline.solve.orders import least_possible_peak
from planner.pipeline.solve.planned import Planned, lowered_plan
from planner.pipeline.solve.planning import Means, make_plan, refined
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio import race
from planner.portfolio.solve import solved_of
from planner.request import Costs, Levers, Limits, Request
from planner.search.engine import run_engine
from planner.search.engines.simple import EverythingSwapped
from planner.search.state import SearchSettings, new_state
from planner.search.stop import after
from planner.units import format_bytes

ZOO = Path(zoo.__file__).parent
CARD = {"device": "cuda", "hardware": "rtx-4090"}


@pytest.mark.parametrize(
    ("name", "budget", "options", "limits_s"),
    [
        ("mlp_adamw", "80%", {}, (1.0, 3.0)),
        ("mlp_adamw", "50%", CARD, (1.0, 3.0, 8.0)),
        ("gpt", "50%", {**CARD, "budget_of": "live"}, (1.0, 3.0)),
    ],
    ids=["recompute", "card", "live"],
)
def test_more_time_never_leads_to_a_worse_plan(
    name: str, budget: str, options: dict[str, Any], limits_s: tuple[float, ...]
) -> None:
    """One, two and three searches; on the CPU, networks have them in tests/test_clock.py."""

    def time_us(limit_s: float) -> float:
        done = planner.optimize(
            ZOO / f"{name}.onnx",
            budget=budget,
            time_limit_s=limit_s,
            reproducible=True,
            dry_run=True,
            **options,
        )
        return done.plan.planned.time_us

    times = [time_us(limit_s) for limit_s in limits_s]
    # equal plans add the same durations up in another order
    assert all(more <= (1 + 1e-12) * less for less, more in itertools.pairwise(times))


@pytest.fixture(scope="module")
def tight() -> tuple[Prepared, Settings, Planned]:
    """A model, with a plan of it."""
    request = Request(
        model=ZOO / "mlp_adamw.onnx",
        budget="82%",
        costs=Costs(calibrate="never"),
        limits=Limits(time_limit_s=1.0),
    )
    prepared = prepare(request)
    settings = settings_of(prepared)
    return prepared, settings, make_plan(prepared, settings, Means())


Round = Callable[[int, Settings], Planned]


def run(
    monkeypatch: pytest.MonkeyPatch,
    tight: tuple[Prepared, Settings, Planned],
    a_round: Round,
    *,
    limit_s: float,
    keep: bool = False,
    means: Means | None = None,
    going_on: Callable[[Planned], Planned] = lambda planned: planned,
) -> tuple[Planned, list[float]]:
    """Plan in rounds that `a_round` makes, by their number; return the plan and the rounds' limits.

    `going_on` makes what a search finds that goes on from a plan.
    """
    prepared, settings, _ = tight
    begun: list[float] = []

    def refined(planned: Planned, given: Settings, _: object) -> Planned:
        assert given.time_limit_s == begun[-1] and len(begun) > 1
        clock.spend(given.time_limit_s)
        return going_on(planned)

    def plan_with(_: object, __: object, given: Settings, ___: object) -> Planned:
        begun.append(given.time_limit_s)
        clock.spend(given.time_limit_s)
        return a_round(len(begun), given)

    monkeypatch.setattr(rounds, "plan_with", plan_with)
    monkeypatch.setattr(rounds, "refined", refined)
    with clock.counting():
        limited = replace(settings, time_limit_s=limit_s)
        found = plan_in_rounds((), prepared, limited, means or Means(keep_on_interrupt=keep))
    return found, begun


def slower(planned: Planned, factor: float) -> Planned:
    """The same plan, said to take so many times as long, far from its bound."""
    candidate = planned.solved.candidate
    assert candidate is not None
    replay = replace(candidate.replay, time_us=factor * candidate.replay.time_us)
    solved = replace(
        planned.solved,
        candidate=replace(candidate, replay=replay),
        bound_us=0.5 * candidate.time_us,
    )
    return replace(planned, solved=solved, searched=solved)


def test_the_rounds_of_a_short_limit_are_the_first_ones_of_a_longer_limit(monkeypatch, tight):
    plan = tight[2]
    found = {
        limit_s: run(monkeypatch, tight, lambda *_: slower(plan, 2.0), limit_s=limit_s)[1]
        for limit_s in (1.0, 5.0, 20.0, 600.0)
    }
    longest = found[600.0]
    assert len(longest) > 4
    for limit_s, begun in found.items():
        assert begun == longest[: len(begun)] and sum(begun) <= limit_s
    assert [len(begun) for begun in found.values()] == sorted({len(b) for b in found.values()})


def test_no_round_begins_that_would_end_late_as_the_ones_before_did(monkeypatch, tight):
    """A round of a large graph takes longer than its searches: its plans are lowered and read back."""
    plan = tight[2]

    def made(*_: object) -> Planned:
        clock.spend(3.0)
        return slower(plan, 2.0)

    for limit_s, rounds_run in ((7.0, 1), (20.0, 3)):
        _, begun = run(monkeypatch, tight, made, limit_s=limit_s)
        assert len(begun) == rounds_run
        assert sum(begun) + 3.0 * rounds_run <= limit_s


def test_the_best_of_all_rounds_is_taken(monkeypatch, tight):
    plan = tight[2]
    factors = {1: 3.0, 2: 2.0, 3: 2.5}
    found, begun = run(
        monkeypatch, tight, lambda number, _: slower(plan, factors[number]), limit_s=15.0
    )
    assert len(begun) == 3
    assert found.time_us == pytest.approx(2.0 * plan.time_us)


def test_a_plan_that_is_proved_best_ends_the_rounds(monkeypatch, tight):
    plan = tight[2]
    proved = replace(plan.solved, bound_us=plan.time_us)
    best = replace(plan, solved=proved, searched=proved)
    assert len(run(monkeypatch, tight, lambda *_: best, limit_s=200.0)[1]) == 1


def test_rounds_go_on_as_long_as_a_race_leaves_orders_out(monkeypatch, tight):
    """The bound of the plan's own order says nothing of the others."""
    plan = tight[2]
    proved = replace(slower(plan, 2.0).solved, bound_us=2.0 * plan.time_us)
    best = replace(plan, solved=proved, searched=proved)
    means = Means()

    def reached(number: int, _: Settings) -> Planned:
        assert not means.unreached  # each round looks anew
        if number <= 2:
            means.unreached.add(plan.formulation.problem)
        return best

    _, begun = run(monkeypatch, tight, reached, limit_s=200.0, means=means)
    assert len(begun) == 3


def test_a_later_search_makes_no_rough_plan_again_and_goes_on_from_the_best(monkeypatch, tight):
    prepared, settings, _ = tight
    made: list[Problem] = []
    rough_plan = race.rough_plan

    def making(problem: Problem, *rest: Any) -> Solved:
        made.append(problem)
        return rough_plan(problem, *rest)

    monkeypatch.setattr(race, "rough_plan", making)
    means = Means()
    with clock.counting():
        first = make_plan(prepared, replace(settings, time_limit_s=4.0), means)
        count = len(made)
        assert count and means.rough and means.best
        again = make_plan(prepared, replace(settings, time_limit_s=0.5), means)
    assert len(made) == count
    assert again.step_us == pytest.approx(first.step_us)


@pytest.mark.parametrize("keep", [False, True])
def test_an_interrupt_keeps_the_best_plan_of_earlier_rounds(monkeypatch, tight, keep):
    plan = tight[2]

    def interrupted(number: int, _: Settings) -> Planned:
        if number == 2:
            raise KeyboardInterrupt
        return slower(plan, 2.0)

    if not keep:
        with pytest.raises(KeyboardInterrupt):
            run(monkeypatch, tight, interrupted, limit_s=200.0)
        return
    found, begun = run(monkeypatch, tight, interrupted, limit_s=200.0, keep=True)
    assert len(begun) == 2 and found.solved.is_interrupted


def test_what_an_interrupted_round_found_is_kept_if_it_is_better(monkeypatch, tight):
    plan = tight[2]

    def interrupted(number: int, _: Settings) -> Planned:
        return slower(plan, 2.0) if number == 1 else slower(plan, 1.5).interrupted()

    found, begun = run(monkeypatch, tight, interrupted, limit_s=200.0, keep=True)
    assert len(begun) == 2 and found.solved.is_interrupted
    assert found.time_us == pytest.approx(1.5 * plan.time_us)


@pytest.mark.parametrize(("bound", "rounds_run"), [(0, 3), (1 << 62, 1)])
def test_the_error_names_the_least_peak_of_all_rounds_until_it_is_proved(
    monkeypatch, tight, bound, rounds_run
):
    numbers: list[int] = []

    def refused(number: int, _: Settings) -> Planned:
        numbers.append(number)
        least = {1: 30, 2: 10, 3: 20}[number]
        raise InfeasibleBudgetError("no", least_peak_bytes=least, bound_bytes=bound)

    with pytest.raises(InfeasibleBudgetError) as error:
        run(monkeypatch, tight, refused, limit_s=10.0)  # nothing to go on from
    assert len(numbers) == rounds_run
    assert error.value.least_peak_bytes == (10 if rounds_run == 3 else 30)


def test_a_refusal_of_a_short_round_is_forgotten_once_there_is_a_plan(monkeypatch, tight):
    plan = tight[2]

    def late(number: int, _: Settings) -> Planned:
        if number != 2:
            raise InfeasibleBudgetError("no", least_peak_bytes=1)
        return slower(plan, 2.0)

    found, begun = run(monkeypatch, tight, late, limit_s=15.0)
    assert len(begun) == 3 and found.time_us == pytest.approx(2.0 * plan.time_us)


def test_what_a_search_finds_that_goes_on_is_taken_if_it_is_better(monkeypatch, tight):
    plan = tight[2]
    for factor, taken in ((1.5, 1.5), (3.0, 2.0)):
        found, _ = run(
            monkeypatch,
            tight,
            lambda *_: slower(plan, 2.0),
            limit_s=5.0,
            going_on=lambda _, factor=factor: slower(plan, factor),
        )
        assert found.time_us == pytest.approx(taken * plan.time_us)


def test_no_search_goes_on_where_the_host_budget_may_bind(monkeypatch, tight):
    prepared, settings, plan = tight
    levers = replace(prepared.request.levers, host_budget="1GB")
    bounded = replace(prepared, request=replace(prepared.request, levers=levers))

    def never(_: Planned) -> Planned:
        raise AssertionError

    _, begun = run(
        monkeypatch,
        (bounded, settings, plan),
        lambda *_: slower(plan, 2.0),
        limit_s=20.0,
        going_on=never,
    )
    assert len(begun) > 2


def test_a_plan_that_a_search_goes_on_from_gets_better_and_holds(tight):
    """From the plan that copies every tensor out."""
    prepared, settings, plan = tight
    state = new_state(plan.formulation.problem, SearchSettings(limit_s=1.0))
    run_engine(EverythingSwapped(), state, after(1.0))
    rough = solved_of(state)
    assert rough.candidate is not None and rough.candidate.time_us > plan.time_us
    first = lowered_plan(prepared, settings, plan.base, plan.formulation, rough, plan.orders)
    with clock.counting():
        found = refined(first, replace(settings, time_limit_s=3.0), Means())
    assert found.holds and found.spare_bytes >= 0
    assert found.prepared is prepared and found.orders == plan.orders
    assert found.is_better(first) and not first.is_better(found)


def test_ctrl_c_ends_a_search_that_goes_on_and_keeps_the_plan(monkeypatch, tight):
    plan = tight[2]

    def interrupted(_: Planned) -> Planned:
        raise KeyboardInterrupt

    found, begun = run(
        monkeypatch,
        tight,
        lambda *_: slower(plan, 2.0),
        limit_s=200.0,
        keep=True,
        going_on=interrupted,
    )
    assert len(begun) == 2 and found.solved.is_interrupted


def test_a_plan_with_other_numbers_must_be_worth_them(monkeypatch, tight):
    """A plan of half types that is 0.5% quicker than the exact one of another round is not taken."""
    plan = tight[2]
    for factor, is_taken in ((0.995, False), (0.98, True)):
        halved = replace(plan, prepared=replace(plan.prepared, halved=("x",)))
        made = {1: slower(plan, 2.0), 2: slower(halved, 2.0 * factor)}
        found, begun = run(
            monkeypatch, tight, lambda number, _, made=made: made[number], limit_s=5.0
        )
        assert len(begun) == 2 and bool(found.prepared.halved) is is_taken


def test_without_a_plan_the_last_round_gets_all_the_time_that_is_left(monkeypatch, tight):
    limits: list[float] = []

    def refused(_: int, given: Settings) -> Planned:
        limits.append(given.time_limit_s)
        raise InfeasibleBudgetError("no", least_peak_bytes=1, bound_bytes=1)

    with pytest.raises(InfeasibleBudgetError):
        run(monkeypatch, tight, refused, limit_s=20.0)
    assert limits[-1] > limits[-2] and sum(limits) == pytest.approx(20.0, abs=0.1)


def test_a_refusal_that_no_search_made_ends_the_rounds(monkeypatch, tight):
    numbers: list[int] = []

    def refused(number: int, _: Settings) -> Planned:
        numbers.append(number)
        raise InfeasibleBudgetError("the host budget is too small")

    with pytest.raises(InfeasibleBudgetError, match="host budget"):
        run(monkeypatch, tight, refused, limit_s=200.0)
    assert numbers == [1]


@pytest.mark.parametrize("late_first", [True, False])
def test_the_error_is_not_for_want_of_time_if_one_round_had_enough(monkeypatch, tight, late_first):
    def refused(number: int, _: Settings) -> Planned:
        kind = TimeLimitError if (number == 1) is late_first else InfeasibleBudgetError
        raise kind("no", least_peak_bytes=number, bound_bytes=1)

    with pytest.raises(InfeasibleBudgetError) as error:
        run(monkeypatch, tight, refused, limit_s=2.5)
    assert not isinstance(error.value, TimeLimitError)


def test_a_budget_of_live_bytes_on_cuda_takes_the_arena_that_its_plan_needs(monkeypatch):
    """No order is looked for that fits a smaller one, and the plan says what it needs."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("planner.pipeline.solve.trying.fitted_plan", never)
    monkeypatch.setattr("planner.pipeline.solve.fitting.fit", never)
    over = 0
    for budget in ("55%", "60%", "65%"):
        plan = planner.optimize(
            ZOO / "gpt.onnx",
            budget=budget,
            budget_of="live",
            time_limit_s=1.0,
            reproducible=True,
            dry_run=True,
            **CARD,
        ).plan
        assert plan.arena is not None and plan.planned.peak_bytes <= plan.budget_bytes
        assert plan.arena.first_region_bytes <= plan.arena.max_bytes
        assert plan.arena.max_bytes >= plan.budget_bytes // 256 * 256
        is_over = plan.arena.first_region_bytes > plan.budget_bytes
        said = f"arena is predicted to need {format_bytes(plan.arena.first_region_bytes)}"
        assert any(said in note for note in plan.assumptions) is is_over
        over += is_over
    assert over


def test_a_search_that_longer_ones_follow_leaves_the_last_resort_to_them(monkeypatch, tight):
    """On a busy machine the last resort of a short round left no time for a longer one."""
    prepared, settings, _ = tight
    resorts: list[float] = []
    found = least_plan._least_alone
    monkeypatch.setattr(
        least_plan, "_least_alone", lambda *given: resorts.append(given[-1]) or found(*given)
    )
    short = replace(settings, budget_bytes=least_possible_peak(prepared), time_limit_s=1e-6)
    with pytest.raises(TooShortError) as error:
        make_plan(prepared, short, Means(until=clock.now() + 100.0))
    assert not resorts and error.value.least_peak_bytes > short.budget_bytes
    with pytest.raises(InfeasibleBudgetError) as error:
        make_plan(prepared, short, Means())
    assert resorts and not isinstance(error.value, TooShortError)


def test_without_a_plan_the_last_round_takes_the_last_resort(monkeypatch, tight):
    prepared, settings, plan = tight
    untils: list[float] = []

    def plan_with(_: object, __: object, given: Settings, means: Means) -> Planned:
        untils.append(means.until)
        clock.spend(given.time_limit_s)
        if means.until:
            raise TooShortError("too short", least_peak_bytes=1)
        return plan

    monkeypatch.setattr(rounds, "plan_with", plan_with)
    with clock.counting():
        limited = replace(settings, time_limit_s=5.0)
        assert plan_in_rounds((), prepared, limited, Means()) is plan
    assert len(untils) > 2 and all(untils[:-1]) and not untils[-1]


def test_a_last_resort_that_failed_is_not_made_again(monkeypatch, tight):
    """Its least budget was tried; that of a search which was too short was not."""
    prepared, settings, _ = tight
    calls = 0

    def plan_with(_: object, __: object, given: Settings, means: Means) -> Planned:
        nonlocal calls
        calls += 1
        clock.spend(given.time_limit_s)
        if means.until:
            raise TooShortError("too short", least_peak_bytes=1)
        raise TimeLimitError("late", least_peak_bytes=2)

    monkeypatch.setattr(rounds, "plan_with", plan_with)
    with clock.counting(), pytest.raises(TimeLimitError) as error:
        plan_in_rounds((), prepared, replace(settings, time_limit_s=5.0), Means())
    assert error.value.least_peak_bytes == 2 and calls == 3
    with clock.counting(), pytest.raises(TimeLimitError):
        plan_in_rounds((), prepared, replace(settings, time_limit_s=0.1), Means())
    assert calls == 4


def test_a_lever_hands_on_that_a_search_was_too_short(monkeypatch, tight):
    prepared, settings, _ = tight
    request = replace(prepared.request, levers=Levers(cast_saved="fp16"))
    asked = replace(prepared, request=request)
    late = replace(settings, budget_bytes=least_possible_peak(prepared), time_limit_s=1e-6)
    with pytest.raises(TooShortError):
        plan_with((Halves(),), asked, late, Means(until=clock.now() + 100.0))


def test_one_search_is_made_however_late_it_is(monkeypatch, tight):
    """On a busy machine a short round was over before any order was searched in."""
    prepared, settings, _ = tight
    monkeypatch.setattr(trying, "POLICY", replace(trying.POLICY, late_trials=0))
    found = make_plan(prepared, replace(settings, time_limit_s=1e-6), Means())
    assert found.holds and found.spare_bytes >= 0
