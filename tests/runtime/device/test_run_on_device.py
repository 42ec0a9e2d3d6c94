"""planner run on a device with its own memory: the session has the provider of its file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import planner
from planner.targets.webgpu import WEBGPU
from tests.process import PLANNER
from tests.swiftshader.device import SoftwareDevice, start

ROOT = Path(__file__).parents[3]
OPEN = """
import json, sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
inputs = dict(np.load(sys.argv[2]))
found = session.run(["loss"], inputs)
print(json.dumps([session.get_providers(), float(found[0])]))
given = onnxruntime.InferenceSession(sys.argv[1], onnxruntime.SessionOptions())
print(json.dumps([given.get_providers(), float(given.run(["loss"], inputs)[0])]))
"""


def test_a_session_opens_on_what_the_file_was_written_for(
    webgpu_device: SoftwareDevice, tmp_path: Path
) -> None:
    from planner.runtime.feeds.inputs import make_inputs

    model = ROOT / "models" / "zoo" / "mlp_adamw.onnx"
    planned, feeds, script = tmp_path / "m.onnx", tmp_path / "feeds.npz", tmp_path / "script.py"
    planner.optimize(
        model, budget="80%", device="webgpu", output=planned, time_limit_s=0.5, verify=False
    )
    np.savez(feeds, **make_inputs(model, 0, {}, None)[0])
    script.write_text(OPEN)
    arguments = [sys.executable, *PLANNER, "run", "--explain", script, planned, feeds]
    done = start([str(a) for a in arguments], webgpu_device)
    assert done.returncode == 0, done.stderr[-2000:]
    (ours, loss), (given, same) = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    assert ours[0] == WEBGPU.provider
    assert given == ["CPUExecutionProvider"]  # the script's options name no device, and stay
    assert np.isclose(loss, same, rtol=1e-3)
    said = [line for line in done.stderr.splitlines() if line.startswith("planner: ")]
    assert f"set {WEBGPU.provider} with preferredLayout=NCHW" in said[0]
    assert any("planned for WebGPU, and the script opens it on" in line for line in said)
