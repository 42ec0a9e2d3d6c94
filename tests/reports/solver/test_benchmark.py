"""The benchmark: rows that the simulator confirms or refuses, kept, replaced, and put in tables."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.plan.problem import Action, ActionKind, Problem
from planner.simulate.simulate import simulate
from reports.solver.__main__ import main
from reports.solver.build import base_actions, with_budget
from reports.solver.row import METHODS, Method, Row, judged, measure
from reports.solver.synthetic import irregular
from reports.solver.tables import markdown, rows_of

PROVE: tuple[Method, Method] = ("moccasin", "checkmate")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return with_budget(irregular(14), 75, "recompute")


@pytest.fixture(scope="module")
def row_of(problem: Problem) -> Callable[[Method], Row]:
    """A function from a method to its row, with time for a proof where that is asked for."""

    def found(method: Method) -> Row:
        return measure([problem], method, limit_s=60.0 if method in PROVE else 8.0)

    return functools.cache(found)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_is_what_the_method_found_confirmed(method, problem: Problem, row_of):
    row = row_of(method)
    assert row.get("error") is None
    assert row["confirmed"]
    assert row["ops"] == 14
    assert row["peak_bytes"] <= row["capacity_bytes"] == problem.capacity_bytes
    assert row["added"] > 0
    assert row["gap"] >= 0
    assert 0 < row["read_mib"] <= row["rss_mib"]
    assert ("engines" in row) == (method == "planner")
    if method == "planner":
        assert sum(engine["improvements"] for engine in row["engines"]) >= 1
        assert sum(engine["seconds"] for engine in row["engines"]) <= row["seconds"] + 0.1


def test_methods_that_prove_agree(row_of):
    rows = [row_of(method) for method in PROVE]
    assert all(row["optimal"] for row in rows)
    # a part of what stages allow, so never less
    assert rows[0]["added"] >= rows[1]["added"] - 1e-6


def test_a_row_without_a_plan_says_so():
    row = measure([with_budget(irregular(16), 1, "recompute")], "planner", limit_s=5.0)
    assert "added" not in row
    assert row["least_found_bytes"] > row["capacity_bytes"]


def test_a_process_that_fails_is_an_error(problem: Problem):
    inplace = replace(problem.ops[1], inplace=((0, 1),))
    bad = replace(problem, ops=(problem.ops[0], inplace, *problem.ops[2:]))
    row = measure([bad], "checkmate", limit_s=5.0)
    assert row == {"error": "ValueError: the model knows nothing in place"}


def test_the_simulator_refuses(problem: Problem):
    whole = replace(problem, capacity_bytes=1 << 40)
    actions = base_actions(problem)
    time_us = simulate(whole, actions).time_us
    assert judged(whole, actions, time_us, None)["confirmed"]
    assert "over the budget by" in judged(problem, actions, time_us, None)["error"]
    assert "takes" in judged(whole, actions, time_us + 1, None)["error"]
    assert "not a schedule" in judged(whole, actions[1:], time_us, None)["error"]
    early = [Action(kind=ActionKind.RUN, target=5), *actions]
    assert "not a schedule" in judged(whole, early, time_us, None)["error"]


def test_rows_are_kept_replaced_and_put_in_tables(tmp_path: Path, capsys):
    folder = tmp_path / "solver"
    folder.mkdir()
    common = ["checkmate", "--sizes", "16", "--only", "irregular", "--folder", str(folder)]
    common += ["--limits", "5"]
    main([*common, "--percents", "75"])
    first = rows_of("checkmate", folder)
    assert [row["method"] for row in first] == ["planner", "checkmate"]
    assert all(row["confirmed"] for row in first)
    main([*common, "--percents", "90", "--methods", "planner", "--keep"])
    assert rows_of("checkmate", folder)[:2] == first
    marked = json.loads((folder / "checkmate.json").read_text())
    for row in marked:
        row["mark"] = True
    (folder / "checkmate.json").write_text(json.dumps(marked))
    main([*common, "--percents", "75", "90", "--methods", "planner", "--missing"])
    assert all(row["mark"] for row in rows_of("checkmate", folder))
    main([*common, "--percents", "75", "--methods", "planner", "--keep"])
    assert [row.get("mark") for row in rows_of("checkmate", folder)] == [None, True, True]
    text = (tmp_path / "solver.md").read_text(encoding="utf-8")
    assert text == markdown(folder)
    lines = [line for line in text.splitlines() if line.startswith("| irregular16-0 |")]
    assert len(lines) == 2
    assert f"{100 * first[1]['added']:.3f}%" in lines[0]
    assert "highs: optimal" in lines[0]
    assert "not run" in lines[1]


def test_published_instances_need_their_folder():
    with pytest.raises(SystemExit, match="--instances FOLDER"):
        main(["moccasin"])


def published(method: str, limit_s: float, **figures) -> dict:
    row = {"instance": "net", "percent": 90, "mode": "recompute", "copies": "none", "ops": 9}
    row |= {"method": method, "limit_s": limit_s, "capacity_bytes": 10, "added": 0.01}
    return row | {"peak_bytes": 10, "engine": "x", "seconds": 1.0} | figures


def counts(name: str, calls: int, seconds: float, improvements: int) -> dict:
    return {"name": name, "calls": calls, "seconds": seconds, "improvements": improvements}


def test_what_each_engine_did_is_summed(tmp_path: Path):
    counted = {"engines": [counts("greedy", 1, 0.5, 1), counts("anneal", 2, 3.0, 0)]}
    rows = [
        published("planner", 60.0, engine="greedy"),  # an older row
        published("planner", 300.0, engine="greedy", **counted),
        published("moccasin", 60.0, engine="optimal"),
        {**published("planner", 600.0, engine="cut-lp"), "percent": 80},
    ]
    none = published("planner", 600.0, engine="", **counted)
    del none["added"]
    (tmp_path / "moccasin.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "real.json").write_text(json.dumps([{**none, "hardware": "cpu"}]), encoding="utf-8")
    text = markdown(tmp_path).split("## Engines")[1]
    assert "4, of which 2 have counts" in text
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| greedy | 2 | 1.0 | 2 | 2 |",
        "| cut-lp |  |  |  | 1 |",
        "| anneal | 4 | 6.0 | 0 | 0 |",
    ]


@pytest.mark.parametrize(("proved", "cells"), [(True, "3.000%"), (False, "not run")])
def test_what_is_proved_sooner_stands_beside_the_longer_limit(tmp_path: Path, proved, cells):
    rows = [
        published("planner", 300.0),
        published("moccasin", 60.0, added=0.03, optimal=proved),
    ]
    (tmp_path / "moccasin.json").write_text(json.dumps(rows), encoding="utf-8")
    lines = [line for line in markdown(tmp_path).splitlines() if line.startswith("| net")]
    assert [line.split(" | ")[3] for line in lines] == ["60", "300"]
    assert cells in lines[1]
