"""The decisions of a plan: where each tensor is absent, at what cost, and why."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from planner.formulate import Formulation
from planner.graph.model import Role
from planner.graph.reasons import Reason, WhyClosed
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.solve.planned import Planned
from planner.plan.planfile import Decision
from planner.plan.problem import ActionKind, Problem, TensorIndex
from planner.search.repair import Closure, Stays, closure
from planner.units import counted, format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Why a way is closed: a code, and a text for people."""

    reason: Reason
    text: str


def recompute_closed(
    prepared: Prepared, form: Formulation, problem: Problem, blocker: int | None
) -> Closed | None:
    """Return why a chain of operations may not run again; None if it may.

    Args:
        problem: of `form`, with the levers that the plan's request allowed.
        blocker: see `planner.search.repair.closure`.
    """
    if not problem.allow_recompute:
        return _closed(WhyClosed.NOT_ASKED)
    if blocker is None:
        return None
    levers = prepared.request.levers
    if (
        levers.swap == "only" or not levers.recompute
    ):  # copies of tensors that live on the host still repeat
        return _closed(WhyClosed.NOT_ASKED)
    op = prepared.graph.operations[form.ops[blocker]]
    if op.why_once is None:
        return _closed(WhyClosed.TOO_MANY)
    return Closed(reason=op.why_once, text=f"{op.name} may not run twice: {op.why_not}")


def swap_closed(
    prepared: Prepared, form: Formulation, problem: Problem, index: int
) -> Closed | None:
    """Return why a tensor of the problem is not copied to the host; None if it may be."""
    if not problem.allow_swap:
        return _closed(prepared.why_no_swaps or WhyClosed.NOT_ASKED)
    why = prepared.graph.tensors[form.tensors[index]].why_stay
    return None if why is None else Closed(reason=why, text=why.sentence)


def _closed(why: WhyClosed) -> Closed:
    return Closed(reason=why, text=why.sentence)


def decisions_of(planned: Planned) -> tuple[Decision, ...]:
    """Return a decision for each range of steps in which a tensor is absent, largest tensor first."""
    candidate = planned.solved.found
    place = {name: i for i, name in enumerate(planned.rewritten.planned_order)}
    node_step = [place[name] for name in planned.rewritten.action_nodes]
    copies: dict[int, list[tuple[int, int]]] = {}
    for tensor, birth, end in candidate.replay.copies:
        copies.setdefault(tensor, []).append((birth, end))
    swap_ins = {step for step, a in enumerate(candidate.actions) if a.kind is ActionKind.SWAP_IN}
    returns = [
        _Return(tensor=tensor, end=end, birth=birth, swapped=birth in swap_ins)
        for tensor, lives in copies.items()
        for (_, end), (birth, _) in itertools.pairwise(lives)
        if end
        <= birth  # a tensor kept to the end is present even if a second run produces it again
    ]
    stays, problem = Stays(candidate.replay.copies), planned.formulation.problem
    found = (
        _decision(planned, closure(problem, stays, back.tensor, back.birth), back, node_step)
        for back in returns
    )
    return tuple(sorted(found, key=lambda d: (-d.bytes, d.tensor, d.start)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Return:
    """A tensor's absence from the device, from action `end` until action `birth`."""

    tensor: int
    end: int
    birth: int
    swapped: bool


def _decision(
    planned: Planned, chain_to_it: Closure, back: _Return, node_step: Sequence[int]
) -> Decision:
    """Describe the decision for a tensor that comes back, and its alternative.

    Args:
        chain_to_it: the operations that a recompute of it would run.
        node_step: by action, the step of its node in the rewritten model.
    """
    tensor, swapped = back.tensor, back.swapped
    prepared, form = planned.prepared, planned.formulation
    problem = form.problem
    item = problem.tensors[tensor]
    source = prepared.graph.tensors[form.tensors[tensor]]
    chain, blocker = chain_to_it
    no_recompute = recompute_closed(prepared, form, problem, blocker)
    no_swap = swap_closed(prepared, form, problem, tensor)
    again = chain if no_recompute is None else None
    recompute_us = None if again is None else sum(problem.ops[op].duration_us for op in again)
    swap_us = None
    if no_swap is None:
        swap_us = problem.swap_out_us(TensorIndex(tensor)) + problem.swap_in_us(TensorIndex(tensor))
    if swapped:
        why = _why_swapped(problem, tensor, no_recompute, chain, swap_us or 0.0)
    else:
        why = _why_recomputed(problem, tensor, again, no_swap, swap_us or 0.0)
    cost = swap_us if swapped else problem.ops[item.producer].duration_us
    paged = prepared.graph.operations[form.ops[item.producer]].role is Role.PAGE_IN
    if paged:
        why = f"it lives on the host; one more copy takes {format_duration(cost or 0.0)}"
    other = no_recompute if swapped else no_swap
    return Decision(
        tensor=item.name,
        bytes=source.bytes,
        category=source.category.value,
        action="page-in" if paged else "swap" if swapped else "recompute",
        start=node_step[min(back.end, len(node_step) - 1)],
        end=node_step[back.birth],
        cost_us=cost or 0.0,
        recompute_us=recompute_us,
        swap_us=swap_us,
        why=why,
        reason_code="" if other is None else other.reason.value,
    )


def _why_swapped(
    problem: Problem, tensor: int, closed: Closed | None, again: Sequence[int], swap_us: float
) -> str:
    producer = problem.ops[problem.tensors[tensor].producer].name
    if closed is not None:
        return "recompute is off" if closed.reason is WhyClosed.NOT_ASKED else closed.text
    recompute_us = sum(problem.ops[op].duration_us for op in again)
    beside = " beside the operations" if problem.overlap else ""
    copies = f"{_copies(problem, tensor, 'take')} {format_duration(swap_us)}{beside}"
    other = f"running {_several(producer, again)} again would take {format_duration(recompute_us)}"
    if recompute_us < swap_us:
        return f"{copies}; {other}, but would hold what it reads until then"
    return f"{copies}; {other}"


def _why_recomputed(
    problem: Problem,
    tensor: int,
    again: Sequence[int] | None,
    closed: Closed | None,
    swap_us: float,
) -> str:
    producer = problem.ops[problem.tensors[tensor].producer].name
    if again is None:  # part of a longer chain that runs again
        return f"{producer} runs again with other operations that need it"
    recompute_us = sum(problem.ops[op].duration_us for op in again)
    runs = f"running {_several(producer, again)} again takes {format_duration(recompute_us)}"
    if closed is not None:
        is_off = closed.reason in (WhyClosed.NOT_ASKED, WhyClosed.NO_KERNEL)
        return f"{runs}; {'copies to the host are off' if is_off else f'no copy: {closed.text}'}"
    if recompute_us <= swap_us:
        return f"{runs}; {_copies(problem, tensor, 'would take')} {format_duration(swap_us)}"
    own = problem.ops[again[0]].duration_us
    return (
        f"{producer} takes {format_duration(own)} as its inputs come back anyway; "
        f"{_copies(problem, tensor, 'would take')} {format_duration(swap_us)}"
    )


def _copies(problem: Problem, tensor: int, verb: str) -> str:
    if not problem.tensors[tensor].host_copy:
        return f"two copies {verb}"
    takes = "takes" if verb == "take" else verb
    return f"it is on the host for a reader there, and the copy back {takes}"


def _several(producer: str, again: Sequence[int]) -> str:
    more = len(again) - 1
    if not more:
        return producer
    return f"{producer} and {counted(more, 'more operation')}"
