"""The arena's forecast against ONNX Runtime's own memory events."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.graph.liveness import timeline
from planner.graph.schedule import default_order
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.arena import (
    DEFAULT,
    RECOMMENDED,
    SETTINGS,
    forecast,
    reserved_bytes,
    simulate,
)
from planner.runtime.options import Opening
from planner.runtime.profiled import profile
from tests.runtime.support import chain_with_gradients, fits, least_cap, random_model, save

_QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@_QUICK
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 30))
@pytest.mark.parametrize("options", ["default", "recommended"])
def test_requested_bytes_are_exact_at_every_node_of_two_runs(
    options: str, seed: int, nodes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, graph = save(random_model(seed, nodes), Path(folder) / "m.onnx")
        inputs, _ = make_inputs(path, seed)
        runs = profile(path, inputs, Opening(memory=options, level="disabled", threads=1), runs=2)  # type: ignore[arg-type]
    order = default_order(graph)
    assert [e.name for e in runs[0]] == [graph.operations[v].name for v in order]
    traces = simulate(graph, order, SETTINGS[options], threads=1)
    base = reserved_bytes(graph)
    for run, trace in zip(runs, traces, strict=True):
        assert [e.requested_in_use for e in run] == [r + base for r in trace.requested]
        # held may differ where two free chunks of one size lie in different regions
        assert len(run) == len(trace.held)
    if options == "recommended":
        line = timeline(graph, order)
        live = [int(b) - line.persistent_bytes + base for b in line.live_bytes]
        assert [e.requested_in_use for e in runs[0]] == live


@_QUICK
@given(seed=st.integers(0, 10**6))
def test_held_bytes_of_a_first_run_are_exact_and_bytes_in_use_close(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, graph = save(random_model(seed, 10), Path(folder) / "m.onnx")
        inputs, _ = make_inputs(path, seed)
        (run,) = profile(path, inputs, Opening(level="disabled", threads=1))
    (trace,) = simulate(graph, default_order(graph), DEFAULT, runs=1, threads=1)
    base = reserved_bytes(graph)
    assert max(e.held or 0 for e in run) == max(trace.held) + base
    # two free chunks of one size in different regions are told apart by address only
    measured = max(e.in_use_peak or 0 for e in run) - base
    assert measured == pytest.approx(trace.peak, rel=0.1)
    assert measured >= max(trace.requested)


@pytest.mark.parametrize("name", ["gpt", "resnet18"])
def test_the_forecast_of_a_training_graph_is_what_the_arena_held(name: str, tmp_path: Path) -> None:
    from planner.onnxio.load import load_model
    from planner.runtime.optimizers.normalize import normalize

    source = Path(__file__).parents[2] / "models" / "zoo" / f"{name}.onnx"
    path, graph = save(normalize(load_model(source)), tmp_path / "m.onnx")
    inputs, _ = make_inputs(source)
    runs = profile(path, inputs, Opening(level="extended", threads=2), runs=2)
    base = (runs[0][0].requested_in_use or 0) - (runs[0][0].requested_delta or 0)
    expected = forecast(graph, default_order(graph), "default", threads=2)
    assert max(e.held or 0 for run in runs for e in run) - base == expected.held_bytes
    assert runs[1][-1].in_use_peak == expected.in_use_bytes + base


def test_recommended_options_never_need_more_than_default_ones(tmp_path: Path) -> None:
    _, graph = save(chain_with_gradients(leaves_reversed=False), tmp_path / "m.onnx")
    order = default_order(graph)
    default, recommended = (forecast(graph, order, o) for o in ("default", "recommended"))
    assert recommended.in_use_bytes <= default.in_use_bytes
    assert recommended.held_bytes <= default.held_bytes


@_QUICK
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 40))
def test_the_least_cap_fits_and_is_not_below_the_peak(seed: int, nodes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, graph = save(random_model(seed, nodes), Path(folder) / "m.onnx")
    order = default_order(graph)
    cap = least_cap(graph, order)
    (trace,) = simulate(graph, order, RECOMMENDED, runs=1, threads=1)
    assert fits(graph, order, cap)
    assert cap >= trace.peak >= max(trace.requested)
    assert cap % 256 == 0


def test_a_forecast_of_five_thousand_nodes_is_linear_in_memory_events(tmp_path: Path) -> None:
    # no clock: the arena is asked at most once per output, workspace and run
    _, graph = save(random_model(1, 5000), tmp_path / "m.onnx")
    traces = simulate(graph, default_order(graph), DEFAULT)
    assert len(traces) == 2
    assert all(np.all(np.diff(np.array(t.held)) >= 0) for t in traces)
