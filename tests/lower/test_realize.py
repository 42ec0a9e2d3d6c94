"""File order and anchors give the wanted sequence under ONNX Runtime's default order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph.schedule import reverse_dfs_order
from planner.lower.realize import UnanchoredError, realize


@st.composite
def sequences(draw: st.DrawFn) -> list[list[int]]:
    """Parents of each step; all earlier."""
    count = draw(st.integers(1, 40))
    return [
        sorted(draw(st.sets(st.integers(0, v - 1), max_size=3))) if v else [] for v in range(count)
    ]


def executed(parents: list[list[int]]) -> tuple[list[int], list[int]]:
    """(steps as the runtime runs them, anchors left out; the anchors)."""
    plan = realize(parents)
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


@settings(max_examples=400, deadline=None)
@given(sequences())
def test_any_sequence_is_realized(parents):
    order, _ = executed(parents)
    assert order == list(range(len(parents)))


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


@settings(max_examples=300, deadline=None)
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
