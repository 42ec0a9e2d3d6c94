"""Two plans compared: hand-built ones, whose differences are known."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from planner.files.structuring import json_text
from planner.plan.planfile import (
    Decision,
    PeakMoment,
    Plan,
    PlannedAction,
    PredictedCost,
    Resident,
)
from planner.report.document.diff import (
    Both,
    DiffDocument,
    FirstDifference,
    Moment,
    Pair,
    diff_document,
)
from planner.report.terminal.diff import print_diff

MIB = 1 << 20


def decision(tensor: str, action: str, size: int = MIB, start: int = 1, cost_us: float = 5.0):
    return Decision(
        tensor=tensor,
        bytes=size,
        category="activation",
        action=action,
        start=start,
        end=start + 3,
        cost_us=cost_us,
        recompute_us=5.0,
        swap_us=7.0,
        why="because",
    )


def schedule(order: str, again: str = "") -> tuple[PlannedAction, ...]:
    first = [PlannedAction(kind="run", target=node) for node in order]
    return (*first, *(PlannedAction(kind="run", target=node, copy=1) for node in again))


def plan(residents: dict[str, int], order: str = "abcdef", again: str = "", **changes) -> Plan:
    """A plan whose peak holds `residents`, 10 B of parameters and 2 B of workspace."""
    here = tuple(
        Resident(tensor=name.split("__")[0], copy=name, bytes=size, category="activation")
        for name, size in residents.items()
    )
    peak = sum(residents.values()) + 12
    cost = PredictedCost(peak_bytes=peak, time_us=100.0)
    listed = sorted(((r.tensor, r.bytes) for r in here), key=lambda item: -item[1])
    fields = {
        "model_name": "m.onnx",
        "model_sha256": "ab" * 32,
        "dims": {},
        "baseline": PredictedCost(peak_bytes=10_000, time_us=100.0),
        "best_order": cost,
        "planned": cost,
        "peak": PeakMoment(
            step=3, node="d", persistent_bytes=10, workspace_bytes=2, residents=here
        ),
        "binding": tuple(listed[:2]),
        "schedule": schedule(order, again),
        **changes,
    }
    return Plan(**fields)


def diff(a: Plan, b: Plan) -> DiffDocument:
    payload = diff_document(a, b, paths=(Path("a.json"), Path("b.json")))
    assert msgspec.json.decode(json_text(payload), type=DiffDocument) == payload
    return payload


def text_of(payload) -> str:
    out = io.StringIO()
    print_diff(payload, Console(file=out, width=200, highlight=False, markup=False))
    return out.getvalue()


def test_a_plan_does_what_it_does():
    same = plan({"x": 5})
    payload = diff(same, dataclasses.replace(same, solve_s=9.0))
    assert payload.sentence == "Both plans do the same."
    assert payload.same_schedule and payload.base_order.equal
    assert payload.settings == payload.tensors == payload.peak.terms == ()


def test_the_step_time_that_is_compared_has_the_caches_in_it():
    a = plan({"x": 5}, planned=PredictedCost(peak_bytes=20, time_us=100.0))
    b = plan({"x": 5}, planned=PredictedCost(peak_bytes=10, time_us=110.0, cache_us=-20.0))
    payload = diff(a, b)
    assert payload.planned["step_us"] == Pair(100.0, 90.0, -10.0)
    assert payload.planned["time_us"].b == 110.0
    assert "from 100.0 µs to 90.0 µs (-10.00%)" in payload.sentence
    (row,) = (
        line for line in text_of(payload).splitlines() if "step time" in line and "from" not in line
    )
    assert "90.0 µs" in row and "-10.0 µs" in row


def test_plans_of_two_calibrations_are_compared_by_ratios():
    before = plan({"x": 100}, baseline=PredictedCost(peak_bytes=10_000, time_us=80.0))
    after = plan({"x": 100}, baseline=PredictedCost(peak_bytes=10_000, time_us=125.0))
    before, after = (
        dataclasses.replace(p, planned=PredictedCost(peak_bytes=112, time_us=time_us))
        for p, time_us in ((before, 88.0), (after, 150.0))
    )
    paths = (Path("a"), Path("b"))
    found = diff_document(before, after, paths=paths)
    assert not found.same_times
    assert found.step_ratio == pytest.approx((150 / 125) / (88 / 80))
    other = dataclasses.replace(after, schedule=schedule("abcdef", "b"))
    assert "from x1.100 to x1.200" in diff_document(before, other, paths=paths).sentence
    # two models have times of their own: their steps are compared as they are
    stranger = dataclasses.replace(after, model_sha256="cd" * 32)
    assert diff_document(before, stranger, paths=paths).step_ratio == pytest.approx(150 / 88)


def test_fates_are_compared_by_tensor_and_by_how_often():
    a = plan(
        {"x": 1},
        decisions=(
            decision("x", "recompute", 3 * MIB),
            decision("y", "recompute"),
            decision("same", "swap"),
            decision("often", "recompute", 2 * MIB),
        ),
    )
    b = plan(
        {"x": 1},
        decisions=(
            decision("x", "swap", 3 * MIB, cost_us=7.0),
            decision("z", "swap"),
            decision("same", "swap", start=50),
            decision("often", "recompute", 2 * MIB),
            decision("often", "recompute", 2 * MIB, start=20),
            decision("often", "swap", 2 * MIB, start=40),
        ),
    )
    rows = {c.tensor: (c.a, c.b, c.cost_us.difference) for c in diff(a, b).tensors}
    assert rows == {
        "x": ("recomputed", "swapped", 2.0),
        "often": ("recomputed", "recomputed 2 times and swapped", 10.0),
        "y": ("recomputed", "kept", -5.0),
        "z": ("kept", "swapped", 5.0),
    }
    assert list(rows) == ["x", "often", "y", "z"]


@pytest.mark.parametrize(
    ("a", "b", "moved", "only_a", "only_b", "first"),
    [
        ("abcdef", "abcdef", 0, "", "", None),
        ("abcdef", "bcdefa", 1, "", "", 0),
        ("abcdef", "fedcba", 5, "", "", 0),
        ("abcdef", "abdcfe", 2, "", "", 2),
        ("abcdef", "abxcde", 0, "f", "x", 2),
        ("abc", "", 0, "abc", "", 0),
    ],
)
def test_base_orders_are_compared(a, b, moved, only_a, only_b, first):
    order = diff(plan({}, a), plan({}, b)).base_order
    assert (order.moved, order.only_a, order.only_b) == (moved, (*only_a,), (*only_b,))
    assert (order.first_difference and order.first_difference.at) == first
    assert order.equal == (first is None)


def test_a_schedule_may_differ_in_the_same_order():
    payload = diff(plan({}, again="a"), plan({}, again="b"))
    assert payload.base_order.equal and not payload.schedule.equal
    assert payload.schedule.first_difference == FirstDifference(6, "run a", "run b")
    assert "Schedule: first difference at action 6: run a / run b" in text_of(payload)


def test_why_the_peak_moved_adds_up():
    a = plan({"x": 100, "y": 50, "z__recompute_1": 8, "z": 8})
    b = plan({"x__swap_in_1": 100, "y": 70, "w": 30, "z": 8})
    peak = diff(a, b).peak
    assert {t.tensor: t.difference for t in peak.terms} == {"w": 30, "y": 20, "z": -8}
    assert peak.complete and peak.not_known_bytes == 0
    assert peak.difference == 42 == sum(t.difference for t in peak.terms)


def test_parameters_and_workspace_are_terms_too():
    a = plan({"x": 100})
    other = PeakMoment(step=9, node="f", persistent_bytes=40, workspace_bytes=0, residents=())
    cost = PredictedCost(peak_bytes=40, time_us=100.0)
    peak = diff(a, dataclasses.replace(a, peak=other, planned=cost)).peak
    assert [(t.tensor, t.difference) for t in peak.terms] == [
        ("x", -100),
        ("(graph inputs and initializers)", 30),
        ("(workspace of the node that runs)", -2),
    ]
    assert peak.at == Both(Moment(3, "d"), Moment(9, "f"))


def test_what_older_files_do_not_tell_is_said():
    a = plan({"x": 100, "y": 50, "s": 9}, peak=None)
    b = plan({"x": 100, "w": 80, "t": 3})
    payload = diff(a, b)
    peak = payload.peak
    assert not peak.complete
    # y may be below what b lists; w would be listed in a if it were there
    assert [(t.tensor, t.difference) for t in peak.terms] == [("w", 80)]
    assert peak.not_known_bytes == peak.difference - 80 == 24 - 80
    assert "-56 B" in text_of(payload) and "not known: a file lists only" in text_of(payload)


def test_a_model_left_as_it_is_has_no_schedule():
    payload = diff(plan({"x": 1}), plan({"x": 1}, schedule=(), unchanged=True))
    assert "No schedule in b" in text_of(payload)


def test_different_models_are_said_to_be():
    payload = diff(plan({}), plan({}, model_sha256="cd" * 32))
    assert not payload.same_model
    assert "ab" * 32 in text_of(payload) and "cd" * 32 in text_of(payload)


def test_the_text_has_the_numbers():
    a = plan({"x": 3 * MIB}, decisions=(decision("gone", "recompute"),), budget_text="60%")
    b = plan({"x": MIB}, decisions=(decision("[red]😀\n", "swap"),), budget_text="50%")
    text = text_of(diff(a, b))
    for said in (
        "(-2.00 MiB)",
        "2 tensors are treated differently",
        "budget_text  60%  50%",
        "recomputed  kept",
        "[red]😀\\n",
        "(peak)",
    ):
        assert said in text


def test_large_plans_are_compared_at_once():
    nodes = [f"n{i}" for i in range(20_000)]
    a = plan({}, schedule=tuple(PlannedAction(kind="run", target=n) for n in nodes))
    b = plan({}, schedule=tuple(PlannedAction(kind="run", target=n) for n in reversed(nodes)))
    assert diff(a, b).base_order.moved == 19_999
