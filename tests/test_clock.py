"""A counted clock: the same plan, to the byte, however fast or busy the machine is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from planner import clock, optimize
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


def test_a_search_that_counts_waits_for_another_of_the_process():
    entered = threading.Event()

    def count():
        with clock.counting():
            entered.set()

    thread = threading.Thread(target=count)
    with clock.counting():
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


def planned(name: str, budget: str, output: Path) -> tuple[bytes, str]:
    """The rewritten model and the plan."""
    words = ["optimize", str(ZOO / f"{name}.onnx"), "--budget", budget, *ASKED, "-o", str(output)]
    assert main(words) == 0
    return output.read_bytes(), output.with_name(f"{output.stem}.plan.json").read_text()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """What is planned here, undisturbed."""
    return planned("mlp_adamw", "75%", tmp_path_factory.mktemp("quick") / "quick.onnx")


def test_the_same_bytes_on_a_slow_machine(
    quick: tuple[bytes, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    replay = Core.replay

    def slowly(*args: Any, **kwargs: Any):
        time.sleep(0.02)
        return replay(*args, **kwargs)

    monkeypatch.setattr(Core, "replay", slowly)
    assert planned("mlp_adamw", "75%", tmp_path / "slow.onnx") == quick


def test_the_same_bytes_where_sets_are_in_another_order(quick: tuple[bytes, str], tmp_path: Path):
    there = tmp_path / "there.onnx"
    code = f"from tests.test_clock import *; planned('mlp_adamw', '75%', Path({str(there)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    assert (there.read_bytes(), (tmp_path / "there.plan.json").read_text()) == quick


@pytest.mark.parametrize("words", [["--calibrate"], ["--workers", "2"]])
def test_what_contradicts_it_is_said(words: list[str], capsys: pytest.CaptureFixture[str]):
    model = str(ZOO / "gpt.onnx")
    assert main(["optimize", model, "--budget", "60%", *ASKED, "--dry-run", *words]) == 2
    assert f"--reproducible {'plans' if words == ['--calibrate'] else 'searches'}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "budget", "limits_s"), [("gpt", "45%", (0.5, 1.0)), ("resnet18", "60%", (0.5, 1.5))]
)
def test_more_time_gives_no_worse_plan(name: str, budget: str, limits_s: tuple[float, ...]):
    """Within 0.5%: a longer race may end in another order."""
    taken = []
    for limit_s in limits_s:
        plan = optimize(
            ZOO / f"{name}.onnx",
            budget=budget,
            reproducible=True,
            time_limit_s=limit_s,
            dry_run=True,
        ).plan
        taken.append(plan.planned.time_us / plan.baseline.time_us)
    assert all(later <= 1.005 * before for before, later in itertools.pairwise(taken)), taken
