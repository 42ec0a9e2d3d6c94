"""A neighbourhood grows by steps to makers and readers."""

from __future__ import annotations

import random

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.exact.neighbourhoods import Neighbourhoods
from planner.order.reorder import parents_of
from tests.graphs import problems


@settings(max_examples=100, deadline=None)
@given(problem=problems(), data=st.data())
def test_the_nearest_operations_come_first(problem, data):
    net = nx.Graph()
    net.add_nodes_from(range(len(problem.ops)))
    net.add_edges_from((p, v) for v, ps in enumerate(parents_of(problem)) for p in ps)
    seed = data.draw(st.sampled_from(sorted(net)))
    draw = random.Random(data.draw(st.integers(0, 9)))
    around = list(Neighbourhoods(problem)._around(seed, draw))
    steps = nx.single_source_shortest_path_length(net, seed)
    assert sorted(around) == sorted(steps)
    assert [steps[op] for op in around] == sorted(steps.values())
