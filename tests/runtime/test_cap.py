"""A hard arena cap: what is predicted to fit runs, what is not fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.graph.liveness import timeline
from planner.graph.schedule import default_order
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.judge.cap import refused_by_arena, run_capped
from planner.runtime.memory.arena import arena_cap, first_region, least_cap
from tests.runtime.support import chain_with_gradients, random_model, save


@pytest.mark.parametrize("seed", [3, 4])
def test_the_predicted_least_cap_is_exact(seed: int, tmp_path: Path) -> None:
    path, graph = save(random_model(seed, 25), tmp_path / "m.onnx")
    inputs, _ = make_inputs(path)
    cap = least_cap(graph, default_order(graph))
    assert run_capped(path, inputs, cap).passed
    short = run_capped(path, inputs, cap - 256)
    assert not short.passed
    assert refused_by_arena(short)
    assert "not yet taken by the arena" in short.message


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
    assert not refused_by_arena(check)


def test_a_cap_of_several_gib_is_a_cap(tmp_path: Path) -> None:
    path, graph = save(chain_with_gradients(leaves_reversed=False), tmp_path / "m.onnx")
    inputs, _ = make_inputs(path)
    cap = 5 << 30
    assert run_capped(path, inputs, cap).passed
    region = first_region(graph, default_order(graph), cap)
    assert region is not None
    assert run_capped(path, inputs, cap, first_region_bytes=region).passed
