"""The problems that the solver is measured on: shaped like training, and read as published."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problemfile import check_problem
from planner.simulate.simulate import simulate
from reports.shared import ZOO
from reports.solver.build import base_actions, base_peak, with_budget
from reports.solver.moccasin import ORDER_GIVEN, ORDER_SORTED, read, read_folder
from reports.solver.parts import real_orders
from reports.solver.synthetic import FAMILIES, synthetic


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("operations", [300, 1_000, 3_000])
def test_about_as_many_operations_as_asked_for(family: str, operations: int):
    problem = synthetic(family, operations)
    assert abs(len(problem.ops) - operations) <= 0.1 * operations


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_problem_each_time(family: str):
    assert synthetic(family, 300) == synthetic(family, 300)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_peak_is_at_the_loss_as_in_training(family: str):
    problem = synthetic(family, 1_000)
    replay = simulate(problem, base_actions(problem))
    loss = next(i for i, op in enumerate(problem.ops) if op.name == "loss")
    assert abs(replay.peak_action - loss) <= 0.02 * len(problem.ops)
    assert replay.peak_bytes == problem.capacity_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_backward_costs_about_twice_what_forward_does(family: str):
    problem = synthetic(family, 1_000)
    loss = next(i for i, op in enumerate(problem.ops) if op.name == "loss")
    forward = sum(op.duration_us for op in problem.ops[:loss])
    assert 2.3 * forward < problem.base_duration_us < 3.4 * forward


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="no family 'rnn'"):
        synthetic("rnn", 100)


@given(percent=st.floats(1, 100))
@settings(max_examples=20, deadline=None)
def test_a_budget_is_a_share_of_the_base_peak(percent: float):
    problem = synthetic("chain", 40)
    peak = base_peak(problem)
    for mode in ("recompute", "swap", "both"):
        at = with_budget(problem, percent, mode)
        assert 0 <= at.capacity_bytes - percent * peak / 100 < 1
        assert at.allow_swap == (mode != "recompute")
        assert at.allow_recompute == (mode != "swap")
        assert at.ops == problem.ops


def their_peak(graph: nx.DiGraph, order: list[int], size: dict[int, int]) -> int:
    """Peak as the paper has it: at each step, the outputs computed and still to be read."""
    place = {node: i for i, node in enumerate(order)}
    last = {v: max([place[v], *(place[w] for w in graph.successors(v))]) for v in order}
    return max(
        sum(size[v] for v in order if place[v] <= step <= last[v]) for step in range(len(order))
    )


def profiled(count: int, edges: list[tuple[int, int]]) -> dict[str, Any]:
    nodes = [
        {"id": i, "name": f"n{i}", "cost_ram": 10 + 7 * i % 13, "cost_cpu": i} for i in range(count)
    ]
    links = [{"source": a, "target": b} for a, b in edges]
    return {"directed": True, "graph": {"name": "small"}, "nodes": nodes, "links": links}


def layered(count: int, edges: list[tuple[int, int]], order: list[int]) -> dict[str, Any]:
    nodes = [{"name": i, "out_cost": 10 + 7 * i % 13, "duration": i} for i in range(count)]
    links = [{"0": a, "1": b} for a, b in edges]
    return {"graph": {"name": "small", "order": order}, "nodes": nodes, "links": links}


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(2, 9))
    pairs = list(itertools.combinations(range(count), 2))
    return count, draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))


@given(dag=dags())
@settings(max_examples=50, deadline=None)
def test_the_simulated_peak_is_theirs(dag, tmp_path_factory):
    count, edges = dag
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    path = tmp_path_factory.mktemp("instances") / "small.json"
    order = list(nx.topological_sort(graph))
    for data, source in (
        (profiled(count, edges), ORDER_SORTED),
        (layered(count, edges, order), ORDER_GIVEN),
    ):
        path.write_text(json.dumps(data))
        instance = read(path)
        assert instance.order_source == source
        problem = instance.problem
        assert problem.name == "small"
        read_order = [int(op.name.removeprefix("n")) for op in problem.ops]
        assert sorted(read_order) == list(range(count))
        sizes = {
            v: problem.tensors[problem.ops[i].outputs[0]].bytes for i, v in enumerate(read_order)
        }
        assert sizes == {i: 10 + 7 * i % 13 for i in range(count)}
        assert {v: problem.ops[i].duration_us for i, v in enumerate(read_order)} == {
            i: i for i in range(count)
        }
        assert base_peak(problem) == their_peak(graph, read_order, sizes)
        check_problem(problem, where="it")


@pytest.mark.parametrize(
    "data",
    [
        {"graph": {}, "nodes": [], "links": []},
        {"nodes": [{"id": 0}]},
        layered(3, [(0, 1), (1, 2)], [2, 1, 0]),
        layered(3, [(0, 1), (1, 2)], [0, 1]),
    ],
)
def test_what_is_no_instance_is_refused(data: dict[str, Any], tmp_path: Path):
    path = tmp_path / "no.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"no\.json"):
        read(path)


def test_a_folder_is_listed_smallest_first(tmp_path: Path):
    for name, count in (("big_train", 9), ("small_train", 3), ("small_test", 2)):
        edges = list(itertools.pairwise(range(count)))
        (tmp_path / f"{name}.json").write_text(json.dumps(profiled(count, edges)))
    assert list(read_folder(tmp_path, contains="train")) == ["small_train", "big_train"]


def test_a_training_graph_is_taken_in_its_best_order():
    orders = real_orders(ZOO / "mlp_adamw.onnx", "v100", order_limit_s=2.0)
    problem = next(iter(orders.values()))
    assert problem.name == "mlp_adamw"
    assert problem.capacity_bytes == base_peak(problem)
    assert problem.swap_out_bytes_per_s == problem.swap_in_bytes_per_s == 1.2e10
    assert problem.base_duration_us > 0
    check_problem(problem, where="it")


def test_overlapped_copies_are_asked_for_only_with_swaps():
    problem = synthetic("chain", 40)
    at = with_budget(problem, 80, "both", overlap=True)
    assert at == replace(with_budget(problem, 80, "both"), overlap=True)
    assert with_budget(problem, 80, "recompute", overlap=True) == with_budget(
        problem, 80, "recompute"
    )
