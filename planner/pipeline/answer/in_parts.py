"""`optimize` with micro-batches: the number of runs in a step, and the plan for one of them.

With "auto", a search first finds the least number of runs that another order alone brings within
the budget. More runs take longer, because each reads all parameters again. Fewer may be quicker
with recomputes or copies: quick searches for a plan of one run decide, as long as the operations
alone are quicker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from planner import clock
from planner.errors import InfeasibleBudgetError, UsageError, VerificationError
from planner.files.temporary import temporary_folder
from planner.micro.batch import batch_of, check_runs, divisors
from planner.onnxio.load import load_model
from planner.pipeline.answer.optimizing import OptimizeJob
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.answer.verifying import Rewrite, check_can_hold, run_both
from planner.pipeline.levers.dividing import Divisible, RunModel, divisible, run_model, step_notes
from planner.pipeline.levers.host.hosting import ways_of
from planner.pipeline.levers.table import check_levers
from planner.pipeline.levers.whole_step import WholeStep
from planner.pipeline.prepare.limiting import limited
from planner.pipeline.prepare.prepared import Prepared, Progress, prepare
from planner.pipeline.prepare.settings import budget_of, settings_of
from planner.pipeline.record.assemble import fits_as_it_is
from planner.pipeline.record.modelviews import file_view
from planner.pipeline.record.rebuild import run_as_planned
from planner.pipeline.solve.orders import BaseOrder, base_orders
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.quick import quickest
from planner.plan.planfile import Plan
from planner.request import Request
from planner.results import OptimizeResult
from planner.results.verification import Verification
from planner.units import counted, format_bytes, format_duration, parse_micro_batch


def optimized(job: OptimizeJob) -> OptimizeResult:
    """Run a job, in as many runs per step as its request asks for; its searches count their work.

    If verification shows that ONNX Runtime's arena has no room for the plan, although its replay
    had, the job runs again with the missing bytes in reserve, and with more if that is still too
    little.

    Raises:
        UsageError, ModelError: the step cannot be split into this number of runs, or not at all; and
            the errors of `OptimizeJob.run`.
    """
    runs = parse_micro_batch(job.request.levers.micro_batch)
    counting = clock.counting(is_capped=not job.request.limits.reproducible)
    with counting, nullcontext(job) if runs == 1 else _in_parts(job, runs) as job:
        given: int | None = None
        for again in range(ANSWERING.again):
            try:
                return job.run()
            except VerificationError as error:
                result = error.result
                if not isinstance(result, OptimizeResult) or (found := result.verification) is None:
                    raise
                if not found.lacks_room:
                    raise
                given = result.plan.reserve_bytes if given is None else given
                job = _with_reserve(job, result, given, again)
        return job.run()


def _with_reserve(job: OptimizeJob, result: OptimizeResult, given: int, again: int) -> OptimizeJob:
    """Return the job with more in reserve.

    Args:
        result: of the last attempt.
        given: bytes in reserve at the first attempt.
        again: number of earlier repetitions.
    """
    plan, found = result.plan, result.verification
    caps = found.caps if found is not None else ()
    lost = max((cap.over_budget_bytes for cap in caps), default=0)
    least = int(ANSWERING.least_lost * 2**again * plan.budget_bytes)
    reserve = max(int(ANSWERING.lost * lost) + plan.reserve_bytes, given + least)
    job.progress(f"again, with {format_bytes(reserve)} in reserve, for the arena's fragmentation")
    request = replace(job.request, reserve=f"{reserve}B")
    prepared = None if job.prepared is None else replace(job.prepared, request=request)
    return replace(job, request=request, prepared=prepared, began=time.monotonic())


@contextmanager
def _in_parts(job: OptimizeJob, runs: int | None) -> Iterator[OptimizeJob]:
    """Yield the job for one run of a step; its files last as long as the block.

    Args:
        runs: per step; None to choose the quickest number.
    """
    request = job.request
    _check_request(job, runs)
    loaded = load_model(request.model, dims=request.dims)
    batch = batch_of(loaded)
    if runs is not None:
        check_runs(runs, batch)
    whole = limited(prepare(request, progress=job.progress))
    check_levers(whole)
    divided = divisible(loaded, request, job.progress)
    with temporary_folder() as folder:
        note, known = "", None
        if runs is None:
            choice = _RunCount(whole, divided, folder, job.progress)
            runs, note = choice.runs()
            known = choice.made.get(runs)
        if runs == 1:
            yield replace(job, prepared=whole, notes=(note,))
            return
        if known is None:
            made = run_model(divided, request, runs, _new(folder / "run"))
            known = made, limited(prepare(made.request, progress=job.progress))
        made, prepared = known
        step = WholeStep(
            prepared=whole,
            run=made.request.model,
            batches=made.batches,
            notes=(*([note] if note else []), *step_notes(divided, made.batches)),
            folder=folder,
        )
        for_run = step.run_request(made.request, prepared)
        prepared = replace(prepared, request=for_run)
        try:
            yield replace(job, request=for_run, prepared=prepared, step=step)
        except InfeasibleBudgetError as error:
            size = batch.size // runs
            error.args = (f"in {runs} runs on {size} samples each, {error}",)
            raise


def verified(
    request: Request, rewritten: Path, plan: Plan, *, thorough: bool, progress: Progress
) -> Verification:
    """Verify the model of one run, from a plan with micro-batches, against the original.

    Args:
        request: for the original, on the whole batch.

    Raises:
        UsageError, ModelError: as `planner.api.verify` does.
    """
    with temporary_folder() as folder:
        made = run_as_planned(request, plan, _new(folder / "run"))
        prepared = prepare(made.request, progress=progress)
        check_can_hold(prepared)
        after = file_view(rewritten, made.request.dims, plan.order_target, prepared)
        rewrite = Rewrite(prepared=prepared, path=rewritten, after=after, plan=plan)
        found = run_both(rewrite, progress, thorough=thorough)
        step = WholeStep(
            prepared=prepare(request, progress=progress),
            run=made.request.model,
            batches=made.batches,
            notes=plan.assumptions,
            folder=folder,
        )
        progress("running the whole batch at once, and in parts")
        return step.verified(found, rewritten, plan)


def _check_request(job: OptimizeJob, runs: int | None) -> None:
    request = job.request
    if request.costs.profile is not None:
        raise UsageError(
            "--profile has the times of runs on the whole batch, not of runs on parts of it; "
            "with --micro-batch give --calibrate, or a --hardware profile"
        )
    if runs is None and request.budget is None:
        raise UsageError(
            "--micro-batch auto chooses for a budget: give a --budget, or a number of runs"
        )


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@dataclass(frozen=True, slots=True)
class _Way:
    """A model of one run, and its base orders, least peak first."""

    prepared: Prepared
    orders: tuple[BaseOrder, ...]


@dataclass(slots=True)
class _RunCount:
    """The choice of the number of runs with which a step takes least time within the budget.

    Attributes:
        ways: by number of runs: first with only those tensors on the host that cost nothing there,
            then with all that may live there.
        times: by number of runs, the time of all runs together in microseconds; infinite if no plan
            was found.
        made: by number of runs, the model of one run, and the prepared model for planning.
    """

    whole: Prepared
    divided: Divisible
    folder: Path
    progress: Progress
    ways: dict[int, list[_Way]] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    made: dict[int, tuple[RunModel, Prepared]] = field(default_factory=dict)

    def runs(self) -> tuple[int, str]:
        """Return the number of runs, and a sentence that explains the choice."""
        whole = self.whole
        if fits_as_it_is(whole, settings_of(whole)):
            return 1, "micro-batches: the whole batch is within the budget as it is"
        known = divisors(self.divided.batch.size)
        limit_s = whole.request.limits.time_limit_s
        share_s = min(ANSWERING.runs_s, ANSWERING.runs_share * limit_s)
        clock.cap(limit_s)
        least = self._least_by_order(known)
        fewer = known if least is None else known[: known.index(least)]
        until = clock.now() + share_s
        clock.cap(share_s)
        for runs in reversed(fewer):
            best = min(self.times.values(), default=float("inf"))
            if best < float("inf") and (len(self.times) > 1 and clock.now() > until):
                break
            if runs * sum(self._ways(runs)[0].prepared.duration_us) < (1 - POLICY.worth) * best:
                self.times[runs] = runs * self._searched(runs)
        return self._chosen()

    def _chosen(self) -> tuple[int, str]:
        found = {runs: t for runs, t in self.times.items() if t < float("inf")}
        if not found:
            runs = min(self.ways, key=lambda k: (self.ways[k][-1].orders[0].least_bound_bytes, k))
            return runs, (
                "micro-batches: no plan within the budget was found for any number of runs; "
                f"{runs} runs need the least memory"
            )
        least = min(found.values())
        runs = min(k for k, t in found.items() if t <= (1 + POLICY.worth) * least)
        looked = ", ".join(
            f"{k}: {format_duration(t)}" if t < float("inf") else f"{k}: no plan"
            for k, t in sorted(self.times.items())
        )
        budget = format_bytes(budget_of(self.whole))
        return runs, (
            f"micro-batches: {counted(runs, 'run')} a step, the quickest within {budget} by "
            f"short searches ({looked})"
        )

    def _least_by_order(self, known: list[int]) -> int | None:
        """Find the least number of runs that another order alone brings within the budget.

        Bisection, because more runs hold less memory.
        """
        low, high = 0, len(known) - 1
        while low <= high:
            middle = 0 if not self.ways else (low + high + 1) // 2
            if self._fits(known[middle]):
                high = middle - 1
            else:
                low = middle + 1
        if not self.times:
            return None
        return min(self.times)

    def _fits(self, runs: int) -> bool:
        """Tell whether another order alone suffices; if it does, record its time."""
        for way in self._ways(runs):
            if way.orders[0].peak_bytes <= settings_of(way.prepared).room_bytes:
                self.times[runs] = runs * sum(way.prepared.duration_us)
                return True
        return False

    def _searched(self, runs: int) -> float:
        """Search briefly for a one-run plan; return its time in microseconds, infinite without one."""
        for way in self._ways(runs):
            settings = settings_of(way.prepared)
            limit_s = ANSWERING.run_search_s
            _, found_us = quickest(way.prepared, way.orders, settings, limit_s)
            if found_us < float("inf"):
                return found_us
        return float("inf")

    def _ways(self, runs: int) -> list[_Way]:
        if runs not in self.ways:
            size = self.divided.batch.size // runs
            self.progress(f"looking at {counted(runs, 'run')} on {size} samples each")
            prepared = self.whole if runs == 1 else self._prepared(runs)
            self.ways[runs] = [
                _Way(model, base_orders(model, time_limit_s=ANSWERING.run_orders_s))
                for model in ways_of(prepared, settings_of(prepared))
            ]
        return self.ways[runs]

    def _prepared(self, runs: int) -> Prepared:
        """Prepare the model of one of `runs` runs, with the whole step's budget."""
        folder = _new(self.folder / f"run-{runs}")
        made = run_model(self.divided, self.whole.request, runs, folder)
        budget = f"{budget_of(self.whole)}B"
        prepared = limited(prepare(replace(made.request, budget=budget)))
        self.made[runs] = made, prepared
        return prepared
