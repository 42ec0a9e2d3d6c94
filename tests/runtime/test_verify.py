"""Verification says yes to a model that keeps its promises, and names each one that is broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import default_order
from planner.results.verification import Verification
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.judge.cap.both import Contestant, capped_by
from planner.runtime.judge.verify import CpuVerification
from planner.runtime.memory.memcheck import NO_ROOM
from tests.runtime.support import chain_with_gradients, constant, model_of, op, save, tensor


@dataclass(frozen=True)
class _Pair:
    """The same graph in two file orders: one needs far less memory."""

    paths: tuple[Path, Path]
    graphs: tuple[TrainingGraph, TrainingGraph]
    orders: tuple[tuple[OpId, ...], tuple[OpId, ...]]

    @property
    def peaks(self) -> tuple[int, int]:
        high, low = (
            timeline(g, o).peak_bytes for g, o in zip(self.graphs, self.orders, strict=True)
        )
        return high, low


@pytest.fixture
def pair(tmp_path: Path) -> _Pair:
    made = [
        save(chain_with_gradients(leaves_reversed=flag), tmp_path / f"{flag}.onnx")
        for flag in (False, True)
    ]
    made.sort(key=lambda m: -timeline(m[1], default_order(m[1])).peak_bytes)
    (a, ga), (b, gb) = made
    return _Pair(paths=(a, b), graphs=(ga, gb), orders=(default_order(ga), default_order(gb)))


def _verify(pair: _Pair, budget: int, **more: object) -> Verification:
    graph, order = pair.graphs[1], pair.orders[1]
    models = ("original", "rewritten")
    arguments: dict[str, object] = {
        "paths": dict(zip(models, pair.paths, strict=True)),
        "graphs": dict(zip(models, pair.graphs, strict=True)),
        "orders": dict(zip(models, pair.orders, strict=True)),
        "planned": [graph.operations[v].name for v in order],
        "budget_bytes": budget,
        "inputs": make_inputs(pair.paths[0])[0],
        "is_timed": False,
        "thorough": False,
        "threads": 1,
    }
    return CpuVerification(**{**arguments, **more}).run()  # type: ignore[arg-type]


def test_a_model_that_lacks_room_alone_is_told_from_one_that_is_wrong(pair: _Pair) -> None:
    """By a field, which decides what is done about it. Live bytes fit, and what is held does not."""
    low = pair.peaks[1]
    small = _verify(pair, low, budget_of="held")
    assert not small.passed and small.lacks_room
    assert all(failure.startswith(NO_ROOM) for failure in small.failures)
    planned = [pair.graphs[1].operations[v].name for v in reversed(pair.orders[1])]
    wrong = _verify(pair, low, budget_of="held", planned=planned)
    assert not wrong.passed and not wrong.lacks_room
    assert not _verify(pair, 2 * low).lacks_room


def test_a_better_order_passes_every_check(pair: _Pair) -> None:
    high, low = pair.peaks
    assert low < high
    said: list[str] = []
    result = _verify(pair, low, thorough=True, is_timed=True, progress=said.append)
    assert result.passed, result.failures
    assert all(c.identical for c in result.outputs) and len(result.outputs) == 8
    assert [c.level for c in result.orders] == ["disabled", "extended", "all"]
    assert all(c.equal for c in result.orders)
    recommended = {c.model: c for c in result.memory if c.options == "recommended"}
    assert recommended["original"].live_bytes == high
    assert recommended["rewritten"].live_bytes == low
    assert all(not c.worst and c.how == "measured" for c in result.memory)
    assert all(c.in_use_bytes == c.predicted_in_use_bytes for c in result.memory)
    assert [(c.model, c.passed, c.expected) for c in result.caps] == [
        ("original", False, False),
        ("rewritten", True, True),
    ]
    assert result.time is not None and result.time.ratio > 0
    assert said


@pytest.mark.parametrize("is_as_analysed", [True, False])
def test_an_original_that_runs_other_nodes_than_its_graphs_may_run_under_the_cap(
    is_as_analysed: bool, pair: _Pair
) -> None:
    """ONNX Runtime's optimizers may name nodes, and order them, otherwise in each session."""

    def contestant(name: str, graph: TrainingGraph, order: tuple[OpId, ...]) -> Contestant:
        return Contestant(
            name=name,
            path=pair.paths[1],  # it needs the least in either case
            graph=graph,
            order=order,
            order_option="default",
            level="all",
            inputs=make_inputs(pair.paths[1])[0],
        )

    both = [
        contestant(name, graph, order)
        for name, graph, order in zip(
            ("original", "rewritten"), pair.graphs, pair.orders, strict=True
        )
    ]
    found = capped_by(pair.peaks[1], both[0], both[1], (), is_as_analysed=is_as_analysed)
    assert [check.passed for check in found] == [True, True]
    assert found[0].expected == (False if is_as_analysed else None)
    assert any(check.failure for check in found) == is_as_analysed


