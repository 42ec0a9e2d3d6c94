"""Patience of a search that is a later part of a wait: counted from when that began."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve import planning
from planner.request import Costs, Request
from planner.search.stop import Patience

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


@pytest.mark.parametrize("waited_s", [None, 50.0])
def test_a_later_part_has_waited_since_the_first_began(waited_s, monkeypatch):
    begun: list[float] = []

    def patience(*, since: float, per_s: float) -> Patience:
        begun.append(since)
        return Patience(since=since, per_s=per_s)

    monkeypatch.setattr(planning, "Patience", patience)
    prepared = prepare(Request(model=MODEL, budget="80%", costs=Costs(calibrate="never")))
    now = time.monotonic()
    since = None if waited_s is None else now - waited_s
    settings = replace(settings_of(prepared), since=since, time_limit_s=1.0)
    found = planning.make_plan(prepared, settings, planning.Means())
    assert found.solved.candidate is not None and begun
    if since is None:
        assert all(moment >= now for moment in begun)
    else:
        assert set(begun) == {since}
