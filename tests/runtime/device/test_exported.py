"""What the exporter writes for convolutions has kernels on WebGPU, and numbers as on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.runtime.device import client
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.options import Opening
from planner.runtime.profile import create_session
from planner.targets.webgpu import WEBGPU

pytestmark = pytest.mark.usefixtures("webgpu_device")


def test_gradients_of_convolutions(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    from planner import export_training_graph

    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, 1, 1),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, 1, 1, groups=32),
        nn.Conv2d(32, 16, 1),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )
    path = tmp_path / "net.onnx"
    exported = export_training_graph(
        module,
        torch.randn(2, 3, 16, 16),
        nn.functional.cross_entropy,
        targets=torch.randint(10, (2,)),
    )
    exported.save(path, sidecar=True)
    feeds, _ = make_inputs(path)
    session = create_session(path, Opening(threads=1).options())
    names = [output.name for output in session.get_outputs()]
    on_cpu = dict(zip(names, session.run(None, dict(feeds)), strict=True))
    (found,) = client.run(WEBGPU, path, feeds).outputs
    assert set(found) == set(on_cpu)
    for name, wanted in on_cpu.items():
        apart = np.linalg.norm(np.asarray(found[name], float) - wanted)
        assert apart <= 1e-4 * np.linalg.norm(wanted), name
    placed = client.optimize(WEBGPU, path, tmp_path / "optimized.onnx", level="all")
    large = [name for name, on_device in placed.items() if not on_device and "convol" in name]
    assert large == []
