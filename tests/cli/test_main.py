"""The command line end to end, with the public functions replaced by hand-built results."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import onnx
import pytest

import planner
from planner.cli import console
from planner.cli.main import main
from planner.errors import (
    InfeasibleBudgetError,
    Interrupted,
    ModelError,
    TimeLimitError,
    VerificationError,
)
from tests.native.graphs import long_chain
from tests.report import examples

HEAVY = (
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "ortools",
    "bokeh",
    "jinja2",
    "rich",
    "networkx",
    "pandas",
    "sympy",
    "torch",
)


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    return "model.onnx"


@pytest.fixture
def api(monkeypatch):
    """Stands in for planner.api; remembers the calls."""
    calls = []

    def answer(name, value):
        def function(*args, **options):
            calls.append(SimpleNamespace(name=name, args=args, options=options))
            if isinstance(value, BaseException):
                raise value
            return value

        return function

    result = examples.optimize_result()
    fake = SimpleNamespace(
        analyze=answer("analyze", examples.analysis()),
        optimize=answer("optimize", result),
        apply=answer("apply", "model.planned.onnx"),
        verify=answer("verify", result.verification),
        calls=calls,
        answer=answer,
    )
    monkeypatch.setattr(planner, "api", fake, raising=False)
    monkeypatch.setitem(sys.modules, "planner.api", fake)
    return fake


def last_line(text):
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["analyze"],
        ["optimize"],
        ["apply"],
        ["verify"],
        ["export"],
        ["diff"],
        ["explain"],
        ["sweep"],
        ["doctor"],
        ["fit"],
        ["run"],
    ],
)
def test_help(command, snapshot, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command, "--help"]) == 0
    assert capsys.readouterr().out == snapshot


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"planner {planner.__version__}\n"


def test_no_arguments_show_the_help_and_fail(capsys):
    assert main([]) == 2
    assert "Usage: planner" in capsys.readouterr().err


@pytest.mark.parametrize(
    "start",
    [
        "import planner",
        "from planner.cli.main import main; main(['--help']); main(['optimize', '--help'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(start):
    code = (
        f"import sys\n{start}\nsys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("module", ["planner.running.classes", "planner.running.alone_worker"])
def test_what_opens_a_session_imports_no_model_library(module):
    """A script that opens a file, and each process of a verification, begins with this."""
    code = f"import sys, {module}\nsys.stderr.write(' '.join({{'onnx', 'onnx_ir'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("budget", ["0", "-1", "16", "16G", "abc", "150%", "0%", ""])
def test_a_bad_budget_is_one_line_and_no_import(budget, model, capsys):
    assert main(["optimize", model, "--budget", budget]) == 2
    said = last_line(capsys.readouterr().err)
    assert said.startswith(f"planner: error: budget {budget!r} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize", "none.onnx", "--budget", "60%"], "model none.onnx does not exist"),
        (["optimize", ".", "--budget", "60%"], "model . is a folder"),
        (["optimize", "model.onnx"], "give a --budget"),
        (["optimize", "model.onnx", "--device", "cuda"], "give a --budget"),
        (["optimize", "model.onnx", "--device", "cpu", "--hardware", "t4"], "give a --budget"),
        (["optimize", "model.onnx", "--hardware", "t4"], "t4 is a GPU (NVIDIA T4 16 GB), and"),
        (["optimize", "model.onnx", "--device", "cuda", "--hardware", "t4", "--reserve", "16GB"],
         "--reserve 16GB takes all memory"),
        (["analyze", "model.onnx", "--dim", "batch"], "--dim 'batch' is not NAME=N"),
        (["analyze", "model.onnx", "--dim", "n=0"], "--dim 'n=0' is not NAME=N"),
        (["analyze", "model.onnx", "--dim", "n=1", "--dim", "n=2"], "--dim n is given twice"),
        (["analyze", "model.onnx", "--time-limit", "0"], "--time-limit 0 must be a positive"),
        (["analyze", "model.onnx", "--time-limit", "nan"], "--time-limit nan must be a positive"),
        (["analyze", "model.onnx", "--time-limit", "x"], "Invalid value for '--time-limit'"),
        (["analyze", "model.onnx", "-o", "model.onnx"], "output model.onnx is an input"),
        (["analyze", "model.onnx", "-o", "no/such.html"], "output folder no does not exist"),
        (["analyze", "model.onnx", "--frob"], "No such option: --frob"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["optimize", "model.onnx", "--budget", "60%", "--swap", "x"], "Invalid value"),
        (["optimize", "model.onnx", "--budget", "60%", "--reserve", "1"], "--reserve '1' is not"),
        (["verify", "model.onnx", "other.onnx"], "model other.onnx does not exist"),
        (["apply", "model.onnx", "plan.json"], "plan plan.json does not exist"),
    ],
)  # fmt: skip
def test_usage_errors(arguments, message, model, api, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert last_line(err).startswith(f"planner: error: {message}")
    assert not api.calls


def test_a_gpus_memory_is_a_budget(model, api):
    arguments = ["optimize", model, "--device", "cuda", "--hardware", "t4", "--no-verify"]
    assert main(arguments) == 0
    assert main([*arguments, "--reserve", "5%", "--force"]) == 0
    said = [call.options for call in api.calls]
    assert not any("budget" in options for options in said)
    assert "reserve" not in said[0] and said[1]["reserve"] == "5%"


@pytest.mark.parametrize("name", ["model.planned.onnx", "model.plan.json", "model.report.html"])
def test_outputs_that_exist_are_refused_before_any_work(name, model, tmp_path, api, capsys):
    (tmp_path / name).write_text("mine")
    assert main(["optimize", model, "--budget", "60%"]) == 2
    assert f"output {name} exists; pass -f/--force" in last_line(capsys.readouterr().err)
    assert not api.calls
    assert main(["optimize", model, "--budget", "60%", "--force"]) == 0
    assert main(["optimize", model, "--budget", "60%", "--dry-run"]) == 0


def test_outputs_are_named_after_the_model_or_the_output(model, tmp_path, api):
    main(["optimize", model, "--budget", "60%"])
    (tmp_path / "out").mkdir()
    main(["optimize", model, "--budget", "60%", "-o", "out/small.onnx"])
    main(["optimize", model, "--budget", "60%", "-o", "out", "--plan", "p.json"])
    named = [
        [str(call.options[key]) for key in ("output", "plan_path", "report_path")]
        for call in api.calls
    ]
    assert named == [
        ["model.planned.onnx", "model.plan.json", "model.report.html"],
        ["out/small.onnx", "out/small.plan.json", "out/small.report.html"],
        ["out/model.planned.onnx", "p.json", "out/model.report.html"],
    ]


def test_options_reach_the_api(model, api, capsys):
    arguments = "--budget 60% --dim batch=32 --dim seq=128 --swap none --order priority --seed 7"
    more = "--reserve 1MiB --time-limit 5 --no-verify --no-ort-optimize --dry-run"
    assert main(["optimize", model, *arguments.split(), *more.split(), "--device", "cuda"]) == 0
    options = api.calls[0].options
    assert options["dims"] == {"batch": 32, "seq": 128}
    assert (options["swap"], options["order"], options["reserve"]) == ("none", "priority", "1MiB")
    assert (options["time_limit_s"], options["seed"]) == (5.0, 7)
    assert (options["verify"], options["ort_optimize"], options["dry_run"]) == (False, False, True)
    assert options["device"] == "cuda"
    options["progress"]("solving")
    assert console.verbosity.stage == "solving" and "solving" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["analyze", "optimize", "verify"])
def test_json_is_the_only_thing_on_stdout(command, model, api, capsys):
    more = {"optimize": ["--budget", "60%"], "verify": [model]}.get(command, [])
    assert main([command, model, *more, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == f"planner.{command}/1"
    assert out.count("\n") == 1 and out.isascii()
    assert err == ""


@pytest.mark.parametrize("command", ["analyze", "optimize", "verify"])
def test_quiet_says_nothing(command, model, api, capsys):
    more = {"optimize": ["--budget", "60%"], "verify": [model]}.get(command, [])
    assert main([command, model, *more, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_summary_has_the_sizes_in_both_units(model, api, capsys):
    assert main(["optimize", model, "--budget", "60%"]) == 0
    out, err = capsys.readouterr()
    assert "70% = 33.04 MB = 31.51 MiB" in out
    assert "\x1b" not in out and err == ""


def test_verbose_prints_all_that_was_found(model, api, capsys):
    for command, heading in (("optimize", "Largest decisions"), ("analyze", "Largest residents")):
        arguments = [command, model, *(["--budget", "60%"] if command == "optimize" else [])]
        assert main(arguments) == 0
        short = capsys.readouterr().out
        assert main([*arguments, "-v"]) == 0
        full = capsys.readouterr().out
        assert heading in full and heading not in short
        assert len(short.splitlines()) < len(full.splitlines()) / 2
        assert "Assumed" in full


def test_a_failed_verification_exits_with_5_and_is_shown(model, api, capsys):
    before = examples.view(examples.chain(4))
    api.verify = api.answer("verify", examples.verification(before, before, passed=False))
    assert main(["verify", model, model]) == 5
    assert "failed: output dx0 differs by inf" in capsys.readouterr().out
    assert main(["verify", model, model, "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_an_optimize_whose_verification_failed_still_shows_the_result(model, api, capsys):
    result = examples.optimize_result()
    bad = dataclasses.replace(result.verification, passed=False, failures=("order",))
    error = VerificationError("ONNX Runtime does not confirm the plan: order")
    error.result = dataclasses.replace(result, verification=bad)
    api.optimize = api.answer("optimize", error)
    assert main(["optimize", model, "--budget", "60%", "--json"]) == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["headline"]["verdict"] == "Verification failed"
    assert last_line(err).startswith("planner: error: ONNX Runtime does not confirm")


def while_importing(cause: BaseException) -> ImportError:
    """As a compiled module says what came in between."""
    error = ImportError("initialization failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelError("node 'a\x1b[31m\nb' bad"), 3, r"planner: error: node 'a\x1b[31m\nb' bad"),
        (
            InfeasibleBudgetError(
                "budget 1 B cannot be met",
                least_peak_bytes=2048,
                binding=tuple((f"t{i}", 1024) for i in range(7)),
            ),
            4,
            "planner: error: budget 1 B cannot be met; the least feasible budget found is "
            "2.00 KiB (2048 B); resident at the step that binds: t0 1.00 KiB, t1 1.00 KiB, "
            "t2 1.00 KiB, t3 1.00 KiB, t4 1.00 KiB and 2 more; try: "
            "planner optimize model.onnx --budget 2.05KB",
        ),
        (TimeLimitError("no plan in 1 s"), 6, "planner: error: no plan in 1 s"),
        (Interrupted(), 130, "planner: interrupted; nothing was written"),
        (KeyboardInterrupt(), 130, "planner: interrupted; nothing was written"),
        (while_importing(KeyboardInterrupt()), 130, "planner: interrupted; nothing was written"),
        (while_importing(OSError("no such library")), 1, "planner: error: ImportError: "
         "initialization failed; this is a bug in planner; run again with -v for the traceback"),
        (PermissionError(13, "Permission denied", "x.onnx"), 1,
         "planner: error: x.onnx: Permission denied"),
        (ZeroDivisionError("oh\nno"), 1, "planner: error: ZeroDivisionError: oh no; this is a "
         "bug in planner; run again with -v for the traceback"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_their_exit_code(error, code, line, model, api, capsys):
    api.optimize = api.answer("optimize", error)
    assert main(["optimize", model, "--budget", "60%"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    place = re.search(r" \(planner/cli/commands/optimize\.py:\d+\)$", last_line(err))
    assert (place is not None) == ("this is a bug" in line)
    assert last_line(err)[: place and place.start()] == line


@pytest.mark.parametrize("typed", [["--budget", "10%"], ["--budget=10%"]])
def test_an_impossible_budget_names_the_command_that_works(typed, tmp_path, capsys):
    model = str(tmp_path / "chain.onnx")
    onnx.save(long_chain(layers=8, mib=1), model)
    output = str(tmp_path / "planned.onnx")
    options = ["-o", output, "--no-verify", "--no-calibrate", "--time-limit", "0.5", "--dry-run"]
    assert main(["optimize", model, *typed, *options]) in (4, 6)
    said = last_line(capsys.readouterr().err)
    command = shlex.split(said.partition("; try: ")[2])
    assert command[:3] == ["planner", "optimize", model]
    assert main(command[1:]) == 0


def test_a_mistyped_choice_gets_the_one_that_was_meant(model, capsys):
    assert main(["optimize", model, "--budget", "60%", "--device", "cdua"]) == 2
    said = last_line(capsys.readouterr().err)
    assert "Did you mean 'cuda'?" in said and "Value error" not in said


def test_a_plan_given_as_a_model_is_called_so(tmp_path, capsys):
    plan = tmp_path / "gpt.plan.json"
    plan.write_text('{"version": 1}')
    assert main(["analyze", str(plan)]) == 3
    assert "is JSON, not an ONNX model: a plan goes to planner apply" in capsys.readouterr().err


def test_verbose_shows_the_traceback(model, api, capsys):
    api.optimize = api.answer("optimize", ZeroDivisionError("oh"))
    assert main(["optimize", model, "--budget", "60%", "-v"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "ZeroDivisionError: oh; this is a bug in planner (planner/" in err.splitlines()[-1]


def test_verbose_shows_the_stages_and_quiet_silences_them(model, api, capsys):
    def optimize(*args, progress, **options):
        if progress:
            progress("solving")
        return examples.optimize_result()

    api.optimize = optimize
    main(["optimize", model, "--budget", "60%", "-v"])
    assert re.fullmatch(r"planner: \d+\.\d s: solving\n", capsys.readouterr().err)
    main(["optimize", model, "--budget", "60%", "-v", "-q"])
    assert capsys.readouterr().err == ""


def test_analyze_writes_its_page(model, tmp_path, api, capsys):
    assert main(["analyze", model, "-o", "memory.html"]) == 0
    assert (tmp_path / "memory.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().err == "planner: wrote memory.html\n"
