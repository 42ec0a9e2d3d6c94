"""`planner problem` and `planner solve` end to end: a model's problem, solved without the model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.order.reorder import peak_of
from planner.plan.problem import Action, ActionKind, Problem
from planner.plan.problemfile import problem_to_json, read_problem
from planner.portfolio.params import params_text, read_params
from planner.portfolio.table import POLICY
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity
from tests.process import started

ZOO = Path(__file__).parents[2] / "models" / "zoo"


@pytest.fixture(scope="module")
def problem_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "resnet18.json"
    model = str(ZOO / "resnet18.onnx")
    assert main(["problem", model, "-o", str(path), "--hardware", "a100-40gb", "-q"]) == 0
    return path


def solve(path: Path, *options: str) -> int:
    return main(["solve", str(path), "--time-limit", "1", *options])


@pytest.mark.parametrize("command", ["problem", "solve"])
def test_help_has_examples(command: str, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"planner {command} {'model.onnx' if command == 'problem' else 'problem.json'}" in out


def test_nothing_heavy_is_imported_for_the_help():
    code = (
        "import sys\nfrom planner.cli.main import main\n"
        "main(['problem', '--help']); main(['solve', '--help'])\n"
        "heavy = {'numpy', 'onnx_ir', 'ortools', 'msgspec'} & set(sys.modules)\n"
        "sys.stderr.write(' '.join(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_problem_of_a_model_has_its_own_peak_as_its_capacity(problem_path: Path):
    problem = read_problem(problem_path)
    assert problem.name == "resnet18"
    assert problem.capacity_bytes == peak_of(problem, range(len(problem.ops)))
    assert problem.allow_swap
    assert problem.swap_out_bytes_per_s == 2.5e10


def test_a_problem_of_the_cpu_has_no_copies_unless_they_are_asked_for(tmp_path: Path, capsys):
    path, model = tmp_path / "p.json", str(ZOO / "mlp_adamw.onnx")
    assert main(["problem", model, "-o", str(path), "-q"]) == 0
    plain = read_problem(path)
    assert not plain.allow_swap and plain.allow_recompute
    assert solve(path, "--budget", "95%", "--json") == 0
    assert json.loads(capsys.readouterr().out)["swap_mode"] == "none"
    assert solve(path, "--budget", "95%", "--swap", "only") == 2
    assert "planner problem --swap auto" in capsys.readouterr().err
    assert main(["problem", model, "-o", str(path), "-q", "-f", "--swap", "auto"]) == 0
    copied = read_problem(path)
    assert copied.allow_swap and copied.without_swaps() == plain
    assert main(["problem", model, "-o", str(path), "-q", "-f", "--swap", "only"]) == 0
    assert not read_problem(path).allow_recompute


def test_the_best_order_has_no_higher_peak(problem_path: Path, tmp_path: Path):
    path = tmp_path / "best.json"
    model = str(ZOO / "resnet18.onnx")
    arguments = ["problem", model, "-o", str(path), "--order", "best", "--time-limit", "5"]
    assert main([*arguments, "--hardware", "a100-40gb"]) == 0
    best, own = read_problem(path), read_problem(problem_path)
    assert best.capacity_bytes <= own.capacity_bytes
    assert sorted(op.name for op in best.ops) == sorted(op.name for op in own.ops)


def actions_of(data: dict) -> list[Action]:
    return [Action(kind=ActionKind(kind), target=target) for kind, target in data["actions"]]


@pytest.mark.parametrize("swap", ["none", "auto", "only"])
@pytest.mark.parametrize("overlap", ["--overlap", "--no-overlap"])
def test_the_schedule_does_what_the_figures_say(
    swap: str, overlap: str, problem_path: Path, tmp_path: Path, capsys
):
    output = tmp_path / "solution.json"
    options = ["--budget", "75%", "--swap", swap, overlap, "--json", "-o", str(output)]
    assert solve(problem_path, *options) == 0
    data = json.loads(output.read_text())
    printed = json.loads(capsys.readouterr().out)
    assert printed == {k: v for k, v in data.items() if k != "actions"}
    problem = replace(
        read_problem(problem_path),
        overlap=overlap == "--overlap",
        capacity_bytes=data["capacity_bytes"],
    )
    replay = simulate(problem, actions_of(data))
    assert data["capacity_bytes"] == data["base_peak_bytes"] * 75 // 100
    assert replay.peak_bytes == data["peak_bytes"] <= data["capacity_bytes"]
    assert replay.time_us == pytest.approx(data["time_us"])
    assert data["base_us"] <= data["time_us"]
    assert data["bound_us"] <= data["time_us"] * (1 + 1e-9)
    assert (data["swap_out_bytes"] == 0) or swap != "none"
    assert (data["recomputed_ops"] == 0) or swap != "only"


@pytest.mark.parametrize("swap", ["none", "auto", "only"])
@pytest.mark.parametrize("overlap", ["--overlap", "--no-overlap"])
def test_a_machine_that_stands_still_is_no_reason_for_no_plan(
    swap: str, overlap: str, problem_path: Path, tmp_path: Path, capsys
):
    output = tmp_path / "solution.json"
    options = ["--budget", "75%", "--swap", swap, overlap, "--time-limit", "0.0001", "-v"]
    assert solve(problem_path, *options, "-o", str(output)) == 0
    out = capsys.readouterr().out
    assert ("eviction" if swap == "none" else "everything-swapped") in out
    data = json.loads(output.read_text())
    assert data["peak_bytes"] <= data["capacity_bytes"]


def test_the_text_says_what_was_found(problem_path: Path, capsys):
    assert solve(problem_path, "--budget", "75%", "--swap", "none") == 0
    short = capsys.readouterr().out
    assert solve(problem_path, "--budget", "75%", "--swap", "none", "-v") == 0
    figures, engines = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in short.splitlines()] == [
        line.split()[0] for line in figures.splitlines()
    ]
    lines = dict(line.split(maxsplit=1) for line in figures.splitlines())
    assert list(lines) == [
        "Problem", "Budget", "Peak", "Time", "Added", "Recomputed", "Bound", "holds", "Search"
    ]  # fmt: skip
    assert lines["Problem"].startswith("resnet18, ")
    assert lines["Budget"].startswith("75% = ")
    assert "gap" in lines["Bound"] and "the problem's own times" in lines["Time"]
    title, head, *rows = engines.splitlines()
    assert title == "Engines"
    assert head.split() == ["engine", "seconds", "better", "plans", "bound", "raised"]
    assert "greedy" in [row.split()[0] for row in rows]


def test_each_engine_says_what_it_did(problem_path: Path, tmp_path: Path, capsys):
    params = tmp_path / "params.toml"
    params.write_text("[engines.lp-rounding]\nenabled = false\n[engines.refine]\nuntil = 0.9\n")
    assert solve(problem_path, "--budget", "75%", "--json", "--params", str(params)) == 0
    data = json.loads(capsys.readouterr().out)
    names = [engine["name"] for engine in data["engines"]]
    assert "greedy" in names
    assert "lp-rounding" not in names
    assert sum(engine["seconds"] for engine in data["engines"]) <= data["solve_s"] + 0.1
    assert sum(engine["improvements"] for engine in data["engines"]) >= 1


def test_the_params_that_are_printed_are_those_that_hold(tmp_path: Path, capsys):
    assert main(["solve", "--print-params"]) == 0
    params = tmp_path / "params.toml"
    params.write_text(capsys.readouterr().out)
    assert read_params(params) == POLICY


def test_tables_of_what_is_not_done_here_are_said_to_change_nothing(
    problem_path: Path, tmp_path: Path, capsys
):
    params = tmp_path / "params.toml"
    for text, said in (
        (params_text(), ""),
        ("[race]\nshare = 0.3\n", f"[race] of {params} changes nothing in this command"),
        ("[frontier]\nkept_orders = 3\n[race]\nmin_s = 1", "[race] and [frontier] of "),
    ):
        params.write_text(text)
        arguments = ("--budget", "80%", "--time-limit", "1", "--json", "--params", str(params))
        assert solve(problem_path, *arguments) == 0
        err = capsys.readouterr().err
        assert said in err
        assert ("nothing" in err) == bool(said)


def test_an_engine_that_does_not_exist(problem_path: Path, tmp_path: Path, capsys):
    params = tmp_path / "params.toml"
    params.write_text("[engines.magic]\n")
    assert solve(problem_path, "--budget", "75%", "--params", str(params)) == 2
    assert "no engine 'magic'" in capsys.readouterr().err


def test_without_a_budget_the_files_own_capacity_holds(problem_path: Path, capsys):
    assert solve(problem_path, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["capacity_bytes"] == data["base_peak_bytes"]
    assert data["time_us"] == data["base_us"]
    assert data["budget_text"] is None


def test_a_budget_that_no_plan_meets(problem_path: Path, tmp_path: Path, capsys):
    output = tmp_path / "solution.json"
    assert solve(problem_path, "--budget", "1%", "-o", str(output)) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("planner: error: no plan found fits ")
    assert "no plan in this base order can be below" in err
    assert err.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["solve", "none.json", "--budget", "60%"], 2, "problem none.json does not exist"),
        (["solve", "bad.json", "--budget", "60%"], 3, "bad.json is not a problem file"),
        (["solve", "good.json", "--budget", "60"], 2, "budget '60' "),
        (["solve", "good.json", "--budget", "0%"], 2, "budget '0%' "),
        (["solve", "good.json", "--time-limit", "0"], 2, "--time-limit 0 must be"),
        (["solve", "good.json", "-o", "good.json"], 2, "output good.json is an input"),
        (["solve", "good.json", "-o", "bad.json"], 2, "output bad.json exists"),
        (["solve", "good.json", "--swap", "serial"], 2, "Invalid value"),
        (["problem", "none.onnx"], 2, "model none.onnx does not exist"),
        (["problem", "bad.json", "-o", "no/such.json"], 2, "output folder no does not exist"),
        (["problem", "bad.json", "--dim", "n"], 2, "--dim 'n' is not NAME=N"),
        (["problem", "bad.json", "--order", "any"], 2, "Invalid value"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_their_exit_code(
    arguments: list[str], status: int, message: str, problem_path, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{}")
    Path("good.json").write_bytes(problem_path.read_bytes())
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"planner: error: {message}")
    assert err.count("\n") == 1


def test_by_default_the_problem_is_named_after_the_model(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["problem", str(ZOO / "mlp_adamw.onnx")]) == 0
    assert capsys.readouterr().err.startswith("planner: wrote mlp_adamw.problem.json: ")
    problem: Problem = read_problem(Path("mlp_adamw.problem.json"))
    assert problem_to_json(problem) == Path("mlp_adamw.problem.json").read_text(encoding="utf-8")


def test_ctrl_c_gives_the_best_plan_so_far(tmp_path: Path):
    problem, output = tmp_path / "problem.json", tmp_path / "solution.json"
    model = str(ZOO / "gpt.onnx")
    assert main(["problem", model, "-o", str(problem), "--hardware", "a100-40gb", "-q"]) == 0
    arguments = ["solve", str(problem), "--budget", "55%", "--swap", "none", "-v"]
    process = started(*arguments, "--time-limit", "600", "-o", str(output))
    assert process.stderr is not None
    try:
        for line in process.stderr:  # a plan was found, and nothing is proved yet
            if "% time" in line:
                break
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "Traceback" not in errors
    assert process.returncode == 0
    figures = json.loads(output.read_text())
    assert figures["interrupted"] or figures["gap"] == 0.0
    assert figures["solve_s"] < 300
    replay = simulate(
        at_capacity(read_problem(problem).without_swaps(), figures["capacity_bytes"]),
        actions_of(figures),
    )
    assert replay.peak_bytes == figures["peak_bytes"] <= figures["capacity_bytes"]
    assert replay.time_us == pytest.approx(figures["time_us"])
    assert "Search" in said
