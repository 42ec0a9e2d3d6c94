"""A hard cap: what is predicted to fit runs, what is not fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.graph.liveness import timeline
from planner.graph.schedule import default_order
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.judge.cap.run import run_capped
from planner.runtime.memory.arena import arena_cap
from planner.runtime.memory.paged import PAGE_BYTES, pool_bytes
from tests.runtime.support import chain_with_gradients, random_model, save


@pytest.mark.parametrize("seed", [3, 4])
def test_the_predicted_least_pool_is_exact(seed: int, tmp_path: Path) -> None:
    path, graph = save(random_model(seed, 25), tmp_path / "m.onnx")
    inputs, _ = make_inputs(path)
    least = pool_bytes(graph, default_order(graph), threads=1)
    assert run_capped(path, inputs, least).passed
    short = run_capped(path, inputs, least - PAGE_BYTES)
    assert not short.passed and short.refused
    assert "free in the pool" in short.message and "node" in short.message
    spilled = run_capped(path, inputs, least - PAGE_BYTES, spills=True)
    assert spilled.passed and spilled.spilled_bytes > 0


def test_the_arenas_share_of_a_budget_leaves_out_what_is_not_in_the_arena(tmp_path: Path) -> None:
    path, graph = save(chain_with_gradients(leaves_reversed=False), tmp_path / "m.onnx")
    line = timeline(graph, default_order(graph))
    assert arena_cap(graph, line.peak_bytes) == line.peak_bytes - line.persistent_bytes
    inputs, _ = make_inputs(path)
    nothing_left = run_capped(path, inputs, arena_cap(graph, line.persistent_bytes))
    assert not nothing_left.passed
    assert "alone exceed the budget" in nothing_left.message


def test_a_model_that_does_not_load_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nonsense")
    check = run_capped(path, {}, 1 << 20)
    assert not check.passed
    assert "cannot load the model" in check.message
    assert not check.refused


def test_a_cap_of_several_gib_is_a_cap(tmp_path: Path) -> None:
    path, _ = save(chain_with_gradients(leaves_reversed=False), tmp_path / "m.onnx")
    assert run_capped(path, make_inputs(path)[0], 5 << 30).passed
