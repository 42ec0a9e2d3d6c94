"""planner doctor: what it says of this machine, and of one where something is missing."""

import json
import os
import platform
import re
from dataclasses import replace
from importlib import metadata

import onnxruntime
import pytest

from planner.cli import surroundings
from planner.cli.main import main
from planner.cli.surroundings import Package, Provider, Surroundings, look_around
from planner.runtime.device.seen import look


@pytest.fixture(scope="module")
def here() -> Surroundings:
    return look_around()


def test_what_is_here(here: Surroundings):
    assert here.python == platform.python_version()
    assert (here.runtimes[0].version or "").startswith(onnxruntime.__version__)
    assert here.available == tuple(onnxruntime.get_available_providers())
    cpu = here.providers[0]
    assert cpu.name == "CPUExecutionProvider" and cpu.runs
    versions = {p.name: p.version for p in here.required}
    assert versions["ortools"] == metadata.version("ortools")
    assert not any(package.why_not for package in here.required)
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.available_bytes is not None and here.available_bytes > 1 << 20
    assert here.problems == ()


def test_the_text_and_the_document_say_the_same(capsys):
    assert main(["doctor"]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    assert f"onnxruntime {onnxruntime.__version__}" in text
    assert re.search(r"^  CPU +runs", text, re.MULTILINE)
    assert text.splitlines()[-1].startswith("Ready")
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "planner.doctor/2" and document["problems"] == []
    assert {p["name"] for p in document["optional"]} >= {"torch", "ray", "onnxruntime-ep-webgpu"}
    for provider in document["providers"]:
        assert provider["runs"] or provider["why_not"]


def test_the_disk_of_a_folder_is_measured_where_it_is_asked_for(tmp_path, capsys):
    assert main(["doctor", "--json", "--disk", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)["disk"]
    assert found["folder"] == str(tmp_path)
    assert found["write_bytes_per_s"] > 1e4 and found["read_bytes_per_s"] > 1e4
    assert not list(tmp_path.iterdir())
    assert main(["doctor", "--disk", str(tmp_path / "missing")]) == 2
    assert "swaps cannot go to" in capsys.readouterr().err


def test_a_provider_that_is_not_there_does_not_run():
    seen = look("CUDAExecutionProvider") if not _has_cuda() else look("NoSuchExecutionProvider")
    assert not seen.runs and seen.why_not and "\n" not in seen.why_not


def _has_cuda() -> bool:
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def test_what_is_missing_ends_with_2_and_the_next_step(monkeypatch, capsys, here: Surroundings):
    problems = tuple(
        surroundings._problems(
            (),
            (Package(name="networkx", version=None, why_not="ModuleNotFoundError: no networkx"),),
            (Provider(name="CPUExecutionProvider", runs=False, why_not="no kernels"),),
            "",
        )
    )
    assert "networkx does not import" in problems[-1] and "pip install" in problems[-1]
    assert "CPUExecutionProvider does not run (no kernels)" in problems[0]
    monkeypatch.setattr(surroundings, "look_around", lambda *_: replace(here, problems=problems))
    assert main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert "Problem" in out and "Ready" not in out
    assert err.startswith("planner: error: CPUExecutionProvider does not run")
    assert err.count("\n") == 1


def test_two_runtimes_under_one_name_are_a_problem():
    both = tuple(Package(name=name, version="1.31.1") for name in surroundings.RUNTIMES[:2])
    (said,) = surroundings._problems(both, (), (), "")
    assert "onnxruntime and onnxruntime-gpu" in said and "uninstall" in said


def test_another_onnxruntime_than_the_tested_one_is_a_remark():
    assert surroundings._pinned().startswith("onnxruntime")
    (said,) = surroundings._remarks((Package(name="onnxruntime", version="1.20.0"),))
    assert "1.20.0" in said
    assert surroundings._remarks((Package(name="onnxruntime", version="1.31.7"),)) == []


def test_a_package_that_is_missing_points_to_the_doctor(monkeypatch, tmp_path, capsys):
    from planner.cli.commands import problem

    def gone(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    monkeypatch.setattr(problem, "check_input", gone)
    assert main(["problem", str(tmp_path / "m.onnx")]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == "planner: error: No module named 'onnxruntime'; planner doctor says what to install\n"
    )
