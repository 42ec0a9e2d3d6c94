"""A counted clock: the same plan, to the byte, however fast or busy the machine is."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planner import clock, optimize, sweep
from planner.cli.main import main
from planner.plan.problem import run_actions
from planner.search.fast.core import Core
from planner.simulate.simulate import simulate
from tests.native.test_calls import chain

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "models" / "zoo"
ASKED = ("--reproducible", "--time-limit", "0.3", "--no-verify", "-q", "--force")


def test_the_machines_clock_goes_on_by_itself_and_a_counted_one_by_what_is_done():
    clock.spend(1e9)
    assert abs(clock.now() - time.monotonic()) < 60
    with clock.counting():
        begun = clock.now()
        time.sleep(0.01)
        assert clock.now() - begun < 1e-3
        clock.spend(5.0)
        assert 5.0 <= clock.now() - begun < 5.001
    assert not clock.is_counted()


def test_a_loop_that_only_looks_at_a_counted_clock_ends():
    with clock.counting():
        until = clock.now() + 0.1
        while clock.now() < until:
            pass


def test_what_is_replayed_is_counted():
    problem = chain(20, capacity_bytes=1 << 20)
    with clock.counting():
        begun = clock.now()
        simulate(problem, run_actions(range(len(problem.ops))))
        assert clock.now() - begun >= len(problem.ops) * clock.SIMULATED_S


def test_each_thread_counts_its_own_work():
    seen: list[bool] = []
    with clock.counting():
        clock.spend(1e9)
        thread = threading.Thread(target=lambda: seen.append(clock.is_counted()))
        thread.start()
        thread.join()
        with clock.counting():
            assert clock.now() < 1e6
        assert clock.now() > 1e8
    assert seen == [False]


def test_a_capped_count_follows_the_machines_clock_once_its_seconds_have_passed():
    with clock.counting(is_capped=True):
        assert clock.machine_s(7.0) == math.inf
        clock.spend(2.0)
        clock.cap(0.2, due_s=3.0)
        assert clock.now() < 2.01
        assert 0.05 <= clock.machine_s(7.0) <= 0.2
        time.sleep(0.21)
        late = clock.now()
        assert late > 5.0
        time.sleep(0.01)
        assert clock.now() >= late + 0.01
        assert clock.machine_s(7.0) == 7.0
    with clock.counting():
        clock.cap(0.0)
        time.sleep(0.01)
        assert clock.now() < 0.01
        assert clock.machine_s(7.0) == math.inf
    assert clock.machine_s(7.0) == 7.0


def planned(
    name: str, budget: str, output: Path, asked: Sequence[str] = ASKED
) -> tuple[bytes, str]:
    """The rewritten model and the plan."""
    words = ["optimize", str(ZOO / f"{name}.onnx"), "--budget", budget, *asked, "-o", str(output)]
    assert main(words) == 0
    return output.read_bytes(), output.with_name(f"{output.stem}.plan.json").read_text()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """What is planned here, undisturbed."""
    return planned("mlp_adamw", "75%", tmp_path_factory.mktemp("quick") / "quick.onnx")


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[int]:
    """Make the machine slow; the list counts the replays."""
    replay, replays = Core.replay, [0]

    def slowly(*args: Any, **kwargs: Any):
        time.sleep(seconds)
        replays[0] += 1
        return replay(*args, **kwargs)

    monkeypatch.setattr(Core, "replay", slowly)
    return replays


def test_the_same_bytes_on_a_slow_machine(
    quick: tuple[bytes, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    slow(monkeypatch, 0.02)
    assert planned("mlp_adamw", "75%", tmp_path / "slow.onnx") == quick


def test_without_the_option_too_if_the_time_limit_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = ("--no-calibrate", "--time-limit", "60", "--no-verify", "-q", "--force")
    once = planned("mlp_adamw", "90%", tmp_path / "once.onnx", asked)
    slow(monkeypatch, 0.01)
    assert planned("mlp_adamw", "90%", tmp_path / "slow.onnx", asked) == once


def test_a_slow_machine_keeps_the_time_limit_all_the_same(monkeypatch: pytest.MonkeyPatch):
    """By the count alone, the search would replay many times more."""
    replays = slow(monkeypatch, 0.05)
    options = {"budget": "45%", "calibrate": False, "dry_run": True}
    optimize(ZOO / "gpt.onnx", time_limit_s=2.0, **options)
    assert replays[0] < 120


def test_the_same_bytes_where_sets_are_in_another_order(quick: tuple[bytes, str], tmp_path: Path):
    there = tmp_path / "there.onnx"
    code = f"from tests.test_clock import *; planned('mlp_adamw', '75%', Path({str(there)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    assert (there.read_bytes(), (tmp_path / "there.plan.json").read_text()) == quick


@pytest.mark.parametrize("words", [["--calibrate"], ["--disk", "."]])
def test_what_contradicts_it_is_said(words: list[str], capsys: pytest.CaptureFixture[str]):
    model = str(ZOO / "gpt.onnx")
    assert main(["optimize", model, "--budget", "60%", *ASKED, "--dry-run", *words]) == 2
    assert "--reproducible plans" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_points_of_a_sweep_are_the_same_on_a_busy_machine(
    jobs: int, monkeypatch: pytest.MonkeyPatch
):
    """As long as its seconds do not run out. The replays of processes beside are not slow, but it may
    be another one that ends first."""
    monkeypatch.setattr(clock, "cap", lambda *_: None)
    options: dict[str, Any] = {"time_limit_s": 2.0, "calibrate": False, "jobs": jobs}
    budgets = ["75%", "80%", "90%"]
    once = sweep(ZOO / "mlp_adamw.onnx", budgets=budgets, **options)
    assert all(point.plan is not None for point in once.frontiers[0].points)
    slow(monkeypatch, 0.01)
    assert sweep(ZOO / "mlp_adamw.onnx", budgets=budgets, **options) == once


def test_a_sweep_keeps_its_time_limit_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch):
    """By the count alone, the searches would replay many times more."""
    replays = slow(monkeypatch, 0.05)
    options: dict[str, Any] = {"calibrate": False, "jobs": 1, "time_limit_s": 2.0}
    sweep(ZOO / "gpt.onnx", budgets=["45%", "60%"], swap="none", **options)
    assert replays[0] < 250


def test_the_same_solution_on_a_slow_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As long as its seconds do not run out."""
    monkeypatch.setattr(clock, "cap", lambda *_: None)
    problem = str(tmp_path / "problem.json")
    assert (
        main(["problem", str(ZOO / "mlp_adamw.onnx"), "--order", "best", "-o", problem, "-q"]) == 0
    )
    words = ["solve", problem, "--budget", "75%", "--time-limit", "2", "--json", "-q"]

    def solved() -> str:
        capsys.readouterr()
        assert main(words) == 0
        return capsys.readouterr().out

    once = solved()
    slow(monkeypatch, 0.01)
    assert solved() == once


def step_us(name: str, budget: str, limit_s: float) -> float:
    """The predicted step of a plan whose search is counted."""
    options = {"reproducible": True, "dry_run": True, "time_limit_s": limit_s}
    return optimize(ZOO / f"{name}.onnx", budget=budget, **options).plan.planned.time_us


@pytest.mark.parametrize(("name", "budget"), [("gpt", "45%"), ("resnet18", "60%")])
def test_more_time_gives_no_worse_plan(name: str, budget: str):
    """From the first round of searches on, which takes 0.6 s here: a shorter limit is shared out
    otherwise."""
    taken = [step_us(name, budget, limit_s) for limit_s in (0.6, 2.6, 4.4)]
    assert sorted(taken, reverse=True) == taken


@pytest.mark.parametrize(
    ("name", "budgets"),
    [("gpt", ("40%", "50%", "60%")), ("resnet18", ("60%", "70%", "80%"))],
)
def test_more_budget_gives_no_dearer_plan(name: str, budgets: tuple[str, ...]):
    taken = [step_us(name, budget, 2.5) for budget in budgets]
    assert sorted(taken, reverse=True) == taken
