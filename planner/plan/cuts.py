"""The cut LP: a bound on the time of every plan, and a fractional plan to round.

A cut p is the instant at which base operation p runs. What is needed after p and is neither
resident at p, nor on the host, must be computed again after p, and so must (or be resident) whatever
that needs:

    minimise    Σ_m c_m R[m] + Σ_t out_t O[t] + Σ_(t,g) in_t W[t,g]
    res[t,p] + A[prod t,p] + W[t, gap at p] >= 1          t used after p
    res[t,p] + A[prod t,p] + W[t, gap at p] >= A[m,p]     t an input of m, m < p
    Σ_t s_t res[t,p] <= capacity - what p itself holds
    R[m] >= A[m,p],  O[t] >= W[t,g],  all in [0, 1]

Where copies run beside the operations they cost no time themselves; W is then one variable for each
cut, and `planner.plan.cut_copies` adds time.

Inputs of p are resident. The value is a lower bound for every schedule whose first executions
follow the base order, with any number of recomputes and swaps: each such schedule gives a feasible
point (A = executed again after p, res = resident at p) of no greater cost. In-place outputs are
credited in full, which keeps the bound valid.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.math_opt.python import mathopt

from planner.plan.cut_copies import CopyTimes
from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.interrupt import interruptibly
from planner.plan.problem import Problem

MIP_GAP = 1e-4

BOUND_CLASS = (
    "schedules that first run the operations in this base order, with any number of recomputes "
    "and swaps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSolution:
    """Optimum of the LP over some cuts.

    Attributes:
        extra_us: the value of this solution.
        bound_us: no plan adds less time than this to the base order.
        feasible: False where some cut cannot meet the capacity at all.
        resident, swapped: by tensor and cut. rerun: by operation and cut.
        price_us: by cut, what one more byte of capacity there takes off the bound: the dual price
            of the cut's row (0 for integer programs, which have none).
    """

    feasible: bool
    extra_us: float
    bound_us: float
    resident: dict[tuple[int, int], float]
    swapped: dict[tuple[int, int], float]
    rerun: dict[tuple[int, int], float]
    price_us: dict[int, float] = field(default_factory=dict)


def held_at(problem: Problem, p: int) -> int:
    """Bytes that any schedule holds while base operation p runs: fixed, inputs, outputs, workspace,
    and graph outputs made before; what may be written in place counts once."""
    op = problem.ops[p]
    size = problem.fixed_bytes + op.workspace_bytes
    size += sum(problem.tensors[t].bytes for t in (*op.inputs, *op.outputs))
    credited = {target for _, target in op.inplace}
    size -= sum(problem.tensors[t].bytes for t in credited)
    inputs = set(op.inputs)
    size += sum(
        t.bytes
        for i, t in enumerate(problem.tensors)
        if t.to_end and t.producer < p and i not in inputs
    )
    return size


def least_peak_bound(problem: Problem) -> tuple[int, int]:
    """(bytes, operation): no schedule of the class has a peak below this, whatever it recomputes.

    `held_at` for every operation, in O(operations + tensors).
    """
    outputs_before = [0] * (len(problem.ops) + 1)
    for t in problem.tensors:
        if t.to_end:
            outputs_before[t.producer + 1] += t.bytes
    best, where, stay = problem.fixed_bytes, 0, 0
    for p, op in enumerate(problem.ops):
        stay += outputs_before[p]
        own = problem.fixed_bytes + op.workspace_bytes + stay
        own += sum(problem.tensors[t].bytes for t in op.outputs)
        own += sum(problem.tensors[t].bytes for t in op.inputs if not problem.tensors[t].to_end)
        own -= sum(problem.tensors[t].bytes for t in {b for _, b in op.inplace})
        if own > best:
            best, where = own, p
    return best, where


INFEASIBLE = CutSolution(
    feasible=False, extra_us=0.0, bound_us=0.0, resident={}, swapped={}, rerun={}
)


def live_at(problem: Problem, p: int) -> tuple[list[int], list[int]]:
    """Tensors made before base operation p that need not be resident while it runs, and those of
    them that are used after it; in order."""
    inputs = set(problem.ops[p].inputs)
    live = [
        t
        for t, tensor in enumerate(problem.tensors)
        if tensor.producer < p and t not in inputs and not tensor.to_end
    ]
    after = [t for t in live if problem.tensors[t].uses and problem.tensors[t].uses[-1] > p]
    return live, after


def reachable(problem: Problem, after: Collection[int]) -> list[int]:
    """Operations that some plan might run again for the tensors `after` a cut, in order."""
    if not problem.allow_recompute:
        return []
    stack = [problem.tensors[t].producer for t in after]
    seen: set[int] = set()
    while stack:
        m = stack.pop()
        if m in seen or not problem.ops[m].recomputable:
            continue
        seen.add(m)
        stack.extend(problem.tensors[t].producer for t in problem.ops[m].inputs)
    return sorted(seen)


def needed_at(problem: Problem, p: int) -> tuple[list[int], list[int], list[int]]:
    """What a plan decides at a cut: (tensors live at p that are used behind it, operations that may
    run again behind it, live tensors of use to either); see `live_at`, `reachable`."""
    live, after = live_at(problem, p)
    reruns = reachable(problem, after)
    wanted = set(after)
    for m in reruns:
        wanted.update(problem.ops[m].inputs)
    return after, reruns, sorted(wanted.intersection(live))


class CutModel:
    """An LP to which cuts are added one by one."""

    def __init__(
        self,
        problem: Problem,
        guards: frozenset[int] = frozenset(),
        *,
        bandwidth_scale: float = 1.0,
    ) -> None:
        """`guards` are tensors that must stay resident: with any, or with less than the full
        bandwidth, the value is no bound."""
        self.problem = problem
        self.guards = guards
        self.model = mathopt.Model(name="cuts")
        self.cuts: list[int] = []
        self.rerun_any: dict[int, mathopt.Variable] = {}
        self.swap_gap: dict[Gap, mathopt.Variable] = {}
        self.swap_any: dict[int, mathopt.Variable] = {}
        self.swapped: dict[tuple[int, int], mathopt.Variable] = {}
        self.resident: dict[tuple[int, int], mathopt.Variable] = {}
        self.rerun: dict[tuple[int, int], mathopt.Variable] = {}
        self.memory: dict[int, mathopt.LinearConstraint] = {}
        self.objective: list[tuple[float, mathopt.Variable]] = []
        self.times: CopyTimes | None = None
        if problem.overlap and problem.allow_swap:
            self.times = CopyTimes(self.model, problem, bandwidth_scale=bandwidth_scale)

    def add(self, p: int) -> None:
        """Add the cut at base operation p."""
        if p in self.cuts:
            return
        self.cuts.append(p)
        problem, model = self.problem, self.model
        used_after, reruns, wanted = needed_at(problem, p)
        after = set(used_after)
        for m in reruns:
            variable = model.add_variable(lb=0.0, ub=1.0)
            self.rerun[m, p] = variable
            if m not in self.rerun_any:
                self.rerun_any[m] = model.add_variable(lb=0.0, ub=1.0)
                self.objective.append((problem.ops[m].duration_us, self.rerun_any[m]))
            model.add_linear_constraint(self.rerun_any[m] - variable >= 0.0)
        memory = []
        back = {}
        for t in wanted:
            res = model.add_variable(lb=1.0 if t in self.guards else 0.0, ub=1.0)
            self.resident[t, p] = res
            memory.append(problem.tensors[t].bytes * res)
            back[t] = res
            producer = problem.tensors[t].producer
            if (producer, p) in self.rerun:
                back[t] = back[t] + self.rerun[producer, p]
            swap = self._swap(t, p)
            if swap is not None:
                self.swapped[t, p] = swap
                back[t] = back[t] + swap
            if t in after:
                model.add_linear_constraint(back[t] >= 1.0)
        for m in reruns:
            for t in problem.ops[m].inputs:
                if t in back:
                    model.add_linear_constraint(back[t] - self.rerun[m, p] >= 0.0)
        room = problem.capacity_bytes - held_at(problem, p)
        scale = 1.0 / max(1, problem.capacity_bytes)
        row = model.add_linear_constraint(mathopt.fast_sum(memory) * scale <= room * scale)
        self.memory[p] = row
        if self.times is not None:
            host = {t: self.swapped[t, p] for t in wanted if (t, p) in self.swapped}
            self.times.add(p, host, [(m, self.rerun[m, p]) for m in reruns])

    def _swap(self, t: int, p: int) -> mathopt.Variable | None:
        problem = self.problem
        if not problem.allow_swap or not problem.tensors[t].swappable:
            return None
        if self.times is not None:
            return self.model.add_variable(lb=0.0, ub=1.0)
        uses = problem.tensors[t].uses
        # behind its last use a tensor may still come back, for a recompute that reads it
        gap = (t, next((i for i, u in enumerate(uses) if u > p), len(uses)))
        if gap not in self.swap_gap:
            self.swap_gap[gap] = self.model.add_variable(lb=0.0, ub=1.0)
            self.objective.append((problem.swap_in_us(t), self.swap_gap[gap]))
            if t not in self.swap_any:
                self.swap_any[t] = self.model.add_variable(lb=0.0, ub=1.0)
                self.objective.append((problem.swap_out_us(t), self.swap_any[t]))
            self.model.add_linear_constraint(self.swap_any[t] - self.swap_gap[gap] >= 0.0)
        return self.swap_gap[gap]

    def solve(self, *, time_limit_s: float, whole: bool = False) -> CutSolution | None:
        """Solve; None where the time limit passed without an answer.

        Args:
            whole: decide every tensor wholly. Every plan does, so the bound stays one, and it is
                tighter where few large tensors matter; it takes longer.
        """
        if whole:
            for group in (self.resident, self.rerun, self.swapped):
                for variable in group.values():
                    variable.integer = True
        scale = 1.0 / max(1e-9, self.problem.base_duration_us)
        cost = mathopt.fast_sum(c * scale * v for c, v in self.objective)
        if self.times is not None:
            self.model.add_linear_constraint(cost <= self.times.recompute)
            cost = self.times.cost
        self.model.minimize(cost)
        params = mathopt.SolveParameters(
            time_limit=datetime.timedelta(seconds=max(0.05, time_limit_s)),
            lp_algorithm=None if whole else mathopt.LPAlgorithm.DUAL_SIMPLEX,
            relative_gap_tolerance=MIP_GAP if whole else None,
        )
        solver = mathopt.SolverType.HIGHS if whole else mathopt.SolverType.GLOP
        result = interruptibly(lambda: mathopt.solve(self.model, solver, params=params))
        if whole:
            for group in (self.resident, self.rerun, self.swapped):
                for variable in group.values():
                    variable.integer = False
        reason = result.termination.reason
        kinds = mathopt.TerminationReason
        if reason in (kinds.INFEASIBLE, kinds.INFEASIBLE_OR_UNBOUNDED):
            return INFEASIBLE
        if not result.has_primal_feasible_solution() or (not whole and reason is not kinds.OPTIMAL):
            return None
        values = result.variable_values()
        value = result.objective_value()
        proved = result.best_objective_bound() if whole else value
        price_us = {} if whole else self._prices(result.dual_values(), scale)
        return CutSolution(
            feasible=True,
            extra_us=max(0.0, value / scale),
            bound_us=max(0.0, proved / scale),
            resident={k: values[v] for k, v in self.resident.items()},
            swapped={k: values[v] for k, v in self.swapped.items()},
            rerun={k: values[v] for k, v in self.rerun.items()},
            price_us=price_us,
        )

    def _prices(
        self, duals: Mapping[mathopt.LinearConstraint, float], cost_scale: float
    ) -> dict[int, float]:
        """Microseconds for a byte at each cut, from the rows' duals, which are in scaled units."""
        per_byte = 1.0 / max(1, self.problem.capacity_bytes) / cost_scale
        return {p: max(0.0, -duals[row]) * per_byte for p, row in self.memory.items()}


