"""The exact engine: constraint programming over retention intervals, for small problems.

Time is an axis of events: stage q is what happens between base operations q-1 and q, and

    event(q, m) = q·(n + 1) + m

is the moment in stage q at which operation m runs again, or its output is copied back; base
operation q itself is event(q, q). A copy of a tensor is an interval that starts at a known event and
ends with its last reader; a reader is covered by exactly one copy, the newest. All copies, and the
workspace of each run, share one cumulative resource: the capacity.

    minimise  Σ c_m·again[m,q] + Σ out_t·host[t] + Σ in_t·back[t,q]

(retention intervals after Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural
Networks", ICML 2023; here with any number of copies per tensor, each at one of a set of candidate
stages, with swaps, and with in-place operations.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from planner.plan.execute import Decisions
from planner.plan.improve import Candidate
from planner.plan.problem import Action, ActionKind, Problem, TensorIndex
from planner.plan.simulate import simulate

MAX_OPS = 600
_COST_UNITS = 10_000_000
_MAX_STAGES = 10
_MAX_CANDIDATES = 6_000

Use = tuple[int, int]
"""(stage, operation) of a run: a base run where they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What the solver returned. `optimal` and `bound_us` hold for the candidate stages only."""

    candidate: Candidate
    optimal: bool
    bound_us: float


def solve_exact(
    problem: Problem,
    incumbent: Candidate,
    *,
    time_limit_s: float,
    lower_bound_us: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
) -> Exact | None:
    """Improve on `incumbent`, which fits; None where nothing was found in time.

    Args:
        lower_bound_us: a proven bound on the time of any plan (from `planner.plan.cuts`).
    """
    model = _Model(problem, incumbent)
    model.add_bound(lower_bound_us)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.5, time_limit_s)
    solver.parameters.random_seed = seed
    if workers:
        solver.parameters.num_workers = workers
    status = _solve_interruptibly(solver, model.cp)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    actions = model.actions(solver)
    replay = simulate(problem, actions)
    if replay.peak_bytes > problem.capacity_bytes:
        return None  # never trusted unreplayed
    unit = problem.base_duration_us / _COST_UNITS
    return Exact(
        candidate=Candidate(decisions=Decisions(), actions=actions, replay=replay),
        optimal=status == cp_model.OPTIMAL,
        bound_us=problem.base_duration_us + max(0.0, solver.best_objective_bound) * unit,
    )


def _solve_interruptibly(
    solver: cp_model.CpSolver, model: cp_model.CpModel
) -> cp_model.CpSolverStatus:
    """Solve on a thread of its own, so that Ctrl-C reaches Python at once. The solver's own handler
    would end the search and carry on with what was found."""
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(solver.solve, model)
        try:
            return future.result()
        except BaseException:
            solver.stop_search()
            raise


@dataclass(slots=True)
class _Copy:
    """One possible copy of a tensor. `present` is None for the copy of the base run."""

    start: int
    present: cp_model.IntVar | None
    end: cp_model.IntVar | int
    covers: list[tuple[Use, cp_model.IntVar]] = field(default_factory=list)


class _Model:
    def __init__(self, problem: Problem, incumbent: Candidate) -> None:
        self.problem = problem
        self.n = len(problem.ops)
        self.cp = cp_model.CpModel()
        self.horizon = self._event(self.n, self.n)
        self.plan = _stages(problem, incumbent.actions)
        self.stages = self._candidate_stages()
        self.again = {
            (m, q): self.cp.new_bool_var(f"again_{m}_{q}")
            for m, qs in self.stages.items()
            for q in qs
            if problem.ops[m].recomputable and problem.allow_recompute
        }
        self.back: dict[tuple[int, int], cp_model.IntVar] = {}
        self.host: dict[int, cp_model.IntVar] = {}
        self._swaps()
        self.copies = [self._copies_of(t) for t in range(len(problem.tensors))]
        self._uses()
        self._memory()
        self._objective()
        self._hint()

    def _event(self, stage: int, op: int) -> int:
        return stage * (self.n + 1) + op

    # -- candidates --------------------------------------------------------------------------

    def _candidate_stages(self) -> dict[int, list[int]]:
        """Stages in which an operation may run again or its outputs come back: before each use that
        closes a gap over an operation that is too full, for those and for what they need."""
        problem = self.problem
        base = [Action(kind=ActionKind.RUN, target=i) for i in range(self.n)]
        live = simulate(problem, base).live_bytes
        over = [i for i in range(self.n) if live[i] > problem.capacity_bytes]
        wanted: dict[int, set[int]] = {}
        for tensor in problem.tensors:
            events = (tensor.producer, *tensor.uses)
            for opens, closes in itertools.pairwise(events):
                if tensor.bytes and any(opens < p < closes for p in over):
                    wanted.setdefault(tensor.producer, set()).add(closes)
        planned: dict[int, set[int]] = {}
        for stage, op in self.plan.again:
            planned.setdefault(op, set()).add(stage)
        for stage, t in self.plan.back:
            planned.setdefault(problem.tensors[t].producer, set()).add(stage)
        limit = _MAX_STAGES
        while True:
            chosen = self._close(wanted, planned, limit)
            if limit == 1 or sum(map(len, chosen.values())) <= _MAX_CANDIDATES:
                return chosen
            limit -= 1

    def _close(
        self, wanted: dict[int, set[int]], planned: dict[int, set[int]], limit: int
    ) -> dict[int, list[int]]:
        """Closure of the wanted stages over inputs, at most `limit` for each operation besides
        those of the incumbent plan."""
        problem = self.problem
        stages = {op: set(qs) for op, qs in wanted.items()}
        chosen: dict[int, list[int]] = {}
        for op in range(self.n - 1, -1, -1):
            mine = planned.get(op, set())
            extra = sorted(q for q in stages.get(op, ()) if q > op and q not in mine)
            if len(extra) > limit:
                own = sorted(set(extra) & wanted.get(op, set()))[:limit]
                rest = [q for q in extra if q not in own]
                room = limit - len(own)
                stride = max(1, -(-len(rest) // room)) if room else 1
                extra = sorted({*own, *(rest[::stride] if room else ())})
            qs = sorted({*extra, *mine})
            if not qs:
                continue
            chosen[op] = qs
            if problem.ops[op].recomputable:
                for t in problem.ops[op].inputs:
                    stages.setdefault(problem.tensors[t].producer, set()).update(qs)
        return chosen

    # -- variables ---------------------------------------------------------------------------

    def _swaps(self) -> None:
        problem = self.problem
        if not problem.allow_swap:
            return
        for t, tensor in enumerate(problem.tensors):
            qs = [q for q in self.stages.get(tensor.producer, ()) if q > tensor.producer]
            if not tensor.swappable or not tensor.bytes or not tensor.uses or not qs:
                continue
            host = self.cp.new_bool_var(f"host_{t}")
            self.host[t] = host
            for q in qs:
                back = self.cp.new_bool_var(f"back_{t}_{q}")
                self.back[t, q] = back
                self.cp.add_implication(back, host)
                if (tensor.producer, q) in self.again:
                    self.cp.add_at_most_one(back, self.again[tensor.producer, q])

    def _copies_of(self, t: int) -> list[_Copy]:
        tensor = self.problem.tensors[t]
        producer = tensor.producer
        first = self._event(producer, producer)
        if tensor.to_end:
            copies = [_Copy(first, None, self.horizon)]
        else:
            end = self.cp.new_int_var(first + 1, self.horizon, f"end_{t}")
            copies = [_Copy(first, None, end)]
        for q in self.stages.get(producer, ()):
            makers = [
                v for v in (self.again.get((producer, q)), self.back.get((t, q))) if v is not None
            ]
            if not makers:
                continue
            start = self._event(q, producer)
            present = makers[0]
            if len(makers) > 1:
                present = self.cp.new_bool_var(f"copy_{t}_{q}")
                self.cp.add_exactly_one(*makers, present.negated())
            end = self.cp.new_int_var(start + 1, self.horizon, f"end_{t}_{q}")
            copies.append(_Copy(start, present, end))
        return copies

    # -- constraints -------------------------------------------------------------------------

    def _uses(self) -> None:
        """Every reader is covered by exactly one copy: the newest."""
        for q, op in enumerate(self.problem.ops):
            for t in op.inputs:
                self._cover(t, (q, q), None, self._in_place(q, t))
        for (m, q), runs in self.again.items():
            for t in self.problem.ops[m].inputs:
                self._cover(t, (q, m), runs, self._in_place(m, t))

    def _in_place(self, op: int, tensor: int) -> bool:
        return any(source == tensor for source, _ in self.problem.ops[op].inplace)

    def _cover(self, t: int, use: Use, runs: cp_model.IntVar | None, in_place: bool) -> None:
        at = self._event(*use)
        needed = at if in_place else at + 1
        options = [c for c in self.copies[t] if c.start < at]
        if len(options) == 1 and options[0].present is None:
            end = options[0].end
            if not isinstance(end, int):
                constraint = self.cp.add(end >= needed)
                if runs is not None:
                    constraint.only_enforce_if(runs)
            return
        literals = []
        for i, copy in enumerate(options):
            covers = self.cp.new_bool_var("")
            copy.covers.append((use, covers))
            literals.append(covers)
            if copy.present is not None:
                self.cp.add_implication(covers, copy.present)
            if not isinstance(copy.end, int):
                self.cp.add(copy.end >= needed).only_enforce_if(covers)
            for newer in options[i + 1 :]:
                assert newer.present is not None
                self.cp.add_implication(covers, newer.present.negated())
        if runs is None:
            self.cp.add_exactly_one(literals)
        else:
            self.cp.add_exactly_one(*literals, runs.negated())

    def _memory(self) -> None:
        intervals: list[cp_model.IntervalVar] = []
        demands: list[int] = []
        for t, copies in enumerate(self.copies):
            size = self.problem.tensors[t].bytes
            if not size:
                continue
            for copy in copies:
                length = copy.end - copy.start
                if copy.present is None:
                    intervals.append(self.cp.new_interval_var(copy.start, length, copy.end, ""))
                else:
                    intervals.append(
                        self.cp.new_optional_interval_var(
                            copy.start, length, copy.end, copy.present, ""
                        )
                    )
                demands.append(size)
        for q, op in enumerate(self.problem.ops):
            if not op.workspace_bytes:
                continue
            intervals.append(self.cp.new_fixed_size_interval_var(self._event(q, q), 1, ""))
            demands.append(op.workspace_bytes)
            for (m, stage), runs in self.again.items():
                if m == q:
                    start = self._event(stage, m)
                    intervals.append(
                        self.cp.new_optional_fixed_size_interval_var(start, 1, runs, "")
                    )
                    demands.append(op.workspace_bytes)
        capacity = self.problem.capacity_bytes - self.problem.fixed_bytes
        self.cp.add_cumulative(intervals, demands, capacity)

    def _objective(self) -> None:
        problem = self.problem
        unit = _COST_UNITS / problem.base_duration_us
        terms = [round(problem.ops[m].duration_us * unit) * v for (m, _), v in self.again.items()]
        terms += [
            round(problem.swap_in_us(TensorIndex(t)) * unit) * v for (t, _), v in self.back.items()
        ]
        terms += [
            round(problem.swap_out_us(TensorIndex(t)) * unit) * v for t, v in self.host.items()
        ]
        self.cost = sum(terms)
        self.terms = len(terms)
        self.cp.minimize(self.cost)

    def add_bound(self, bound_us: float) -> None:
        """State a proven bound on the plan's time; every cost is rounded by at most half a unit."""
        extra_us = bound_us - self.problem.base_duration_us
        units = int(extra_us * _COST_UNITS / self.problem.base_duration_us) - self.terms
        if units > 0:
            self.cp.add(self.cost >= units)

    # -- hint and answer ---------------------------------------------------------------------

    def _hint(self) -> None:
        """The incumbent plan, variable by variable."""
        again, back = set(self.plan.again), set(self.plan.back)
        for (m, q), v in self.again.items():
            self.cp.add_hint(v, (q, m) in again)
        for (t, q), v in self.back.items():
            self.cp.add_hint(v, (q, t) in back)
        hosted = {t for _, t in back}
        for t, v in self.host.items():
            self.cp.add_hint(v, t in hosted)
        runs = {(q, q) for q in range(self.n)} | again
        for t, copies in enumerate(self.copies):
            producer = self.problem.tensors[t].producer
            made = [
                c.present is None
                or (c.start // (self.n + 1), producer) in again
                or (c.start // (self.n + 1), t) in back
                for c in copies
            ]
            last = [c.start + 1 for c in copies]
            for use in sorted(runs):
                if t not in self.problem.ops[use[1]].inputs:
                    continue
                at = self._event(*use)
                newest = max(i for i, c in enumerate(copies) if made[i] and c.start < at)
                needed = at if self._in_place(use[1], t) else at + 1
                last[newest] = max(last[newest], needed)
                for i, c in enumerate(copies):
                    for other, literal in c.covers:
                        if other == use:
                            self.cp.add_hint(literal, i == newest)
            for c, end in zip(copies, last, strict=True):
                if not isinstance(c.end, int):
                    self.cp.add_hint(c.end, end)
            for c, present in zip(copies, made, strict=True):
                if c.present is not None and c.present.name.startswith("copy_"):
                    self.cp.add_hint(c.present, present)
            for c in copies:
                for use, literal in c.covers:
                    if use not in runs:
                        self.cp.add_hint(literal, False)

    def actions(self, solver: cp_model.CpSolver) -> list[Action]:
        """The schedule of a solution."""
        events: list[tuple[int, int, Action]] = []
        for (m, q), v in self.again.items():
            if solver.boolean_value(v):
                events.append((self._event(q, m), 0, Action(kind=ActionKind.RUN, target=m)))
        for (t, q), v in self.back.items():
            if solver.boolean_value(v):
                at = self._event(q, self.problem.tensors[t].producer)
                events.append((at, 1, Action(kind=ActionKind.SWAP_IN, target=t)))
        swapped = {t for (t, q), v in self.back.items() if solver.boolean_value(v)}
        for q, op in enumerate(self.problem.ops):
            at = self._event(q, q)
            events.append((at, 0, Action(kind=ActionKind.RUN, target=q)))
            events.extend(
                (at, 1, Action(kind=ActionKind.SWAP_OUT, target=t))
                for t in op.outputs
                if t in swapped
            )
        return [action for _, _, action in sorted(events, key=lambda e: e[:2])]


@dataclass(frozen=True, slots=True)
class _Stages:
    """A schedule in terms of stages: (stage, operation) again, (stage, tensor) back."""

    again: tuple[tuple[int, int], ...]
    back: tuple[tuple[int, int], ...]


def _stages(problem: Problem, actions: Sequence[Action]) -> _Stages:
    again: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []
    stage = 0
    for action in actions:
        if action.kind is ActionKind.SWAP_IN:
            back.append((stage, action.target))
        elif action.kind is ActionKind.RUN:
            if action.target == stage:
                stage += 1
            else:
                again.append((stage, action.target))
    return _Stages(tuple(again), tuple(back))
