"""The choice of how much of each lever a plan uses: one search for all levers.

The plan without a lever comes first, if there may be one; if it takes hardly more time than the
model as it is, it is final. Otherwise the lever says which models to plan in earnest instead
(`Lever.rungs`), and one of these must be better. For a lever that applies to few or many tensors,
quick searches find the number (`Climb`). The lists here contain only levers that the request asks
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.graph.schedule import with_folded
from planner.pipeline.levers.lever import Case, Ladder, Lever, Rung, Trouble
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.least_plan import TooShortError
from planner.pipeline.solve.orders import BaseOrder, base_orders
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import Means, make_plan
from planner.pipeline.solve.quick import between, quick_us, quickest
from planner.runtime.optimizers.fusion_pins import TakenError


def plan_with(
    levers: Sequence[Lever],
    prepared: Prepared,
    settings: Settings,
    means: Means,
    orders: tuple[BaseOrder, ...] = (),
) -> Planned:
    """Return the fastest plan of a model within the budget, with as much of each lever as pays.

    Args:
        levers: the levers allowed, each chosen by the plans that the later ones allow.
        orders: base orders of the model, if known.

    Raises:
        InfeasibleBudgetError: no plan fits the budget.
        TakenError: ONNX Runtime's optimizers take nodes of every plan away.
    """
    if not levers:
        return make_plan(prepared, settings, means, orders=orders)
    case = Case(prepared=prepared, settings=settings, means=means, began=clock.now())
    return _Choice(levers[0], levers[1:], case).run()


@dataclass(slots=True)
class _Choice:
    """One lever, the later ones, and the case to choose it for."""

    lever: Lever
    rest: Sequence[Lever]
    case: Case

    def run(self) -> Planned:
        """Run the choice; see `plan_with`."""
        lever, case, plain = self.lever, self.case, None
        errors: list[InfeasibleBudgetError | TakenError] = []
        if lever.goes_without(case):
            if lever.said:
                case.means.progress(lever.said)
            try:
                first = Rung(prepared=case.prepared, may_add=False)
                plain = self._made(first, lever.shares.plain)
            except InfeasibleBudgetError as error:
                errors.append(error)
            if plain is not None and lever.is_enough(case, plain):
                return plain
            self.case = case = replace(case, plain=plain, is_tried=True)
        try:
            for rung in lever.rungs(case):
                try:
                    made = self._made(rung)
                except (InfeasibleBudgetError, TakenError) as error:
                    if plain is None and rung.prepared is case.prepared:
                        raise  # nothing is left to try
                    errors.append(error)
                    if plain is not None:
                        break
                    continue
                if plain is None or lever.prefers(case, made, plain):
                    return made
                return plain.interrupted() if made.solved.is_interrupted else plain
        except KeyboardInterrupt:
            if plain is None:
                raise
            return plain.interrupted()
        if plain is not None:
            return plain
        refused = [error for error in errors if isinstance(error, InfeasibleBudgetError)]
        for error in refused:
            if isinstance(error, TooShortError):
                raise error
        if refused:
            raise lever.refusal(case, refused)
        return self._made(Rung(prepared=case.prepared))  # raises the error

    def _made(self, rung: Rung, share: float | None = None) -> Planned:
        """Plan a rung, or the rung that the lever replaces it with after seeing the result.

        Args:
            share: share of the time limit by whose end the plan is due; None for the lever's own.
        """
        while True:
            found: Trouble
            try:
                settings = self._settings(share)
                found = plan_with(self.rest, rung.prepared, settings, self.case.means, rung.orders)
            except (InfeasibleBudgetError, TakenError) as error:
                found = error
            again = self.lever.mended(self.case, rung, found)
            if again is not None:
                rung = again
            elif isinstance(found, Planned):
                return found
            else:
                raise found

    def _settings(self, share: float | None) -> Settings:
        """Return the settings with the time left."""
        case, shares = self.case, self.lever.shares
        limit_s = case.settings.time_limit_s
        until = shares.until if share is None else share
        left_s = until * limit_s - (clock.now() - case.began)
        settings = replace(case.settings, time_limit_s=max(shares.rest * limit_s, left_s))
        return replace(settings, since=case.began) if shares.is_one_wait else settings


@dataclass(slots=True)
class Climb:
    """Quick searches with a lever used on more or fewer tensors of its ladder.

    Attributes:
        order_of: without a plain plan, the model whose best order the searches use.
        names: operations of the model without the lever, in the order of the searches.
        times: by number of tensors, the time that plans add to the model's, in microseconds;
            infinite if nothing fits.
        made: the quickest number so far, and its model.
        until: end of the searches.
    """

    lever: Lever
    case: Case
    ladder: Ladder
    order_of: Prepared
    names: list[str] = field(default_factory=list)
    times: dict[int, float] = field(default_factory=dict)
    made: tuple[int, Prepared] | None = None
    until: float = 0.0

    def found(self) -> Prepared | None:
        """Apply the lever to as many tensors as are quickest; None if none of them is no worse."""
        case, shares, none = self.case, self.lever.shares, float("inf")
        quick_s = shares.quick_s(case.settings.time_limit_s)
        self.until = clock.now() + quick_s
        if case.plain is None:
            of, orders = self.order_of, base_orders(self.order_of, time_limit_s=quick_s)
            limit_s = quick_s / shares.searches
            order = quickest(of, orders, case.settings, limit_s)[0].order
        else:
            of, order = case.plain.prepared, case.plain.base.order
        mine = {op.name for op in case.prepared.graph.operations}
        names = (of.graph.operations[op].name for op in with_folded(of.graph, order))
        self.names = [name for name in names if name in mine]
        plain_us = none if case.plain is None else case.plain.added_us
        self._search(plain_us)
        base_us = case.prepared.baseline.time_us
        best_us = min(self.times.values())
        count = len(self.ladder.ranked)
        if best_us < none:
            near_us = best_us + shares.slower * base_us
            count = min(n for n, us in self.times.items() if us <= near_us)
        if case.plain is not None and shares.gives_up:
            if self.times[count] > case.most_added_us:
                return None
        elif not count and case.is_tried:
            return None
        if self.made is not None and self.made[0] == count:
            return self.made[1]
        return self.lever.apply(case.prepared, self.ladder.first(count))

    def _search(self, plain_us: float) -> None:
        """Search with all tensors, with half of them, then near the best number.

        Without a plan for none of them, none takes the place of half.
        """
        most, shares = len(self.ladder.ranked), self.lever.shares
        self._try([most, most // 2 if self.case.is_tried else 0])
        if self.case.plain is not None:
            if shares.gives_up and min(self.times.values()) > plain_us:
                return
            self.times[0] = plain_us
        while len(self.times) < shares.searches and clock.now() < self.until:
            counts = between({0, *self.times}, self._best())[:1]
            if not counts:
                break
            self._try(counts)

    def _best(self) -> int:
        return min(self.times, key=lambda n: (self.times[n], n))

    def _try(self, counts: Sequence[int]) -> None:
        """Search with the lever on each number of tensors that was not tried yet."""
        for count in dict.fromkeys(counts):
            if count in self.times or (self.case.is_tried and not count):
                continue
            prepared = self.lever.apply(self.case.prepared, self.ladder.first(count))
            order = self.lever.in_order(prepared.graph, self.names)
            left_s = (self.until - clock.now()) / self.lever.shares.searches
            limit_s = max(POLICY.least_quick_s, left_s)
            found_us = quick_us(prepared, order, self.case.settings, limit_s)
            self.times[count] = found_us - prepared.baseline.time_us
            if self._best() == count:
                self.made = count, prepared
