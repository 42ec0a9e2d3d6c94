"""Loads that begin early, and stores: nothing is read before it is there, bytes hold, and the step is no
longer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import (
    Action,
    ActionKind,
    OpIndex,
    Paging,
    PlanOp,
    PlanTensor,
    Problem,
    TensorIndex,
)
from planner.search.evaluate import Evaluator
from planner.simulate.loads import begun_early
from planner.simulate.simulate import simulate
from planner.simulate.waits import unpaired, with_waits
from tests.graphs import at_capacity, decisions_for, problems
from tests.simulate.test_streams import chain, plan

RUN, OUT, IN, DONE = (
    ActionKind.RUN,
    ActionKind.SWAP_OUT,
    ActionKind.SWAP_IN,
    ActionKind.SWAP_OUT_DONE,
)


def loads_of(problem: Problem) -> frozenset[int]:
    """Operations that could be copies of what lives on the host: they read nothing, need no workspace
    and are read."""
    found = set[int]()
    for i, op in enumerate(problem.ops):
        made = [problem.tensors[t] for t in op.outputs]
        is_copy = not op.inputs and made and not op.workspace_bytes
        if is_copy and all(t.uses and not t.to_end for t in made):
            found.add(i)
    return frozenset(found)


def paged(problem: Problem) -> tuple[Problem, Paging]:
    """The problem with its loads, and, behind all, a store of each tensor that nothing writes over."""
    loads = loads_of(problem)
    written = {source for op in problem.ops for source, _ in op.inplace}
    ops, tensors = list(problem.ops), list(problem.tensors)
    for t, tensor in enumerate(problem.tensors):
        if tensor.producer in loads:
            tensors[t] = replace(tensor, swappable=False)
        elif t % 2 and t not in written and not tensor.to_end:
            uses = (*tensor.uses, OpIndex(len(ops)))
            tensors[t] = replace(tensor, uses=uses, host_copy=True)
            made = TensorIndex(len(tensors))
            host = PlanTensor(name=f"h{t}", bytes=0, producer=uses[-1], uses=(), to_end=True)
            tensors.append(replace(host, swappable=False))
            store = PlanOp(
                name=f"store{t}", duration_us=3.0, inputs=(TensorIndex(t),), outputs=(made,)
            )
            ops.append(replace(store, recomputable=False))
    stores = frozenset(range(len(problem.ops), len(ops)))
    made = replace(problem, ops=tuple(ops), tensors=tuple(tensors), overlap=True)
    return made, Paging(loads=loads, stores=stores)


@settings(max_examples=120, deadline=None)
@given(data=st.data(), problem=problems())
def test_any_schedule_holds_no_more_and_takes_no_longer(data, problem):
    problem, paging = paged(problem)
    order = [*range(len(problem.ops))]
    actions = Evaluator(problem).evaluate(data.draw(decisions_for(problem))).actions
    before = simulate(problem, actions, paging)
    tight = at_capacity(problem, before.peak_bytes + data.draw(st.integers(0, 20)))
    found = begun_early(tight, actions, paging)
    after = simulate(tight, found, paging)
    assert after.peak_bytes <= tight.capacity_bytes
    assert after.time_us <= simulate(tight, actions, paging).time_us + 1e-9
    others = [a for a in actions if a.kind is not RUN or a.target not in paging.loads]
    assert [a for a in found if a.kind is not RUN or a.target not in paging.loads] == others
    ran, listed = (Counter(a.target for a in of if a.kind is RUN) for of in (found, actions))
    assert set(ran) == set(listed) == set(order) and ran <= listed
    beside = paging.loads | paging.stores
    least_us = sum(problem.ops[op].duration_us * n for op, n in ran.items() if op not in beside)
    assert after.time_us >= least_us - 1e-9
    waiting = with_waits(tight, found, paging)
    assert with_waits(tight, waiting, paging) == waiting
    bare = [a for a in waiting if a.kind is not DONE]
    timed = simulate(tight, waiting, paging)
    assert timed.time_us == pytest.approx(simulate(tight, bare, paging).time_us)
    assert timed.peak_bytes <= tight.capacity_bytes
    check_stores(tight, waiting, paging)


def check_stores(problem: Problem, waiting: list[Action], paging: Paging) -> None:
    """Each is waited for once, before what it reads comes back; a schedule without that is refused."""
    assert unpaired(problem, waiting, paging, beside=True) is None
    for t, op in paging.stored(problem).items():
        (done,) = (i for i, a in enumerate(waiting) if a.kind is DONE and a.target == t)
        begins = (Action(kind=RUN, target=op), Action(kind=OUT, target=t))
        assert any(action in begins for action in waiting[:done])
        back = [i for i, a in enumerate(waiting) if a.kind is IN and a.target == t]
        assert all(i > done for i in back)
        first = [waiting[done], *waiting[:done], *waiting[done + 1 :]]
        assert unpaired(problem, first, paging, beside=True) == t
        assert unpaired(problem, [*waiting, waiting[done]], paging, beside=True) == t
        if back:
            late = [*waiting[:done], *waiting[done + 1 :], waiting[done]]
            assert unpaired(problem, late, paging, beside=True) == t
        assert unpaired(problem, waiting, Paging(loads=paging.loads), beside=True) is not None
        assert unpaired(problem, waiting, paging, beside=False) is not None


def test_a_store_is_waited_for_where_its_memory_is_needed_and_else_at_the_end():
    # b (10 us to the host) is stored as operation 2 begins
    problem = chain()
    host = PlanTensor(name="h", bytes=0, producer=OpIndex(5), uses=(), to_end=True)
    tensors = [*problem.tensors, host]
    tensors[1] = replace(tensors[1], uses=(OpIndex(2), OpIndex(5)), host_copy=True)
    store = PlanOp(
        name="store", duration_us=10.0, inputs=(TensorIndex(1),), outputs=(TensorIndex(5),)
    )
    ops = (*problem.ops, replace(store, recomputable=False))
    problem = replace(problem, ops=ops, tensors=tuple(tensors))
    paging = Paging(stores=frozenset({5}))
    steps = plan((RUN, 0), (RUN, 1), (RUN, 5), (RUN, 2), (RUN, 3), (RUN, 4))
    # a and b are there, and c: with 30 bytes d needs those of b, which are free at 18
    for capacity, place, time_us in ((30, 4, 26.0), (100, 6, 20.0)):
        tight = at_capacity(problem, capacity)
        waiting = with_waits(tight, steps, paging)
        assert waiting.index(Action(kind=DONE, target=1)) == place
        replay = simulate(tight, waiting, paging)
        assert (replay.time_us, replay.paged_us) == (time_us, 10.0)
        assert replay.peak_bytes <= capacity


def test_a_load_hides_behind_the_operations_before_its_reader():
    problem, paging = loaded(capacity=100)
    steps = plan((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 3), (RUN, 4))
    plain, early = (
        simulate(problem, steps, paging),
        simulate(problem, begun_early(problem, steps, paging), paging),
    )
    load_us = problem.ops[2].duration_us
    assert plain.time_us - early.time_us == pytest.approx(load_us)
    assert early.stall_us == pytest.approx(0.0) and plain.stall_us == pytest.approx(load_us)
    assert early.paged_us == load_us


def test_a_load_waits_where_there_is_no_room_for_it():
    steps = plan((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 3), (RUN, 4))
    problem, paging = loaded(capacity=100)
    peak = simulate(problem, steps, paging).peak_bytes
    tight, paging = loaded(capacity=peak)
    assert simulate(tight, begun_early(tight, steps, paging), paging).peak_bytes <= peak


def loaded(capacity: int) -> tuple[Problem, Paging]:
    """A chain whose third operation only copies in what the fourth reads."""
    problem = chain(capacity=capacity)
    ops = list(problem.ops)
    load = ops[2]
    made = load.outputs[0]
    tensors = list(problem.tensors)
    for t in load.inputs:
        tensors[t] = replace(tensors[t], uses=tuple(u for u in tensors[t].uses if u != 2) or (3,))
        if 3 in tensors[t].uses and t not in ops[3].inputs:
            ops[3] = replace(ops[3], inputs=(*ops[3].inputs, t))
    ops[2] = replace(load, inputs=(), inplace=())
    assert tensors[made].uses
    problem = replace(problem, ops=tuple(ops), tensors=tuple(tensors), overlap=True)
    return problem, Paging(loads=frozenset({2}))
