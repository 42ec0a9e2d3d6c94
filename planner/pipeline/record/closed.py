"""The closed ways to bring a tensor back in a plan, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass

from planner.formulate import Formulation
from planner.graph.reasons import Reason, WhyClosed
from planner.pipeline.prepare.prepared import Prepared
from planner.plan.problem import Problem


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
