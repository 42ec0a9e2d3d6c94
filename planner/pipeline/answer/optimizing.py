"""`planner.api.optimize`, from the request to the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from planner import clock
from planner.disk import swapping_to
from planner.errors import InfeasibleBudgetError, UsageError, VerificationError
from planner.lower.rewrite import Rewritten
from planner.native import library_path
from planner.onnxio.load import LoadedModel
from planner.onnxio.save import Together, written_together
from planner.pipeline.answer.budgets.budget_preview import PreviewBeside
from planner.pipeline.answer.budgets.slowdown import plan_within
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.answer.verifying import Rewrite, check_can_hold, run_both
from planner.pipeline.levers.host.hosting import ways_of
from planner.pipeline.levers.rounds import plan_in_rounds
from planner.pipeline.levers.table import check_levers, levers_for, may_quicken
from planner.pipeline.levers.whole_step import WholeStep
from planner.pipeline.prepare.limiting import limited
from planner.pipeline.prepare.prepared import Prepared, Progress, prepare
from planner.pipeline.prepare.settings import Settings, choose_copies, settings_of
from planner.pipeline.record import assemble as plans
from planner.pipeline.record.comparing import compared
from planner.pipeline.record.files import Files, save_rewritten
from planner.pipeline.record.modelviews import rewritten_view
from planner.pipeline.record.rebuild import with_metadata
from planner.pipeline.solve.fitting import loosened
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import Means
from planner.pipeline.target.placing import check_can_run
from planner.plan.planfile import Plan
from planner.processes.importing import import_ahead
from planner.processes.workers import beside
from planner.request import Request
from planner.results import ModelView, OptimizeResult
from planner.runtime.optimizers.large_fills import large_fills
from planner.runtime.optimizers.normalize import Written
from planner.runtime.options import Opening, default_threads
from planner.runtime.profiled import MANY_NODES, Profiled, may_copy
from planner.targets import target_named
from planner.units import format_both, format_percent, parse_slowdown

Context = Callable[[], AbstractContextManager[None]]
"""Factory of a context manager around the search, or around a timing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan, and the model that follows it.

    Attributes:
        prepared: the model that the plan was made for.
        after: the predicted figures of the rewritten model.
        rewritten: None if the model stays as it is.
        original: a session of the original, begun before planning, for the verification; None for none.
    """

    prepared: Prepared
    plan: Plan
    after: ModelView
    rewritten: Rewritten | None = None
    original: Profiled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeJob:
    """One request, and the outputs asked for.

    Attributes:
        files: destinations of the outputs; none if the caller only wants the plan.
        verify: run both models; False leaves the rewritten one unrun.
        search_context: makes a context for the search; within it Ctrl-C ends the search and keeps
            the best plan. None: Ctrl-C is raised, as elsewhere.
        step: the step of which the request's model is one run; None if the model is a whole step.
        prepared: the request's model, if it is prepared already.
        notes: further assumptions of the plan.
        began: when the request was made (`time.monotonic`): the machine's seconds count from there.
    """

    request: Request
    files: Files
    verify: bool | Literal["thorough"]
    search_context: Context | None
    progress: Progress
    step: WholeStep | None = None
    prepared: Prepared | None = None
    notes: tuple[str, ...] = ()
    began: float = field(default_factory=time.monotonic)

    def run(self) -> OptimizeResult:
        """Plan, rewrite, verify, report.

        Raises:
            VerificationError: ONNX Runtime does not confirm the plan; every file is in place.
            UsageError, ModelError, InfeasibleBudgetError: see `planner.errors`.
        """
        with ExitStack() as stack:
            ahead = OriginalAhead(self.request, stack)
            prepared = self._prepared(ahead)
            settings = settings_of(prepared)
            preview = None
            if plans.fits_as_it_is(prepared, settings) and not may_quicken(prepared):
                plan = self._as_step(plans.unchanged_plan(prepared, settings), prepared)
                made = Made(prepared=prepared, plan=plan, after=prepared.baseline.view)
            else:
                if self.files.report is not None and self.step is None:
                    process = stack.enter_context(beside(imports=PreviewBeside.__module__))
                    preview = PreviewBeside(process)
                if not self._is_verified:
                    prepared = compared(prepared, progress=self.progress, opened=ahead.session)
                spent_s = time.monotonic() - self.began
                limit_s = settings.time_limit_s
                clock.cap(ANSWERING.search_s(limit_s, spent_s), limit_s)
                made = self._made(prepared, settings, preview)
            whole = prepared if self.step is None else self.step.prepared
            result = OptimizeResult(
                plan=made.plan,
                model_path=whole.request.model,
                before=whole.baseline.view,
                after=made.after,
                verification=None,
            )
            together = stack.enter_context(written_together())
            result = self._write_and_verify(result, replace(made, original=ahead.session), together)
            result = self._plan_and_trace(result, together)
            if self.files.report is not None:
                result = self._report(result, self.files.report, preview, together)
        if result.verification is not None and not result.verification.passed:
            raise VerificationError(
                f"ONNX Runtime does not confirm the plan: {result.verification.failures[0]}; "
                f"the files are left as evidence ({self.files.model})",
                result=result,
            )
        return result

    @property
    def _is_verified(self) -> bool:
        """Whether both models are run in the end."""
        return bool(self.verify) and self.files.model is not None

    def _prepared(self, ahead: OriginalAhead) -> Prepared:
        """Read and analyse the model."""
        levers, target = self.request.levers, target_named(self.request.device)
        choose_copies(levers.copies, levers.swap, target)  # raises what is wrong with it
        if self.verify:
            check_can_run(target)
        library_path()  # without it nothing can be planned
        if self.files.report is not None:
            import_ahead("planner.report.page")
        prepared = self.prepared
        if prepared is None:
            found = prepare(self.request, progress=self.progress, on_loaded=ahead.begin)
            prepared = limited(found)
        check_levers(prepared)
        if self.verify:
            check_can_hold(prepared)
        return prepared

    def _made(self, prepared: Prepared, settings: Settings, preview: PreviewBeside | None) -> Made:
        """Formulate, solve, lower and read the rewritten model back.

        The budget preview starts beside this as soon as the plan's actions are known.
        """
        with (self.search_context or nullcontext)():
            if self.request.budget is None:
                most = self._most_slowdown()
                cheapest = ways_of(prepared, settings)[0]
                planned, settings = plan_within(cheapest, settings, most, self.progress)
                binds = "slowdown"
            else:
                levers, prepared = levers_for(prepared)
                is_kept = self.search_context is not None
                means = Means(progress=self.progress, keep_on_interrupt=is_kept)
                planned = plan_in_rounds(levers, prepared, settings, means)
                binds = self._binds(planned, settings)
            if preview is not None:
                preview.begin(settings, planned)
            planned = self._loosened(planned, settings)
            if preview is not None:
                preview.settle(planned)
        found = plans.assemble(planned.prepared, settings, planned)
        plan = replace(self._as_run(found), binds=binds)
        whole_plan = self._as_step(plan, planned.prepared)
        return Made(
            prepared=planned.prepared,
            plan=whole_plan,
            rewritten=with_metadata(planned.rewritten, whole_plan, planned.prepared),
            after=rewritten_view(planned, plan, prepared.target),
        )

    def _most_slowdown(self) -> float:
        """Return the largest slowdown allowed, for a request without a budget."""
        if self.request.max_slowdown is None:
            raise UsageError("give a --budget, a --max-slowdown, or both")
        if self.request.levers.cast_saved != "none":
            raise UsageError("--cast-saved needs a --budget, which decides what is cast")
        return parse_slowdown(self.request.max_slowdown)

    def _binds(self, planned: Planned, settings: Settings) -> str:
        """Return the limit that binds a plan made for a budget: "budget", or "" if none does.

        Raises:
            InfeasibleBudgetError: the plan is slower than the request allows.
        """
        most, time_us = self.request.max_slowdown, planned.prepared.baseline.time_us
        added = planned.added_us / time_us
        if most is not None and added > parse_slowdown(most):
            bound = planned.solved.bound_us / time_us - 1
            raise InfeasibleBudgetError(
                f"within {format_both(settings.budget_bytes)} the plan found is "
                f"{format_percent(added)} slower, more than {most} (in its base order none is "
                f"below {format_percent(max(0.0, bound))}): the slowdown binds; raise "
                "--max-slowdown or the budget"
            )
        return "budget" if added > 1e-9 else ""

    def _as_run(self, plan: Plan) -> Plan:
        """Mark the plan's pool as proved if it will be run at the sizes that it is for.

        A device's arena is not: verification tries larger ones where kernels need more.
        """
        most = self.request.max_slowdown
        # at other sizes than those that were bound, another arena or pool is needed
        will_run = self._is_verified and not plan.dims
        pool = plan.pool
        if pool is not None and not will_run:
            pool = replace(pool, is_proved=False)
        return replace(
            plan,
            pool=pool,
            max_slowdown=None if most is None else parse_slowdown(most),
        )

    def _loosened(self, planned: Planned, settings: Settings) -> Planned:
        """Drop the anchors that the plan does not need; keep the plan as it is after Ctrl-C."""
        if planned.solved.is_interrupted:
            return planned
        self.progress("removing anchors that the order does not need")
        try:
            return loosened(planned, settings)
        except KeyboardInterrupt:
            if self.search_context is None:
                raise
            return planned.interrupted()

    def _as_step(self, plan: Plan, prepared: Prepared) -> Plan:
        """Return the plan of the whole step, if the model is one of several runs."""
        plan = replace(plan, assumptions=(*self.notes, *plan.assumptions))
        return plan if self.step is None else self.step.planned(plan, prepared)

    def _write_and_verify(
        self, result: OptimizeResult, made: Made, together: Together
    ) -> OptimizeResult:
        """Write the rewritten model and run both models, as far as requested."""
        if self.files.model is None:
            return result
        self.progress("writing the rewritten model")
        with together.writing(self.files.model) as path:
            save_rewritten(self.request.model, made.rewritten, path)
        result = replace(result, output_path=self.files.model)
        if not self.verify:
            return result
        rewrite = Rewrite(
            prepared=made.prepared,
            path=path,
            after=made.after,
            plan=made.plan,
            ahead=made.original,
        )
        disk = self.request.levers.disk
        with swapping_to("" if disk is None else disk.folder):
            verification = run_both(rewrite, self.progress, thorough=self.verify == "thorough")
            bits = verification.default_bits
            if self.step is not None:
                self.progress("running the whole batch at once, and in parts")
                verification = self.step.verified(verification, path, made.plan)
        if bits is not None:
            result = replace(result, plan=replace(made.plan, default_differ=bits.differ))
        return replace(result, verification=verification)

    def _plan_and_trace(self, result: OptimizeResult, together: Together) -> OptimizeResult:
        """Write the plan and the trace, as far as requested."""
        files = self.files
        if files.plan is not None:
            with together.writing(files.plan) as path:
                path.write_text(plans.plan_to_json(result.plan), encoding="utf-8")
            result = replace(result, plan_path=files.plan)
        if files.trace is not None:
            from planner.report.trace import write_trace

            with together.writing(files.trace) as path:
                write_trace(result, path)
            result = replace(result, trace_path=files.trace)
        return result

    def _report(
        self,
        result: OptimizeResult,
        report: Path,
        preview: PreviewBeside | None,
        together: Together,
    ) -> OptimizeResult:
        """Write the report page; most figures are drawn while the budget preview still runs."""
        from planner.report.document.outcome import optimize_document, with_preview
        from planner.report.page import drawn, render_page

        result = replace(result, report_path=report)
        document = optimize_document(result)
        self.progress("drawing the report")
        figures = drawn(document)
        if preview is not None:
            self.progress("waiting for the costs of other budgets")
            result = replace(result, budget_preview=preview.result(result.plan.planned.step_us))
            document = with_preview(document, result)
        self.progress("writing the report")
        page = render_page(document, figures)
        with together.writing(report) as path:
            path.write_text(page, encoding="utf-8")
        return result


class OriginalAhead:
    """The session of the original that planning and its check share; it ends with `stack`.

    It is created before planning starts, if it is worth it. It writes the graph that it runs, and
    planning uses that graph: a large graph goes through ONNX Runtime's optimizers once instead of
    twice. Verification measures with it after planning; without verification, its numbers are
    compared with those of the graph (`compared`).
    """

    def __init__(self, request: Request, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self.session: Profiled | None = None

    def begin(self, loaded: LoadedModel) -> Written | None:
        """Start to create the session if that takes long; return the graph that it writes.

        It has verification's likely options. If verification needs others, it creates its own session.
        """
        request = self._request
        nodes = list(loaded.model.graph.all_nodes())
        if len(nodes) < MANY_NODES or not may_copy(loaded.model, loaded):
            return None
        if target_named(request.device).own_memory or not request.ort_optimize:
            return None
        if large_fills(loaded.model):
            return None  # the session would write them, and planning would not use its graph
        opening = Opening(threads=default_threads())
        session = Profiled(loaded.path, opening, seed=request.seed, with_copy=True)
        self.session = self._stack.enter_context(session)
        return session.written
