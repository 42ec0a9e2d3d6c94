"""Sessions that replay their launches: the same bits where a record has all of a step, and a refusal
that names what it lacks elsewhere. The first is run on a software WebGPU device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import planner
from planner.errors import UsageError
from planner.runtime.capture import why_not_captured
from tests.runtime.device import captured_worker
from tests.swiftshader.device import SoftwareDevice, start

ROOT = Path(__file__).parents[3]
ZOO = ROOT / "models" / "zoo"
_HEAD = '<ir_version: 9, opset_import: ["" : 20{imports}]>\n'
_LAYERS = 4


ON_HOST = {
    "fed": (", double[1] n", ", double[1] m", "m = Add(n, n)"),
    "computed": ("", ", double[32, 32] m", "m = Cast <to = 11> (x)"),
}
"""Inputs, outputs and a node in float64, for which WebGPU has no kernels."""


def trained(on_host: str = "") -> onnx.ModelProto:
    """Layers of tanh with a squared error, their gradients and updates, in float32."""
    layers = range(_LAYERS)
    given = ", ".join(f"float[32, 32] {name}" for name in ("x", "t", *(f"w{i}" for i in layers)))
    made = ", ".join(f"float[32, 32] w{i}_new" for i in layers)
    forward = "".join(
        f"z{i} = MatMul({f'a{i - 1}' if i else 'x'}, w{i}) a{i} = Tanh(z{i})\n" for i in layers
    )
    backward = "".join(
        f"q{i} = Mul(a{i}, a{i}) d{i} = Sub(one, q{i}) g{i} = Mul(e{i}, d{i})\n"
        f"p{i} = Transpose <perm = [1, 0]> ({f'a{i - 1}' if i else 'x'}) v{i} = MatMul(p{i}, g{i})\n"
        f"u{i} = Mul(v{i}, rate) w{i}_new = Sub(w{i}, u{i})\n"
        + (f"y{i} = Transpose <perm = [1, 0]> (w{i}) e{i - 1} = MatMul(g{i}, y{i})\n" if i else "")
        for i in reversed(layers)
    )
    last = _LAYERS - 1
    inputs, outputs, node = ON_HOST.get(on_host, ("", "", ""))
    return parsed(
        f"g ({given}{inputs}) => (float[1, 1] loss, {made}{outputs})\n"
        "<float[1] one = {1.0}, float[1] rate = {0.01}> {\n"
        f"{forward} e{last} = Sub(a{last}, t) s = Mul(e{last}, e{last}) loss = ReduceMean(s)\n"
        f"{backward}{node}}}"
    )


def parsed(text: str, imports: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(_HEAD.format(imports=imports) + text)
    for i, node in enumerate(model.graph.node):
        node.name = f"n{i}"
    return model


def said_of(model: onnx.ModelProto) -> str:
    return why_not_captured(ir.from_proto(model).graph)


def on_webgpu(
    device: SoftwareDevice, folder: Path, on_host: str = ""
) -> subprocess.CompletedProcess[str]:
    """The steps of `captured_worker`, on a plan."""
    model, planned = folder / "model.onnx", folder / "planned.onnx"
    onnx.save(trained(on_host), model)
    planner.optimize(
        model,
        budget="90%",
        device="webgpu",
        swap="none",
        output=planned,
        verify=False,
        time_limit_s=0.5,
    )
    command = [sys.executable, "-m", captured_worker.__name__, str(model), str(planned)]
    return start(command, device, timeout_s=100)


def test_replayed_launches_give_the_bits_of_plain_ones(
    tmp_path: Path, webgpu_device: SoftwareDevice
) -> None:
    done = on_webgpu(webgpu_device, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["moved"] and found["differs"] == [[]] * (3 * captured_worker.STEPS)
    assert found["stale"] == [0, 0, 0] and found["replays"] == [True] * 3
    assert found["places"] == ["device"]
    assert "planner.bind" in found["said"]
    assert done.stderr == ""


def test_what_is_on_the_host_is_named(tmp_path: Path, webgpu_device: SoftwareDevice) -> None:
    fed, computed = (tmp_path / name for name in ON_HOST)
    for folder in (fed, computed):
        folder.mkdir()
    said = on_webgpu(webgpu_device, fed, "fed").stderr
    assert "'n' lives on the host, and a session with graph_capture replays launches alone" in said
    said = on_webgpu(webgpu_device, computed, "computed").stderr
    (cast,) = (node.name for node in trained("computed").graph.node if node.op_type == "Cast")
    assert f"cannot be captured: '{cast}'" in said
    assert "on the CPU, which a record of WebGPU's launches does not have" in said


def test_what_a_record_lacks_is_named() -> None:
    assert said_of(trained()) == ""
    random = parsed("g (float[4] x) => (float[4] y) { r = Tanh(x) y = RandomNormalLike(r) }")
    assert "RandomNormalLike 'n1' draws random numbers" in said_of(random)
    open_dim = parsed("g (float[N] x) => (float[N] y) { y = Tanh(x) }")
    assert "'x' has open dims" in said_of(open_dim)
    swapped = parsed(
        "g (float[4] x) => (float[4] y) { t = planner.swap.SwapBegin() y = Tanh(x) }",
        ', "planner.swap" : 1',
    )
    assert "copies beside the operations" in said_of(swapped)
    strange = parsed("g (float[4] x) => (float[4] y) { y = mine.Own(x) }", ', "mine" : 1')
    assert "Own 'n0' is an operator whose effects" in said_of(strange)
    passed = parsed("g (float[4] x) => (float[4] y, float[4] x) { y = Tanh(x) }")
    assert "output 'x' is an input" in said_of(passed)
    passed.graph.output.pop()
    assert said_of(passed) == ""
    fused = parsed(
        "g (float[4] x) => (float[4] y) { y = planner.fused.Pointwise(x) }", ', "planner.fused" : 1'
    )
    assert said_of(fused) == ""
    passed.graph.output[0].type.tensor_type.ClearField("shape")
    assert "'y' has open dims" in said_of(passed)


@pytest.mark.parametrize("trains", [True, False])
def test_dropout_draws_while_it_trains_alone(trains: bool) -> None:
    mode = ", ratio, mode" if trains else ""
    model = parsed(
        "g (float[4] x) => (float[4] y) <float ratio = {0.5}, bool mode = {1}> "
        f"{{ y = Dropout(x{mode}) }}"
    )
    assert ("draws random numbers" in said_of(model)) == trains


@pytest.mark.parametrize("trains", [True, False])
def test_a_normalization_of_old_files_trains_by_its_outputs(trains: bool) -> None:
    outputs = "y, m, v, a, b" if trains else "y"
    model = parsed(
        "g (float[2, 3] x, float[3] s) => (float[2, 3] y) "
        f"{{ {outputs} = BatchNormalization(x, s, s, s, s) }}"
    )
    assert ("updates statistics" in said_of(model)) == trains


def test_a_file_for_the_cpu_and_one_of_others_are_refused(tmp_path: Path) -> None:
    planned = tmp_path / "planned.onnx"
    model = ZOO / "mlp_adamw.onnx"
    planner.optimize(model, budget="90%", output=planned, verify=False, time_limit_s=0.5)
    for opened in (planner.open_session, planner.session_options):
        with pytest.raises(UsageError, match=r"has no graph capture: open it without"):
            opened(planned, graph_capture=True)
        with pytest.raises(UsageError, match="takes no pool"):
            opened(planned, graph_capture=True, pool="1GB")
        with pytest.raises(UsageError, match="files that planner wrote"):
            opened(model, graph_capture=True)