def test_fast_runs_each_once_and_still_judges_outputs_order_bytes_and_cap(pair: _Pair) -> None:
    _, low = pair.peaks
    result = _verify(pair, low, is_timed=True)
    assert result.passed, result.failures
    assert len(result.outputs) == 8
    assert [c.level for c in result.orders] == ["all"]
    assert [(c.model, c.options, c.failure) for c in result.sessions] == [
        ("original", "default", ""),
        ("rewritten", "default", ""),
        ("rewritten", "recommended", ""),
    ]
    assert result.default_bits is not None
    assert (result.default_bits.compared, result.default_bits.differ) == (8, ())
    assert [(c.model, c.options) for c in result.memory] == [
        ("original", "default"),
        ("rewritten", "default"),
        ("rewritten", "recommended"),
    ]
    assert all(c.in_use_bytes == c.predicted_in_use_bytes for c in result.memory)
    assert [(c.model, c.passed) for c in result.caps] == [("original", False), ("rewritten", True)]
    assert result.time is not None


def test_an_original_that_was_predicted_to_hold_more_than_it_does_need_not_fail(
    pair: _Pair,
) -> None:
    graph = pair.graphs[0]
    unknown = tuple(replace(op, name=f"?{op.id}") for op in graph.operations)
    high = replace(graph, operations=unknown)  # its names are not those of the session
    misjudged = _Pair(
        paths=(pair.paths[1], pair.paths[1]), graphs=(high, pair.graphs[1]), orders=pair.orders
    )
    result = _verify(misjudged, pair.peaks[1])
    assert result.passed, result.failures
    assert [(c.model, c.passed, c.expected) for c in result.caps] == [
        ("original", True, None),
        ("rewritten", True, True),
    ]


@pytest.mark.parametrize("thorough", [True, False])
def test_a_budget_below_the_measured_bytes_fails(thorough: bool, pair: _Pair) -> None:
    result = _verify(pair, pair.peaks[1] - 1, thorough=thorough)
    assert not result.passed
    assert any("measured live bytes of the rewritten model" in f for f in result.failures)


def test_at_or_above_the_baseline_nothing_is_expected_of_the_original(pair: _Pair) -> None:
    result = _verify(pair, pair.peaks[0])
    assert result.passed, result.failures
    assert result.caps[0].expected is None


def test_another_order_than_planned_is_named_by_step(pair: _Pair) -> None:
    graph, order = pair.graphs[1], pair.orders[1]
    planned = [graph.operations[v].name for v in order]
    planned[3], planned[4] = planned[4], planned[3]
    result = _verify(pair, pair.peaks[1], planned=planned, thorough=True)
    assert not result.passed
    assert all(c.first_difference.startswith("step 3: planned ") for c in result.orders)


def test_with_swaps_bytes_are_replayed_and_nothing_is_capped(pair: _Pair) -> None:
    result = _verify(pair, pair.peaks[1], has_swaps=True)
    assert result.passed, result.failures
    assert {c.how for c in result.memory if c.model == "rewritten"} == {"replayed"}
    assert {c.live_bytes for c in result.memory if c.model == "rewritten"} == {pair.peaks[1]}
    assert result.caps == ()
    assert any("host copies share the CPU's arena" in note for note in result.notes)


def test_other_numbers_fail_with_the_outputs_name(tmp_path: Path) -> None:
    made = []
    for value in (1.0, 1.0 + 2**-20):
        x, w = tensor("x", 64), constant("w", np.full(64, value, np.float32))
        node = op("y", "Mul", x, w, shape=(64,))
        made.append(save(model_of([x], [node.outputs[0]], [node], [w]), tmp_path / f"{value}.onnx"))
    (a, ga), (b, gb) = made
    pair = _Pair(paths=(a, b), graphs=(ga, gb), orders=(default_order(ga), default_order(gb)))
    result = _verify(pair, 1 << 20)
    assert not result.passed
    assert any("output 'y:out' differs" in f for f in result.failures)


def test_a_lost_output_fails(tmp_path: Path) -> None:
    made = []
    for count in (2, 1):
        x = tensor("x", 64)
        nodes = [op(f"y{i}", "Neg" if i else "Exp", x, shape=(64,)) for i in range(2)]
        outputs = [n.outputs[0] for n in nodes[:count]]
        made.append(save(model_of([x], outputs, nodes[:count]), tmp_path / f"{count}.onnx"))
    (a, ga), (b, gb) = made
    pair = _Pair(paths=(a, b), graphs=(ga, gb), orders=(default_order(ga), default_order(gb)))
    result = _verify(pair, 1 << 20)
    assert any("lacks the outputs y1:out" in f for f in result.failures)
