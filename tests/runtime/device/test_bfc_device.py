"""The device's arena: what is in it beside what the CPU's arena holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.graph.model import TrainingGraph
from planner.graph.schedule import default_order
from planner.runtime.device.predict.bfc_device import fed_bytes, forecast_arena, initializer_bytes
from planner.runtime.memory.arena import DEFAULT, RECOMMENDED, simulate
from planner.runtime.memory.bfc import ArenaFullError, round_up
from tests.runtime.device.support import graph_of
from tests.runtime.support import model_of, op, random_model, tensor


def _graph(seed: int, nodes: int) -> TrainingGraph:
    model = random_model(seed, nodes)
    return graph_of(model)


@pytest.mark.parametrize("seed", range(8))
def test_feeds_and_initializers_add_their_bytes_to_what_is_in_use(seed: int) -> None:
    graph = _graph(seed, 20)
    order = default_order(graph)
    (trace,) = simulate(graph, order, RECOMMENDED, runs=1)
    found = forecast_arena(graph, order, RECOMMENDED, runs=1)
    more = sum(round_up(size) for size in (*fed_bytes(graph), *initializer_bytes(graph)))
    assert found.in_use_bytes == trace.peak + more
    assert found.in_use_bytes <= found.held_bytes


@pytest.mark.parametrize("seed", range(8))
def test_without_feeds_and_initializers_it_is_the_arena_of_the_cpu(seed: int) -> None:
    graph = _graph(seed, 20)
    order = default_order(graph)
    for options in (DEFAULT, RECOMMENDED):
        found = forecast_arena(graph, order, options, initializers=(), fed=())
        traces = simulate(graph, order, options)
        assert found.held_bytes == max(max(trace.held) for trace in traces)


def test_regions_of_the_size_asked_for_and_doubled_ones() -> None:
    x = tensor("x", 1 << 20)  # 4 MiB
    a = op("a", "Relu", x, shape=(1 << 20,))
    model = model_of([x], [a.outputs[0]], [a])
    graph = graph_of(model)
    assert forecast_arena(graph, [graph.operations[0].id], RECOMMENDED).held_bytes == 8 << 20
    doubled = replace(RECOMMENDED, growth=DEFAULT.growth)
    # 1 MiB doubled until the feed fits: 4, then a region of 4 more for the output
    assert forecast_arena(graph, [graph.operations[0].id], doubled).held_bytes == 8 << 20
    small = replace(doubled, initial_chunk_bytes=3 << 20)
    assert forecast_arena(graph, [graph.operations[0].id], small).held_bytes == 12 << 20


def test_initializers_beside_the_regions_count_against_the_limit() -> None:
    x = tensor("x", 256)
    a = op("a", "Relu", x, shape=(256,))
    model = model_of([x], [a.outputs[0]], [a])
    graph = graph_of(model)
    order = [graph.operations[0].id]
    exact = replace(DEFAULT, growth=RECOMMENDED.growth, limit_bytes=2048 + 512)
    assert forecast_arena(graph, order, exact, initializers=[500]).held_bytes == 2048 + 512
    with pytest.raises(ArenaFullError):
        forecast_arena(graph, order, exact, initializers=[600])


def test_an_input_read_by_a_copy_alone_is_not_fed_to_the_device() -> None:
    x = tensor("x", 64)
    copy = op("copy", "MemcpyFromHost", x, shape=(64,))
    a = op("a", "Relu", copy.outputs[0], shape=(64,))
    model = model_of([x], [a.outputs[0]], [copy, a])
    graph = graph_of(model)
    assert fed_bytes(graph) == ()
