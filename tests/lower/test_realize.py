"""File order and anchors give the wanted sequence under ONNX Runtime's default order."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph.schedule import reverse_dfs_order
from planner.lower.order.dynamic_order import DynamicOrder
from planner.lower.order.realize import UnanchoredError, _first, _OrderSearch, _RootSearch, realize
from planner.lower.order.riders import carried


@st.composite
def sequences(draw: st.DrawFn) -> list[list[int]]:
    """Parents of each step; all earlier."""
    count = draw(st.integers(1, 40))
    return [
        sorted(draw(st.sets(st.integers(0, v - 1), max_size=3))) if v else [] for v in range(count)
    ]


def executed(
    parents: list[list[int]], rank: list[int] | None = None
) -> tuple[list[int], list[int]]:
    """(steps as the runtime runs them, anchors left out; the anchors)."""
    plan = realize(parents, rank=rank)
    graph = [list(p) for p in parents]
    file = list(plan.body)
    for step, is_anchor in plan.roots:
        if is_anchor:
            graph.append([step])
            file.append(len(graph) - 1)
        else:
            file.append(step)
    place = {node: i for i, node in enumerate(file)}
    assert sorted(place) == list(range(len(graph)))
    assert all(place[p] < place[v] for v, ps in enumerate(graph) for p in ps), "not topological"
    order = reverse_dfs_order(graph, [place[v] for v in range(len(graph))])
    return [v for v in order if v < len(parents)], list(plan.anchors)


@settings(max_examples=150, deadline=None)
@given(sequences())
def test_any_sequence_is_realized(parents):
    order, _ = executed(parents)
    assert order == list(range(len(parents)))


def network(parents: list[list[int]]) -> nx.DiGraph:
    """An edge from each step to those that read it."""
    net = nx.DiGraph()
    net.add_nodes_from(range(len(parents)))
    net.add_edges_from((p, v) for v, ps in enumerate(parents) for p in ps)
    return net


@settings(max_examples=120, deadline=None)
@given(sequences())
def test_late_steps_come_first_as_far_as_dependencies_allow(parents):
    net = network(parents)
    has_reader = [bool(net[step]) for step in net]
    body = net.subgraph(step for step in net if has_reader[step])
    latest = nx.lexicographical_topological_sort(body, key=lambda step: -step)
    assert _late_first(parents, has_reader) == list(latest)


def _late_first(parents: list[list[int]], has_reader: list[bool]) -> list[int]:
    return _first(parents, has_reader, [-step for step in range(len(parents))])


@settings(max_examples=120, deadline=None)
@given(sequences(), st.randoms(use_true_random=False))
def test_a_file_order_to_begin_from_needs_no_more_anchors(parents, random):
    rank = random.sample(range(len(parents)), len(parents))
    order, anchors = executed(parents, rank)
    assert order == list(range(len(parents)))
    assert len(anchors) <= len(executed(parents)[1])


@settings(max_examples=120, deadline=None)
@given(sequences())
def test_the_runtimes_own_order_needs_no_anchor(parents):
    own = reverse_dfs_order(parents, range(len(parents)))
    step = {node: i for i, node in enumerate(own)}
    again = [sorted(step[p] for p in parents[node]) for node in own]
    order, anchors = executed(again, own)
    assert order == list(range(len(parents)))
    assert not anchors


@settings(max_examples=150, deadline=None)
@given(sequences(), st.data())
def test_what_rides_runs_somewhere_and_all_else_as_wanted(parents, data):
    may_ride = data.draw(st.lists(st.booleans(), min_size=len(parents), max_size=len(parents)))
    bound = carried(parents, may_ride)
    riding = [*bound.first, *itertools.chain.from_iterable(bound.riders)]
    assert sorted([*bound.carriers, *riding]) == list(range(len(parents)))
    assert all(may_ride[step] and len(parents[step]) <= 1 for step in riding)
    plan = realize(bound.parents)
    graph = [list(p) for p in parents]
    file = list(bound.first)
    for place in plan.body:
        file += [bound.carriers[place], *bound.riders[place]]
    for place, is_anchor in plan.roots:
        if is_anchor:
            graph.append([bound.carriers[place]])
        file.append(len(graph) - 1 if is_anchor else bound.carriers[place])
    at = {node: i for i, node in enumerate(file)}
    assert all(at[p] < at[v] for v, ps in enumerate(graph) for p in ps), "not topological"
    order = reverse_dfs_order(graph, [at[v] for v in range(len(graph))])
    carriers = set(bound.carriers)
    assert [v for v in order if v in carriers] == list(bound.carriers)


@settings(max_examples=120, deadline=None)
@given(sequences(), st.data())
def test_edges_are_added_unless_they_close_a_cycle(parents, data):
    net = network(parents)
    start = data.draw(
        st.sampled_from([range(len(parents)), _late_first(parents, [True] * len(net))])
    )
    order = DynamicOrder(parents, start)
    steps = st.integers(0, len(parents) - 1)
    for first, second in data.draw(st.lists(st.tuples(steps, steps), max_size=30)):
        if first == second:
            continue
        closes = nx.has_path(net, second, first)
        assert order.add(first, second) is not closes
        if not closes:
            net.add_edge(first, second)
        place = {step: i for i, step in enumerate(order.order())}
        assert sorted(place) == sorted(net)
        assert all(place[a] < place[b] for a, b in net.edges)


@settings(max_examples=100, deadline=None)
@given(sequences())
def test_a_step_needs_itself_and_its_ancestors(parents):
    net = network(parents)
    search = _OrderSearch(parents, DynamicOrder(parents, range(len(parents))))
    for step in net:
        needed = {other for other in net if search._needs(step, other)}
        assert needed == {step, *nx.ancestors(net, step)}


def test_a_chain_needs_no_anchor():
    order, anchors = executed([[], [0], [1], [2]])
    assert order == [0, 1, 2, 3]
    assert not anchors


def test_a_swap_out_must_be_anchored():
    # 0 makes a; 1 copies it out; 2 works on a; 3 copies it back; 4 reads both
    order, anchors = executed([[], [0], [0], [1], [2, 3]])
    assert order == [0, 1, 2, 3, 4]
    assert len(anchors) <= 1


def test_a_step_that_reads_a_later_one_is_refused():
    with pytest.raises(ValueError, match="does not run before"):
        realize([[1], []])


@settings(max_examples=120, deadline=None)
@given(sequences(), st.data())
def test_anchors_stand_only_where_they_may(parents, data):
    may = [data.draw(st.booleans()) for _ in parents]
    try:
        plan = realize(parents, may)
    except UnanchoredError as error:
        assert not may[error.step]
        return
    assert all(may[step] for step in plan.anchors)


def test_an_anchor_that_may_not_stand_is_an_error_that_names_the_step():
    # as above, but neither the copy out nor what comes before it can be anchored
    with pytest.raises(UnanchoredError) as caught:
        realize([[], [0], [0], [1], [2, 3]], [False] * 5)
    assert caught.value.step in (0, 1)


@settings(max_examples=120, deadline=None)
@given(sequences(), st.data())
def test_a_search_that_goes_on_is_one_from_the_start(parents, data):
    has_reader = [any(v in ps for ps in parents) for v in range(len(parents))]
    search = _OrderSearch(parents, DynamicOrder(parents, _late_first(parents, has_reader)))
    root = len(parents) - 1
    way = _RootSearch(root)
    while search.position <= root:
        reached = search.go_on(way)
        down = list(way.down())
        assert search.probe(root) == reached
        if reached == root:
            break
        assert list(search.wrong_way.down()) == down
        step = data.draw(st.integers(search.position, root))
        if step < reached:
            way.back_to(step)
        search.advance(step)


def test_the_way_down_to_an_anchor_is_gone_once(monkeypatch):
    """Two chains that take turns, and one leaf behind both: every step needs an anchor."""
    looked_at = [0]

    class Counted(list):
        def __getitem__(self, step):
            looked_at[0] += 1
            return super().__getitem__(step)

    class Counting(_OrderSearch):
        def __init__(self, parents, order):
            super().__init__(parents, order)
            self.parents = Counted(self.parents)

        def put_right(self):
            return False

    monkeypatch.setattr("planner.lower.order.realize._OrderSearch", Counting)
    length = 2_000
    parents = [[step - 2] if step > 1 else [] for step in range(length)]
    plan = realize([*parents, [length - 2, length - 1]])
    assert len(plan.anchors) > length * 0.9
    assert looked_at[0] < 20 * length
