"""`planner diff` and `planner apply` on what `planner optimize` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.cli.main import main

ZOO = Path(__file__).parents[2] / "models" / "zoo"


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> dict[str, str]:
    """Plans of mlp_adamw at two budgets."""
    folder = tmp_path_factory.mktemp("plans")
    found = {}
    for budget in ("95%", "80%"):
        found[budget] = str(folder / f"{budget}.json")
        planner.optimize(
            ZOO / "mlp_adamw.onnx",
            budget=budget,
            swap="none",
            time_limit_s=0.5,
            verify=False,
            output=folder / f"{budget}.onnx",
            plan_path=found[budget],
        )
    return found


def test_json_says_what_changed(plans, capsys):
    assert main(["diff", plans["95%"], plans["80%"], "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and found["schema"] == "planner.diff/1"
    a, b = (json.loads(Path(plans[budget]).read_text()) for budget in ("95%", "80%"))
    peak = found["peak"]
    assert peak["difference"] == b["planned"]["peak_bytes"] - a["planned"]["peak_bytes"] < 0
    assert sum(t["difference"] for t in peak["terms"]) == peak["difference"]
    assert peak["complete"]
    changed = {s["setting"] for s in found["settings"]}
    assert {"budget_text", "budget_bytes"} <= changed


def test_text_and_quiet(plans, capsys):
    assert main(["diff", plans["95%"], plans["80%"]]) == 0
    out, _ = capsys.readouterr()
    assert "Why the peak moved" in out and "budget_text" in out
    assert main(["diff", plans["95%"], plans["80%"], "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_thresholds_are_of_the_second_plan(plans, capsys):
    forth, back = [plans["95%"], plans["80%"]], [plans["80%"], plans["95%"]]
    assert main(["diff", *forth, "--fail-if-peak-above", "100%", "-q"]) == 0
    assert main(["diff", *back, "--fail-if-peak-above", "100%", "-q"]) == 7
    assert "the planned peak of the second plan" in capsys.readouterr().err
    assert main(["diff", *back, "--fail-if-slower-than", "0%", "-q"]) == 0


def test_plans_of_different_models_need_to_be_asked_for(plans, tmp_path, capsys):
    other = json.loads(Path(plans["80%"]).read_text())
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**other, "model_sha256": "cd" * 32}))
    assert main(["diff", plans["80%"], str(path)]) == 2
    err = capsys.readouterr().err
    assert other["model_sha256"] in err and "cd" * 32 in err and "--across-models" in err
    assert main(["diff", plans["80%"], str(path), "--across-models"]) == 0
    assert "different models" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("{}", 3, "is not a plan file"),
        ('{"version": 99}', 3, "of version 99, newer than"),
        (None, 2, "does not exist"),
    ],
)
def test_what_is_no_plan_is_refused(content, code, message, plans, tmp_path, capsys):
    path = tmp_path / "no.json"
    if content is not None:
        path.write_text(content)
    assert main(["diff", plans["80%"], str(path)]) == code
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
