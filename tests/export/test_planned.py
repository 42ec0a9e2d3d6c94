"""Exported graphs, planned: symbolic batches at other sizes than the plan's, and dropout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import nn

from planner import optimize
from planner.export.inputs import draw_inputs
from planner.export.training import ExportedGraph, export_training_graph
from planner.results import OptimizeResult
from planner.results.verification import MemoryCheck


def mlp(batch: int) -> ExportedGraph:
    layers: list[nn.Module] = [nn.Linear(32, 64)]
    for _ in range(4):
        layers += [nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64)]
    inputs, targets = {"input": torch.randn(batch, 32)}, {"labels": torch.arange(batch) % 64}
    return export_training_graph(nn.Sequential(*layers), inputs, F.cross_entropy, targets=targets)


def cnn(batch: int) -> ExportedGraph:
    """Training-mode batch norm; the gradient of the pool scatters into a buffer of zeros."""
    layers: list[nn.Module] = []
    for channels in (3, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    module = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))
    inputs, targets = torch.randn(batch, 3, 32, 32), {"labels": torch.arange(batch) % 10}
    return export_training_graph(
        module, inputs, F.cross_entropy, targets=targets, dynamic_batch=True
    )


def outputs(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, feeds)]


def identical(first: Path, second: Path, feeds: dict[str, np.ndarray]) -> bool:
    pairs = zip(outputs(first, feeds), outputs(second, feeds), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def recommended(result: OptimizeResult) -> list[MemoryCheck]:
    assert result.verification is not None
    return [check for check in result.verification.memory if check.options == "recommended"]


def test_plan_for_one_batch_runs_at_others(tmp_path: Path) -> None:
    """A GPT's is in `test_dynamic`, by two dimensions."""
    batch = 16
    graph, path, planned = cnn(batch), tmp_path / "m.onnx", tmp_path / "planned.onnx"
    graph.save(path, sidecar=True)
    result = optimize(
        path,
        budget="75%",
        budget_of="live",
        output=planned,
        dims={"batch": batch},
        swap="none",
        time_limit_s=1,
    )
    assert f"sizes, plan and budget hold for batch = {batch}" in result.plan.assumptions
    checks = recommended(result)
    assert checks and all(c.live_bytes == c.predicted_live_bytes for c in checks)
    marked = [n.op_type for n in onnx.load(planned).graph.node if "__recompute_" in n.name]
    assert marked, "nothing is recomputed: the plan is too easy to test anything"
    for other in (batch // 2 + 1, batch * 2):
        recipes = {
            key: replace(recipe, shape=(other, *recipe.shape[1:]))
            if key in graph.inputs
            else recipe
            for key, recipe in graph.recipes.items()
        }
        assert identical(path, planned, draw_inputs(recipes)), f"batch {other}"


def test_dropout_is_kept_while_the_rest_is_recomputed(tmp_path: Path) -> None:
    """Its random state advances with each run of a session, so first runs are compared."""
    graph, path, planned = mlp(256), tmp_path / "m.onnx", tmp_path / "planned.onnx"
    graph.save(path, sidecar=True)
    result = optimize(
        path, budget="55%", budget_of="live", output=planned, swap="none", time_limit_s=1
    )
    assert result.verification is not None and result.verification.passed
    before, after = onnx.load(path).graph.node, onnx.load(planned).graph.node
    assert any("__recompute_" in node.name for node in after)
    count = sum(node.op_type == "Dropout" for node in before)
    assert sum(node.op_type == "Dropout" for node in after) == count == 4
    assert identical(path, planned, draw_inputs(graph.recipes))
