"""What the report proposes follows from its numbers, and every command is one that planner takes."""

import dataclasses
import shlex

import pytest
import typer.main

from planner.cli.app import app
from planner.report.next_steps import next_steps
from planner.report.payload import optimize_payload
from tests.report import examples

COMMANDS = typer.main.get_command(app)


def steps_of(result):
    return next_steps(result, optimize_payload(result)["budget_preview"])


def parsed(command: str):
    """The parameters that the command line's own parser reads; it raises for any that it has not."""
    planner, name, *rest = shlex.split(command)
    assert planner == "planner"
    return COMMANDS.commands[name].make_context(name, rest).params


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"swap_mode": "none", "hardware": "a100-40gb", "reserve_bytes": 4096, "dims": {"n o": 3}},
        {"budget_text": "5% slower", "cost_source": "roofline of cpu", "gap": 0.2},
        {"budget_text": "2GiB", "order_target": "priority", "ort_optimized": False},
    ],
)
def test_every_command_is_one(changes, verified):
    result = examples.optimize_result(verified=verified)
    result = dataclasses.replace(result, plan=dataclasses.replace(result.plan, **changes))
    commands = [step["command"] for step in steps_of(result) if step["command"]]
    assert commands
    for command in commands:
        read = parsed(command)
        assert str(read.get("model") or read["original"]) == str(result.model_path)
        if "swap" in read and "swap_mode" in changes:
            assert read["swap"] == changes["swap_mode"]
        if "hardware" in read and "hardware" in changes:
            assert read["hardware"] == changes["hardware"]
        if "reserve" in read and "reserve_bytes" in changes:
            assert read["reserve"] == f"{changes['reserve_bytes']}B"


def test_a_budget_that_costs_no_time_is_named():
    result = examples.optimize_result()
    points = optimize_payload(result)["budget_preview"]["frontier"]["points"]
    assert points[-1]["slowdown"] == 0
    wanted = f"--budget {points[-1]['budget_bytes']}B"
    assert any(wanted in (step["command"] or "") for step in steps_of(result))


def test_a_tight_plan_is_not_asked_for_more_time():
    result = examples.optimize_result()
    for gap, asked in ((0.0, False), (0.5, True)):
        plan = dataclasses.replace(result.plan, gap=gap)
        steps = steps_of(dataclasses.replace(result, plan=plan))
        assert any("--time-limit" in (step["command"] or "") for step in steps) == asked


def test_an_unverified_model_is_to_be_verified_first():
    first = steps_of(examples.optimize_result(verified=False))[0]
    assert first["command"].startswith("planner verify ")
    assert not any(
        "planner verify" in (step["command"] or "") for step in steps_of(examples.optimize_result())
    )
