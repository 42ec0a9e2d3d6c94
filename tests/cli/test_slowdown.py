"""`--max-slowdown`: the least peak within it, and which of two limits binds."""

from __future__ import annotations

import json

import pytest

from models import zoo
from planner.cli.main import main

MODEL = str(zoo.path("mlp_adamw"))
COMMON = ["--swap", "none", "--time-limit", "2", "--dry-run", "-q"]


def planned(capsys, *options: str) -> dict:
    assert main(["optimize", MODEL, *COMMON, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_least_peak_within_a_slowdown(capsys):
    peaks = []
    for text, limit in (("3%", 1.03), ("15%", 1.15)):
        document = planned(capsys, "--max-slowdown", text)
        head, plan = document["headline"], document["plan"]
        assert head["predicted_time_ratio"] <= limit
        assert head["peak_after_bytes"] <= head["budget_bytes"] < head["peak_before_bytes"]
        assert (plan["max_slowdown"], plan["binds"]) == (pytest.approx(limit - 1), "slowdown")
        peaks.append(head["peak_after_bytes"])
    assert peaks[1] < peaks[0]
    # a little less memory than the least found within 3% costs more than 3%
    document = planned(capsys, "--budget", f"{int(0.97 * peaks[0])}B")
    assert document["headline"]["predicted_time_ratio"] > 1.03


def test_both_limits(capsys):
    document = planned(capsys, "--budget", "80%", "--max-slowdown", "50%")
    assert document["plan"]["binds"] == "budget"
    assert document["plan"]["max_slowdown"] == 0.5
    assert main(["optimize", MODEL, *COMMON, "--budget", "80%", "--max-slowdown", "0.1%"]) == 4
    said = capsys.readouterr().err
    assert "the slowdown binds" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a --budget"),
        (["--max-slowdown", "5"], "such as 5%"),
        (["--max-slowdown", "-5%"], "such as 5%"),
        (["--max-slowdown", "fast"], "such as 5%"),
    ],
)
def test_limits_that_are_not_understood(options, said, capsys):
    assert main(["optimize", MODEL, *COMMON, *options]) == 2
    assert said in capsys.readouterr().err
