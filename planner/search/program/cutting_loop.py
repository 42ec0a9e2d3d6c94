"""The cutting loop: solve the LP, round it, replay the plan, add an instant where it overflows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from planner.bound.column_generation import ColumnGeneration
from planner.bound.lp import InstantLp, LpSolution
from planner.plan.candidate import Candidate
from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.problem import ActionKind, Problem, run_actions
from planner.search.evaluate import Evaluator
from planner.search.improve import Improver
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import simulate

_THRESHOLDS = (0.5, 0.9, 0.1)
_PRUNED_OPS = 1_500
"""Number of operations above which only the best plan is pruned, at the end."""


def cut(
    state: SearchState,
    stop: Stop,
    *,
    max_instants: int,
    give_up_gap: float = float("inf"),
) -> None:
    """Search until `stop`, or until the instants or ideas run out.

    Args:
        max_instants: number of instants at which it ends.
        give_up_gap: stop after the first instant if the best plan is farther than this from its
            bound.
    """
    problem, evaluator = state.problem, state.evaluator
    relaxed = _relaxed(problem)
    instant: int | None = base_op_at(evaluator.base, evaluator.base.replay.peak_action)
    instants: list[int] = []
    while instant is not None and len(instants) < max_instants:
        instants.append(instant)
        relaxed.add(instant)
        if state.is_settled or stop.left_s <= 0:
            return
        solution = relaxed.solve(time_limit_s=stop.left_s)
        rounded = _round(state, stop, instants, solution)
        if rounded is None or state.is_settled or stop.left_s <= 0:
            return
        if not state.is_within(give_up_gap):
            return
        instant = overflow_instant(evaluator, rounded, instants)


def _relaxed(problem: Problem) -> ColumnGeneration | InstantLp:
    """Return the LP: by minimum cuts where they cover the problem."""
    return ColumnGeneration(problem) if ColumnGeneration.covers(problem) else InstantLp(problem)


def _round(
    state: SearchState, stop: Stop, instants: list[int], solution: LpSolution | None
) -> Candidate | None:
    """Take the solution's bound, offer its rounded plans, repaired too; return the first of them."""
    if solution is None:
        return None
    if not solution.feasible:
        state.is_impossible = True
        return None
    state.prove(solution.bound_us)
    trials = _rounded_candidates(state.evaluator, instants, solution)
    improver = Improver(state.evaluator, stop)
    for trial in trials:
        state.offer(trial)
        repaired = improver.repair(trial)
        if len(state.problem.ops) <= _PRUNED_OPS:
            repaired = improver.prune(repaired)
        state.offer(repaired)
    return trials[0]


def bound_at_peak(problem: Problem, *, time_limit_s: float) -> float:
    """Return the microseconds that every plan adds to the base order, by the LP with one instant.

    The instant is the base order's peak. Infinite if nothing fits; 0 if time ran out.
    """
    base = simulate(problem, run_actions(range(len(problem.ops))))
    relaxed = _relaxed(problem)
    relaxed.add(base.peak_action)  # in the base order action and operation have one index
    solution = relaxed.solve(time_limit_s=time_limit_s)
    if solution is None:
        return 0.0
    return solution.bound_us if solution.feasible else float("inf")


def _rounded_candidates(
    evaluator: Evaluator, instants: list[int], solution: LpSolution
) -> list[Candidate]:
    """Return the fastest rounded plan that fits, and the one with the least excess, if they exist."""
    rounded: list[Decisions] = []
    for threshold in _THRESHOLDS:
        decisions = round_solution(evaluator.problem, instants, solution, threshold=threshold)
        if decisions not in rounded:
            rounded.append(decisions)
    if solution.swapped:
        rounded.append(round_solution(evaluator.problem, instants, solution, spread=True))
    trials = [evaluator.evaluate(decisions) for decisions in rounded]
    fitting = [t for t in trials if evaluator.fits(t)]
    over = [t for t in trials if not evaluator.fits(t)]
    best = [min(fitting, key=lambda t: t.time_us)] if fitting else []
    return best + ([min(over, key=lambda t: t.peak_bytes)] if over else [])


def base_op_at(candidate: Candidate, action: int) -> int:
    """Return the base operation in whose stage `action` lies: the next first run, or itself."""
    seen: set[int] = set()
    firsts: list[int] = []
    for step, a in enumerate(candidate.actions):
        if a.kind is ActionKind.RUN and a.target not in seen:
            seen.add(a.target)
            firsts.append(step)
    return min(bisect_left(firsts, action), len(firsts) - 1)


def overflow_instant(evaluator: Evaluator, candidate: Candidate, instants: list[int]) -> int | None:
    """Return the base operation with the largest overflow that is not an instant yet."""
    capacity = evaluator.problem.capacity_bytes
    worst = _stage_peaks(candidate)
    for op in sorted(worst, key=lambda op: -worst[op]):
        if worst[op] > capacity and op not in instants:
            return op
    # nothing overflows: tighten at the fullest stages of the plan
    for op in sorted(worst, key=lambda op: -worst[op])[:50]:
        if all(abs(op - instant) > 3 for instant in instants):
            return op
    return None


def _stage_peaks(candidate: Candidate) -> dict[int, int]:
    """Return the most live bytes in the stage of each base operation."""
    live = candidate.replay.live_bytes
    worst: dict[int, int] = {}
    stage: list[int] = []
    for step, a in enumerate(candidate.actions):
        stage.append(step)
        if a.kind is ActionKind.RUN and a.target not in worst:
            worst[a.target] = max(int(live[s]) for s in stage)
            stage = []
    return worst


def round_solution(
    problem: Problem,
    instants: Sequence[int],
    solution: LpSolution,
    *,
    threshold: float = 0.5,
    spread: bool = False,
) -> Decisions:
    """Round a fractional plan.

    A tensor that is resident by less than `threshold` at an instant is dropped or swapped.

    Args:
        spread: if tensors are partly resident and partly on the host, keep as many of them, evenly
            over the run, that as many bytes stay (error diffusion: Floyd and Steinberg, 1976).
    """
    gaps: dict[Gap, Choice] = {}
    extended: set[int] = set()
    for p in instants:
        carried = 0.0  # bytes to keep resident, carried over
        for (t, instant), value in solution.resident.items():
            if instant != p:
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
