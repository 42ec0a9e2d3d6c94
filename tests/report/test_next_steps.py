"""What the report proposes follows from its numbers, and every command is one that planner takes."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
import typer.main

from planner.cli.app import app
from planner.cli.main import main
from planner.defaults import meant
from planner.report import next_steps as next_steps_module
from planner.report.document.outcome import optimize_document
from planner.report.next_steps import ELSEWHERE, next_steps
from planner.targets import TARGETS
from planner.targets.backend import backend_of
from planner.units import parse_budget
from tests.report import examples

MLP = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
COMMANDS = typer.main.get_command(app)


def steps_of(result):
    return list(next_steps(result, optimize_document(result).budget_preview))


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
        {"swap_mode": "none", "dims": {"the x:0": 3}},
        {"swap_mode": "only", "device": "cuda", "hardware": "t4"},
        {"budget_text": "5% slower", "cost_source": "roofline of cpu", "gap": 0.2},
        {"budget_text": "2GiB", "order_target": "priority", "ort_optimized": False},
    ],
)
def test_every_command_is_one(changes, verified):
    result = examples.optimize_result(verified=verified)
    result = dataclasses.replace(result, plan=dataclasses.replace(result.plan, **changes))
    commands = [step.command for step in steps_of(result) if step.command]
    assert commands
    for command in commands:
        read = parsed(command)
        assert str(read.get("model") or read["original"]) == str(result.model_path)
        if "swap" in read and "swap_mode" in changes:
            plan = result.plan
            # a device with a memory of its own has copies unless they are forbidden, a CPU has none
            left_out = meant(
                device=read["device"], hardware=read["hardware"], swap=None, resident=None
            ).swap
            assert (read["swap"] or left_out) == changes["swap_mode"] == plan.swap_mode
            assert (read["device"] or "cpu") == plan.device
        if "hardware" in read and "hardware" in changes:
            assert read["hardware"] == changes["hardware"]
        if "dims" in changes and "dim" in read and not read.get("plan"):
            ((name, size),) = changes["dims"].items()
            assert read["dim"][0].startswith(f"{name}={size}")
        if "reserve" in read and "reserve_bytes" in changes:
            assert read["reserve"] == f"{changes['reserve_bytes']}B"


def test_another_budget_is_asked_of_the_same_levers():
    """A command to copy plans with no lever that was forbidden, and with none fewer."""
    changes = {
        "recompute": False,
        "include": ("layers 3.*", "op:Gemm"),
        "exclude": ("op:Softmax",),
        "min_tensor": "1MiB",
        "cast_saved": "bf16",
        "pattern": False,
        "order_target": "priority",
        "host_budget_bytes": 1 << 30,
        "gap": 0.5,
    }
    result = examples.optimize_result()
    result = dataclasses.replace(result, plan=dataclasses.replace(result.plan, **changes))
    commands = [step.command for step in steps_of(result) if step.command]
    again = [parsed(each) for each in commands if each.startswith("planner optimize ")]
    assert again
    for read in again:
        assert (read["include"], read["exclude"]) == (["layers 3.*", "op:Gemm"], ["op:Softmax"])
        assert (read["recompute"], read["min_tensor"]) == ("none", "1MiB")
        assert (read["cast_saved"], read["no_pattern"], read["order"]) == ("bf16", True, "priority")
        assert (read["host_budget"], read["disk_budget"]) == (f"{1 << 30}B", None)


def test_a_budget_that_costs_no_time_is_named():
    result = examples.optimize_result()
    points = optimize_document(result).budget_preview.frontier.points
    assert points[-1].slowdown == 0
    commands = [s.command for s in steps_of(result) if s.command and "--budget " in s.command]
    typed = [command.split("--budget ")[1].split()[0] for command in commands]
    peak_bytes = result.plan.baseline.peak_bytes
    asked = [parse_budget(text, baseline_bytes=peak_bytes) for text in typed]
    free_bytes = points[-1].budget_bytes
    assert any(free_bytes <= asked_bytes <= 1.01 * free_bytes for asked_bytes in asked)


@pytest.mark.parametrize(("share", "typed"), [(0.8, "80%"), (0.37, "37%"), (0.8051, "805.10kB")])
def test_a_budget_is_typed_as_a_round_share_of_the_peak_or_a_size(share: float, typed: str):
    plan = examples.optimize_result().plan
    baseline = dataclasses.replace(plan.baseline, peak_bytes=1_000_000)
    plan = dataclasses.replace(plan, baseline=baseline)
    found = next_steps_module._typed_budget(plan, int(share * 1_000_000))
    assert found.lower() == typed.lower()
    assert parse_budget(found, baseline_bytes=1_000_000) >= int(share * 1_000_000)


@pytest.mark.parametrize(
    ("said", "typed"), [("64MiB", "64MiB"), ("70%", "67.11MB"), ("5% slower", "67.11MB")]
)
def test_a_larger_size_is_looked_for_within_this_budget_as_it_was_typed(said: str, typed: str):
    result = examples.optimize_result()
    plan = dataclasses.replace(result.plan, budget_text=said, budget_bytes=64 << 20)
    steps = steps_of(dataclasses.replace(result, plan=plan))
    (command,) = [step.command for step in steps if "--budgets" in (step.command or "")]
    found = command.split("--budgets ")[1].split()[0]
    assert found == typed
    assert parse_budget(found, baseline_bytes=1) >= plan.budget_bytes


def test_a_tight_plan_is_not_asked_for_more_time():
    result = examples.optimize_result()
    for gap, asked in ((0.0, False), (0.5, True)):
        plan = dataclasses.replace(result.plan, gap=gap)
        steps = steps_of(dataclasses.replace(result, plan=plan))
        assert any("--time-limit" in (step.command or "") for step in steps) == asked


def test_an_unverified_model_is_to_be_verified_first():
    first = steps_of(examples.optimize_result(verified=False))[0]
    assert first.command.startswith("planner verify ")
    result = examples.optimize_result(verified=False)
    plan = dataclasses.replace(result.plan, dims={"in x:0": 8})
    alone = steps_of(dataclasses.replace(result, plan=plan, plan_path=None))[0]
    assert parsed(alone.command)["dim"] == ["in x:0=8"]
    assert not any(
        "planner verify" in (step.command or "") for step in steps_of(examples.optimize_result())
    )


@pytest.mark.parametrize("device", ["cpu", "webgpu", "cuda", "any"])
@pytest.mark.parametrize("verified", [True, False])
def test_a_command_runs_here_or_says_where(device, verified):
    """What runs a model needs its provider; what plans one, reads a plan or looks at budgets does not."""
    target = TARGETS[device]
    is_here = not target.own_memory or backend_of(target).is_installed()
    result = examples.optimize_result(verified=verified)
    plan = dataclasses.replace(
        result.plan, device=device, gap=0.5, cost_source="roofline of t4", hardware="t4"
    )
    steps = steps_of(dataclasses.replace(result, plan=plan))
    names = set()
    for step in steps:
        if not step.command:
            continue
        _, name, *_ = shlex.split(step.command)
        names.add(name)
        read = parsed(step.command)
        runs = name == "verify" or (name == "optimize" and not read["no_verify"])
        assert step.text.startswith(ELSEWHERE) == (runs and not is_here), step
        if name == "optimize" and is_here:
            assert not read["no_verify"]
    assert {"optimize", "sweep"} <= names and ("verify" in names) != verified


def test_what_follows_a_plan_for_a_gpu_runs_without_one(tmp_path, monkeypatch, capsys):
    """Each command of the outcome that is not for the GPU machine is run as it stands."""
    if backend_of(TARGETS["cuda"]).is_installed():
        pytest.skip("CUDA's provider is here")
    monkeypatch.chdir(tmp_path)
    options = ["--device", "cuda", "--hardware", "t4", "--time-limit", "0.5", "--no-verify", "-q"]
    options += ["--swap", "none", "--feeds", "device"]
    assert main(["optimize", str(MLP), "--budget", "72%", *options, "--json"]) == 0
    ran = 0
    for step in json.loads(capsys.readouterr().out)["next_steps"]:
        if step["command"] is None or step["text"].startswith(ELSEWHERE):
            continue
        words = [*shlex.split(step["command"])[1:], "--time-limit", "0.5", "-q"]
        assert main(words) == 0, (step, capsys.readouterr().err)
        ran += 1
    assert ran >= 3
