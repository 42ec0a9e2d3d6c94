"""WideResNet-28-2 as planner sees it, beside what Sohoni et al. (2019) published for it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from models.build import main
from planner.graph.model import Category
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request

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
