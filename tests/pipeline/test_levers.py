"""Levers as data: what is off leaves no trace, and a new one needs nothing but a row in the table."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models import zoo
from planner import api
from planner.errors import InfeasibleBudgetError, UsageError
from planner.pipeline.levers.choose import plan_with
from planner.pipeline.levers.lever import Case, Lever, Means, Rung
from planner.pipeline.levers.policy import Shares
from planner.pipeline.levers.table import LEVERS, check_levers, levers_for, recorded
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import Settings, settings_of
from planner.plan.planfile import Plan
from planner.request import Costs, Levers, Limits, Request
from planner.search.engine import run_engine

MLP = Path(zoo.__file__).parent / "mlp_adamw.onnx"
MOST_FRAMES = 10


def test_a_lever_that_is_off_is_in_no_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `api.optimize` to where an engine of the search gets its turn."""
    stacks: list[list[str]] = []

    def seen(*given: Any) -> None:
        stack = [f"{Path(f.filename).stem}.{f.name}" for f in traceback.extract_stack()[:-1]]
        stacks.append(stack[stack.index("api.optimize") :])
        run_engine(*given)

    monkeypatch.setattr("planner.portfolio.solve.run_engine", seen)
    api.optimize(
        MLP,
        budget="80%",
        output=tmp_path / "planned.onnx",
        verify=False,
        time_limit_s=1.0,
        reproducible=True,
    )
    searches = [stack for stack in stacks if "trying._try" in stack]
    assert searches
    for stack in searches:
        assert len(stack) <= MOST_FRAMES
        assert [frame for frame in stack if frame.startswith("choose.")] == ["choose.plan_with"]


def test_what_is_asked_is_what_may_be_chosen() -> None:
    asked = Levers(resident="auto", split="auto", cast_saved="fp16", fuse="exact")
    prepared = prepare(Request(model=MLP, costs=Costs(calibrate="never"), levers=asked))
    found, noted = levers_for(prepared)
    assert found == LEVERS and noted is prepared
    plain = replace(prepared, request=replace(prepared.request, levers=Levers()))
    assert levers_for(plain)[0] == ()
    assert set(recorded(prepared)) <= set(Plan.__dataclass_fields__)
    records = [set(lever.record(prepared)) for lever in LEVERS]
    assert sum(map(len, records)) == len(set().union(*records)), "each field is one lever's"


class OnlyNotes(Lever):
    """Changes nothing but the notes of a model, which `worth` says is better or not."""

    option = "--only-notes"
    shares = Shares(plain=0.5, quick=0.1, most_quick_s=1.0)

    def __init__(self, *, without: bool, worth: bool) -> None:
        self.without, self.worth = without, worth

    def goes_without(self, case: Case) -> bool:
        return self.without

    def rungs(self, case: Case) -> Iterator[Rung]:
        yield Rung(prepared=case.prepared.noted("first"))
        yield Rung(prepared=case.prepared.noted("second"))

    def prefers(self, case: Case, made: object, plain: object) -> bool:
        return self.worth


@pytest.fixture(scope="module")
def tight() -> tuple[Prepared, Settings]:
    """A model whose plans recompute or swap for much longer than 1% of a step."""
    limits = Limits(time_limit_s=1.0)
    request = Request(model=MLP, budget="82%", costs=Costs(calibrate="never"), limits=limits)
    prepared = prepare(request)
    return prepared, settings_of(prepared)


@pytest.mark.parametrize(
    ("without", "worth", "note"),
    [(True, True, "first"), (True, False, None), (False, True, "first"), (False, False, "first")],
)
def test_a_plan_with_a_lever_has_to_be_better_where_there_is_one_without(
    tight: tuple[Prepared, Settings], without: bool, worth: bool, note: str | None
) -> None:
    planned = plan_with((OnlyNotes(without=without, worth=worth),), *tight, Means())
    notes = {"first", "second"} & {*planned.prepared.graph.assumptions}
    assert notes == ({note} if note else set())


def test_where_nothing_fits_each_rung_was_tried(tight: tuple[Prepared, Settings]) -> None:
    prepared, settings = tight
    said: list[str] = []
    means = Means(progress=said.append)
    with pytest.raises(InfeasibleBudgetError) as error:
        lever = OnlyNotes(without=True, worth=True)
        plan_with((lever,), prepared, replace(settings, budget_bytes=1_000_000), means)
    assert said.count("searching for base orders") == 3
    assert error.value.least_peak_bytes > 1_000_000


@pytest.mark.usefixtures("webgpu_device")
def test_what_a_device_cannot_do_is_refused_or_noted() -> None:
    request = Request(
        model=MLP, device="webgpu", costs=Costs(hardware="rtx-4090", calibrate="never")
    )
    prepared = prepare(replace(request, levers=Levers(split="auto")))
    found, noted = levers_for(prepared)
    assert found == ()
    assert any("nothing was split (--split auto)" in said for said in noted.graph.assumptions)
    half = replace(prepared, request=replace(request, levers=Levers(cast_saved="bf16")))
    with pytest.raises(UsageError, match="no kernel that casts"):
        check_levers(half)
