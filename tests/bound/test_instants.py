"""What a plan may run again for an instant: the ancestors that may run again."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bound.instants import reachable
from planner.order.reorder import parents_of
from tests.graphs import problems


@settings(max_examples=100, deadline=None)
@given(problem=problems(), data=st.data())
def test_what_may_run_again_is_what_leads_there_over_what_may(problem, data):
    after = data.draw(st.sets(st.sampled_from(range(len(problem.tensors)))))
    net = nx.DiGraph()
    net.add_nodes_from(range(len(problem.ops)))
    net.add_edges_from((p, v) for v, ps in enumerate(parents_of(problem)) for p in ps)
    may = net.subgraph(v for v in net if problem.ops[v].recomputable)
    makers = {problem.tensors[t].producer for t in after} & set(may)
    assert reachable(problem, sorted(after)) == sorted(
        makers.union(*(nx.ancestors(may, maker) for maker in makers))
    )
