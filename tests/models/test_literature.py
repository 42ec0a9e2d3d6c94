"""WideResNet-28-2 as planner sees it, beside what Sohoni et al. (2019) published for it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from models.build import main
from models.nets import WideResNet
from planner.graph.model import Category
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request
from reports.literature.autograd import saved_bytes

PUBLISHED_BYTES = 404_800_000
"""arXiv:1904.10631: WideResNet-28-2 on CIFAR-10, batch 100, in 32 bits."""


def test_the_baseline_is_within_three_percent_of_the_published_one(tmp_path: Path) -> None:
    path = tmp_path / "wrn.onnx"
    assert main(["wrn28-2", "--optimizer", "momentum", "-o", str(path)]) == 0
    baseline = prepare(Request(model=path), to_rewrite=False).baseline
    assert abs(baseline.peak_bytes / PUBLISHED_BYTES - 1) < 0.03
    line = baseline.timeline
    split = {c: int(part[line.peak_step]) for c, part in line.by_category.items()}
    assert split[Category.ACTIVATION] > 0.9 * baseline.peak_bytes
    assert split[Category.OPTIMIZER_STATE] == 4 * 1_467_610 == 5_870_440


def test_autograd_keeps_what_the_graph_keeps() -> None:
    """At a small size: what a forward pass leaves for the backward one, parameters apart."""
    torch.manual_seed(0)
    module = WideResNet(depth=10, widen=1)
    images = torch.randn(4, 3, 16, 16)
    found = saved_bytes(module, images, torch.zeros(4, dtype=torch.int64))
    # of each of the six normalizations its input and what its activation makes of it; the shared ones
    # once; the last activation's result and input; the images
    wide, narrow = 16 * 16 * 16, 3 * 16 * 16
    first = 4 * wide  # x, relu, conv1's, relu
    second = (
        wide + wide + wide // 2 + wide // 2
    )  # x and relu of 16 channels, 32 of a quarter the size
    third = (wide // 2) * 2 + (wide // 4) * 2
    last = (wide // 4) * 2
    expected = 4 * 4 * (first + second + third + last + narrow)
    assert expected <= found <= 1.02 * expected
