"""A plan of which nodes were taken is made again in the most promising base orders, and in all where
nothing fits in these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InfeasibleBudgetError
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import Settings, settings_of
from planner.pipeline.solve import planning, trying
from planner.pipeline.solve.orders import BaseOrder
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.policy import POLICY
from planner.request import Costs, Request
from planner.runtime.optimizers.fusion_pins import TakenError

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "gpt.onnx"


@pytest.fixture(scope="module")
def asked() -> tuple[Prepared, Settings]:
    request = Request(model=MODEL, budget="70%", costs=Costs(calibrate="never"))
    prepared = prepare(request)
    return prepared, replace(settings_of(prepared), time_limit_s=10.0)


def recording(patch: pytest.MonkeyPatch) -> list[tuple[BaseOrder, ...]]:
    """The base orders that each search compares."""
    seen: list[tuple[BaseOrder, ...]] = []
    race = planning._race

    def noted(forms, *rest):
        seen.append(tuple(forms))
        return race(forms, *rest)

    patch.setattr(planning, "_race", noted)
    return seen


def taken_at_first(patch: pytest.MonkeyPatch) -> list[BaseOrder]:
    """Nodes of the first plan that is lowered are taken; the base orders of all that are."""
    lowered: list[BaseOrder] = []
    lower = trying.lowered_plan

    def lowering(prepared, settings, base, *rest) -> Planned:
        lowered.append(base)
        if len(lowered) == 1:
            again = next(op for op in prepared.graph.operations if op.recomputable)
            copied = prepared.graph.tensors[again.outputs[0]].name
            raise TakenError("taken", frozenset([copied]), frozenset())
        return lower(prepared, settings, base, *rest)

    patch.setattr(trying, "lowered_plan", lowering)
    return lowered


def test_it_is_made_again_in_the_few_most_promising_orders(asked, monkeypatch) -> None:
    seen, lowered = recording(monkeypatch), taken_at_first(monkeypatch)
    planned = planning.make_plan(*asked, planning.Means())
    assert planned.timeline.peak_bytes <= asked[1].budget_bytes
    first, second = seen
    assert len(first) > POLICY.again_orders == len(second)
    assert second[0] == lowered[0]
    assert set(second) < set(first)


def test_where_nothing_fits_in_these_all_are_searched_in(asked, monkeypatch) -> None:
    seen, _ = recording(monkeypatch), taken_at_first(monkeypatch)
    solve_all = trying.TrialSearch.solve_all

    def solving(search: trying.TrialSearch) -> None:
        if len(search.forms) == POLICY.again_orders:
            raise InfeasibleBudgetError("nothing fits")
        solve_all(search)

    monkeypatch.setattr(trying.TrialSearch, "solve_all", solving)
    planned = planning.make_plan(*asked, planning.Means())
    assert planned.timeline.peak_bytes <= asked[1].budget_bytes
    assert [len(orders) for orders in seen] == [len(seen[0]), POLICY.again_orders, len(seen[0])]
