"""`optimize` with micro-batches: how many runs a step is made in, and the plan for one of them.

With "auto", more and more runs are looked at, by quick searches for a plan of one run within the budget.
All runs together take as long as their operations at least, and more the more runs there are: each reads
all parameters again. So the looking ends where that alone is no less than the best found.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import InfeasibleBudgetError, UsageError
from planner.micro.batch import batch_of, check_runs, divisors
from planner.onnxio.load import load_model
from planner.pipeline.assemble import fits_as_it_is
from planner.pipeline.choose_residence import WORTH, at_no_cost, everything_on_host
from planner.pipeline.dividing import Divisible, RunModel, divisible, run_model, step_notes
from planner.pipeline.limiting import limited
from planner.pipeline.modelviews import file_view
from planner.pipeline.optimizing import OptimizeJob
from planner.pipeline.orders import base_orders, formulate_in
from planner.pipeline.prepare import Prepared, Progress, prepare
from planner.pipeline.rebuild import run_as_planned
from planner.pipeline.settings import budget_of, settings_of
from planner.pipeline.verifying import Rewrite, check_can_hold, run_both
from planner.pipeline.whole_step import WholeStep
from planner.plan.planfile import Plan
from planner.portfolio.solve import solve
from planner.request import Request
from planner.results import OptimizeResult, Verification
from planner.search.fast.warm import warm_up
from planner.search.state import SearchSettings
from planner.temporary import temporary_folder
from planner.units import format_bytes, format_duration, parse_micro_batch

_SHARE, _MOST_S = 0.3, 20.0
"""Of the time limit, for all searches of this module, and their most seconds."""

_ORDERS_S, _SEARCH_S = 1.0, 2.0
"""For the base orders of one number of runs, and for a plan of it."""


def optimized(job: OptimizeJob) -> OptimizeResult:
    """What a job comes to, in as many runs as its request asks for.

    Raises:
        UsageError, ModelError: the step cannot be made in parts, or not in so many.
        and what `OptimizeJob.run` raises.
    """
    request = job.request
    runs = parse_micro_batch(request.levers.micro_batch)
    if runs == 1:
        return job.run()
    _check_request(job, runs)
    loaded = load_model(request.model, dims=request.dims)
    batch = batch_of(loaded)
    if runs is not None:
        check_runs(runs, batch)
    whole = limited(prepare(request, progress=job.progress))
    divided = divisible(loaded, request, job.progress)
    with temporary_folder() as folder:
        note = ""
        if runs is None:
            runs, note = _Choice(whole, divided, folder, job.progress).runs()
        if runs == 1:
            return replace(job, prepared=whole, notes=(note,)).run()
        made = run_model(divided, request, runs, _new(folder / "run"))
        prepared = limited(prepare(made.request, progress=job.progress))
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
            return replace(job, request=for_run, prepared=prepared, step=step).run()
        except InfeasibleBudgetError as error:
            size = batch.size // runs
            error.args = (f"in {runs} runs on {size} samples each, {error}",)
            raise


def verified(
    request: Request, rewritten: Path, plan: Plan, *, thorough: bool, progress: Progress
) -> Verification:
    """The model of a run, as a plan with micro-batches has it, against the original.

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
        return step.verified(found, rewritten, plan, nullcontext)


def _check_request(job: OptimizeJob, runs: int | None) -> None:
    request = job.request
    if request.costs.profile is not None:
        raise UsageError(
            "--profile has the times of runs on the whole batch, which say nothing of runs on parts of "
            "it; with --micro-batch give --calibrate, or a --hardware profile"
        )
    if runs is None and request.budget is None:
        raise UsageError(
            "--micro-batch auto chooses for a budget: give a --budget, or a number of runs"
        )


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@dataclass(frozen=True, slots=True)
class _Choice:
    """In how many runs a step takes least time, within the budget."""

    whole: Prepared
    divided: Divisible
    folder: Path
    progress: Progress

    def runs(self) -> tuple[int, str]:
        """(the number of runs, a sentence on why)."""
        whole = self.whole
        if fits_as_it_is(whole, settings_of(whole)):
            return 1, "micro-batches: the whole batch is within the budget as it is"
        warm_up(overlap=False)
        limit_s = whole.request.limits.time_limit_s
        until = time.monotonic() + min(_MOST_S, _SHARE * limit_s)
        times: dict[int, float] = {}
        peaks: dict[int, int] = {}
        for runs in divisors(self.divided.batch.size):
            best = min(times.values(), default=float("inf"))
            if runs > 1 and best < float("inf") and time.monotonic() > until:
                break
            self.progress(
                f"looking at {runs} runs on {self.divided.batch.size // runs} samples each"
            )
            prepared = whole if runs == 1 else self._prepared(runs)
            if runs * sum(prepared.duration_us) >= best:
                break
            time_us, peaks[runs] = self._quick(prepared)
            times[runs] = runs * time_us
        found = {runs: t for runs, t in times.items() if t < float("inf")}
        if not found:
            runs = min(peaks, key=lambda k: (peaks[k], k))
            return runs, (
                f"micro-batches: no number of runs was found with a plan within the budget; {runs} "
                "need least"
            )
        least = min(found.values())
        runs = min(k for k, t in found.items() if t <= (1 + WORTH) * least)
        looked = ", ".join(
            f"{k}: {format_duration(t)}" if t < float("inf") else f"{k}: no plan"
            for k, t in times.items()
        )
        budget = format_bytes(budget_of(whole))
        return runs, (
            f"micro-batches: {runs} run{'s' if runs > 1 else ''} a step, the quickest within {budget} by "
            f"short searches ({looked})"
        )

    def _prepared(self, runs: int) -> Prepared:
        """The model of one run of so many, with the whole step's budget."""
        folder = _new(self.folder / f"run-{runs}")
        made: RunModel = run_model(self.divided, self.whole.request, runs, folder)
        budget = f"{budget_of(self.whole)}B"
        return limited(prepare(replace(made.request, budget=budget)))

    def _quick(self, prepared: Prepared) -> tuple[float, int]:
        """(time of a plan for one run that a short search finds, in microseconds, infinite where it finds
        none; the least peak seen)."""
        settings = settings_of(prepared)
        if fits_as_it_is(prepared, settings):
            return prepared.baseline.time_us, prepared.baseline.peak_bytes
        tried = [at_no_cost(prepared, settings)]
        if prepared.request.levers.residence == "auto" and prepared.why_no_swaps is None:
            tried.append(everything_on_host(prepared, settings))
        room, peak = settings.budget_bytes - settings.reserve_bytes, 0
        for model in tried:
            order = base_orders(model, time_limit_s=_ORDERS_S)[0]
            peak = order.least_bound_bytes
            if order.peak_bytes <= room:
                return sum(model.duration_us), order.peak_bytes
            form = formulate_in(model, order.order, settings, settings.budget_bytes)
            search = SearchSettings(limit_s=_SEARCH_S, workers=settings.workers, thorough=False)
            found = solve(form.problem, search).candidate
            if found is not None:
                return found.time_us, order.peak_bytes
        return float("inf"), peak
