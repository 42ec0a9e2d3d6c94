"""Store saved tensors in half precision, if the plan that this allows pays.

If there is no exact plan, or it takes more time than the model as it is, saved tensors are ranked
by the bytes that half precision frees times the steps over the budget for which it frees them. Only
as many of the ranking as needed are stored in half precision: each of them changes numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from planner.errors import InfeasibleBudgetError, ModelError
from planner.graph.model import OpId, Tensor, TrainingGraph
from planner.graph.saved import Saved, may_be_halved
from planner.pipeline.levers.choose import Climb
from planner.pipeline.levers.half.halving import check_can_halve, halved, in_order, name_of
from planner.pipeline.levers.lever import Case, Ladder, Lever, OverBudget, Rung
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.solve.quick import least_bytes
from planner.plan.planfile import Plan
from planner.request import Levers


class Halves(Lever):
    """`--cast-saved`."""

    option = "--cast-saved"
    shares = POLICY.halves

    def is_asked(self, levers: Levers) -> bool:
        return levers.cast_saved != "none"

    def supports(self, prepared: Prepared) -> None:
        check_can_halve(prepared)

    def rungs(self, case: Case) -> Iterator[Rung]:
        """Yield the model with as many halved tensors as quick searches find best, then with all."""
        progress, kind = case.means.progress, case.prepared.request.levers.cast_saved
        if case.plain is None:
            progress("no exact plan fits the budget")
        ladder = self.ladder(case)
        if not ladder.ranked:
            return
        progress(f"planning with saved tensors in {kind}")
        found = Climb(self, case, ladder, case.prepared).found()
        if found is None:
            return
        yield Rung(prepared=found)
        every = ranked(case.prepared, None)
        if len(found.halved) < len(every):
            progress("again, with all candidates in half")
            yield Rung(prepared=self.apply(case.prepared, frozenset(every)))

    def ladder(self, case: Case) -> Ladder:
        return Ladder(ranked=ranked(case.prepared, case.settings.room_bytes))

    def apply(self, prepared: Prepared, names: frozenset[str]) -> Prepared:
        return halved(prepared, names, prepared.request.levers.cast_saved)

    def in_order(self, graph: TrainingGraph, names: Iterable[str]) -> tuple[OpId, ...]:
        return in_order(graph, names)

    def refusal(self, case: Case, errors: Sequence[InfeasibleBudgetError]) -> InfeasibleBudgetError:
        exact, *tried = errors
        if not tried:
            return exact
        last, kind = tried[-1], case.prepared.request.levers.cast_saved
        return type(last)(
            f"{last}; the same holds with {len(ranked(case.prepared, None)):,} saved tensors in "
            f"half (--cast-saved {kind})",
            least_peak_bytes=min(
                (n for n in (last.least_peak_bytes, exact.least_peak_bytes) if n), default=0
            ),
            bound_bytes=last.bound_bytes,
            binding=last.binding,
        )

    def record(self, prepared: Prepared) -> dict[str, Any]:
        return {"cast_saved": prepared.request.levers.cast_saved, "halved": prepared.halved}

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        if not plan.halved:
            return prepared
        if plan.cast_saved == "none":
            raise ModelError(
                f"the plan has {plan.halved[0]!r} in half, and does not say in which type"
            )
        check_can_halve(prepared)
        known = {name_of(prepared, saved) for saved in may_be_halved(prepared.graph)}
        strange = next((name for name in plan.halved if name not in known), None)
        if strange is not None:
            raise ModelError(f"the plan has {strange!r} in half, which cannot be stored in half")
        return self.apply(prepared, frozenset(plan.halved))

    def bound_class(self, prepared: Prepared) -> str:
        return "with the same tensors in half" if prepared.halved else ""


def ranked(prepared: Prepared, room_bytes: int | None) -> tuple[str, ...]:
    """Rank the tensors that may be stored in half precision by bytes times steps over the budget.

    Args:
        room_bytes: the budget without its reserve; None counts every step.
    """
    least, over = least_bytes(prepared), OverBudget(prepared, room_bytes)
    found: list[tuple[int, str]] = []
    for saved in may_be_halved(prepared.graph):
        buffer = prepared.graph.tensors[saved.buffer]
        away = _away(buffer, saved, over)
        if buffer.bytes >= least and away > 0:
            found.append((-buffer.bytes * away, buffer.name))
    return tuple(name for _, name in sorted(found))


def _away(buffer: Tensor, saved: Saved, over: OverBudget) -> int:
    """Count the steps over the budget between a buffer's last forward use and its first backward one."""
    assert buffer.producer is not None
    step = over.step
    first = min(step[op] for op in saved.late)
    last = max([step[buffer.producer], *(step[op] for op in saved.early if step[op] < first)])
    return over.between(last + 1, first)