def articulation_tensors(problem: Problem, end: int) -> list[int]:
    """Tensors through which everything before base operation `end` passes, in order of production.

    A tensor is one where, after its production, it alone is still read by an operation before
    `end`. A chain of recomputes that starts behind it need not reach further back.
    """
    last = [max((u for u in t.uses if u < end), default=-1) for t in problem.tensors]
    open_until: list[tuple[int, int]] = []
    found: list[int] = []
    for op in range(end):
        open_until = [(u, t) for u, t in open_until if u > op]
        open_until += [(last[t], t) for t in problem.ops[op].outputs if last[t] > op]
        if len(open_until) == 1 and open_until[0][1] in problem.ops[op].outputs:
            found.append(open_until[0][1])
    return found


def round_solution(
    problem: Problem,
    cuts: Sequence[int],
    solution: CutSolution,
    *,
    threshold: float = 0.5,
    spread: bool = False,
) -> Decisions:
    """Decisions from a fractional plan: what is less than `threshold` resident at a cut goes.

    Args:
        spread: where tensors are partly resident and partly on the host, keep so many of them, evenly
            over the run, that as many bytes stay (error diffusion: Floyd and Steinberg, 1976).
    """
    gaps: dict[Gap, Choice] = {}
    extended: set[int] = set()
    for p in cuts:
        carried = 0.0  # bytes that should be resident, and are not yet
        for (t, cut), value in solution.resident.items():
            if cut != p:
                continue
            tensor = problem.tensors[t]
            producer = problem.ops[tensor.producer]
            droppable = problem.allow_recompute and producer.recomputable
            swap = solution.swapped.get((t, p), 0.0)
            rerun = solution.rerun.get((tensor.producer, p), 0.0) if droppable else 0.0
            gap = next((i for i, u in enumerate(tensor.uses) if u > p), None)
            keep = value >= threshold
            if spread and rerun < 0.5 and swap + value > 0:
                carried += value / (swap + value) * tensor.bytes
                keep = 2 * carried >= tensor.bytes and (gap is None or (t, gap) not in gaps)
                carried -= keep * tensor.bytes
            if gap is None:
                if keep:
                    extended.add(t)
            elif not keep:
                if swap > 0 and (swap >= rerun or not droppable):
                    gaps[t, gap] = Choice.SWAP
                elif droppable:
                    gaps[t, gap] = Choice.DROP
    return Decisions(gaps=gaps, extended=frozenset(extended))
