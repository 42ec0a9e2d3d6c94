"""A WebGPU adapter of the machine's: found where there is one, and its absence one clear error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.cli.main import main
from planner.errors import UsageError
from planner.targets.backend import backend_of
from planner.targets.webgpu import WEBGPU, backend, provider
from tests.process import PLANNER
from tests.swiftshader import HOOK
from tests.swiftshader.backend import SoftwareWebGpu
from tests.swiftshader.device import SoftwareDevice, start


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x, y = (h.make_tensor_value_info(n, T.FLOAT, [4, 4]) for n in "xy")
    nodes = [h.make_node("Exp", ["x"], ["a"], "a"), h.make_node("Neg", ["a"], ["y"], "y")]
    graph = h.make_graph(nodes, "small", [x], [y])
    path = tmp_path / "small.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vulkan has no driver: what a session says then, planner passes on."""
    pytest.importorskip(WEBGPU.plugin)
    monkeypatch.delenv(HOOK, raising=False)
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, "/no/such/driver.json")
    # not kept for the tests after this one
    monkeypatch.setattr(backend, "why_no_adapter", provider.why_no_adapter.__wrapped__)


@pytest.mark.usefixtures("no_adapter")
def test_no_adapter_is_one_clear_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="there is no WebGPU adapter here: ") as caught:
        api.analyze(model, device="webgpu")
    assert "\n" not in str(caught.value) and "--no-verify" in str(caught.value)
    assert main(["doctor", "--json"]) == 0
    found = {p["name"]: p for p in json.loads(capsys.readouterr().out)["providers"]}
    row = found[WEBGPU.provider]
    assert not row["runs"] and row["why_not"].startswith("there is no WebGPU adapter here: ")


@pytest.mark.usefixtures("no_adapter")
def test_a_file_for_every_target_is_made_without_an_adapter(model: Path) -> None:
    said = api.analyze(model, device="any", time_limit_s=0.5).assumptions
    assert any(f"{WEBGPU.title} is assumed to run every node" in text for text in said)


def test_an_adapter_of_the_machine_is_used(
    webgpu_device: SoftwareDevice, model: Path, tmp_path: Path
) -> None:
    """In a process that sees the software device as its own, without the tests' backend."""
    words = ["optimize", model, "--budget", "100%", "--device", "webgpu", "-o", tmp_path / "p.onnx"]
    asked = ["env", "-u", HOOK, sys.executable, *PLANNER]
    done = start([*asked, *map(str, words), "--time-limit", "0.5", "--json"], webgpu_device)
    assert done.returncode == 0, done.stderr
    check = json.loads(done.stdout)["verification"]
    assert check["passed"] and check["provider"] == WEBGPU.provider
    assert check["time"] is not None  # on hardware, as far as planner knows
    done = start([*asked, "doctor"], webgpu_device)
    assert "WebGpu" in done.stdout and "runs: the machine's GPU" in done.stdout


@pytest.mark.usefixtures("webgpu_device")
def test_another_backend_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(backend_of(WEBGPU)) is SoftwareWebGpu
    monkeypatch.delenv(HOOK)
    assert type(backend_of(WEBGPU)) is backend.WebGpu
