"""The step that a plan for one run belongs to: all its runs together, beside the original's one run.

The original gives the base of a budget in percent and of the slowdown, and, run on the whole batch,
the reference for the totals of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from planner.errors import InfeasibleBudgetError
from planner.micro.draws import random_nodes, without_draws
from planner.micro.flow import ACCUMULATORS
from planner.onnxio.load import read_model
from planner.onnxio.save import write_model
from planner.pipeline.levers.host.residence import feeds_are_copied
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import budget_of
from planner.plan.planfile import MicroBatches, Plan, PredictedCost
from planner.request import Request
from planner.results.verification import CapCheck, MemoryCheck, MicroCheck, Verification
from planner.runtime.judge.micro_proof import MicroJob
from planner.runtime.options import Opening
from planner.runtime.timing import available_bytes
from planner.units import format_bytes, format_percent, parse_slowdown

T = TypeVar("T", MemoryCheck, CapCheck)
_OF_EACH_RUN = (
    "time_us", "recomputed_ops", "recompute_us", "recomputed_bytes", "swap_out_bytes",
    "swap_in_bytes", "swap_us", "page_in_bytes", "page_out_bytes", "page_us", "pins_us", "cache_us",
)  # fmt: skip
"""Costs that every run has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """The step that the plan for one run belongs to.

    Attributes:
        prepared: the original, on the whole batch.
        run: the file of one run, not planned yet.
        batches: how the runs make up a step.
        notes: assumptions of the plan.
        folder: for temporary files while both models run.
    """

    prepared: Prepared
    run: Path
    batches: MicroBatches
    notes: tuple[str, ...]
    folder: Path

    def run_request(self, request: Request, run: Prepared) -> Request:
        """Convert the whole step's budget and slowdown to a request for one run.

        Raises:
            UsageError: a size cannot be read.
            InfeasibleBudgetError: the runs alone take longer than the slowdown allows.
        """
        asked = self.prepared.request
        budget = None if asked.budget is None else f"{budget_of(self.prepared)}B"
        most = asked.max_slowdown
        if most is not None:
            runs = self.batches.runs
            whole_us, all_us = self.prepared.baseline.time_us, runs * run.baseline.time_us
            left = (1 + parse_slowdown(most)) * whole_us / all_us - 1
            if left < 0:
                raise InfeasibleBudgetError(
                    f"{runs} runs on parts of the batch take {format_percent(all_us / whole_us - 1)} "
                    f"more time than one (predicted), which is more than {most}: allow more with "
                    "--max-slowdown, or fewer runs with --micro-batch"
                )
            most = f"{100 * left:.9f}%"
        return replace(request, budget=budget, max_slowdown=most)

    def planned(self, plan: Plan, run: Prepared) -> Plan:
        """Convert the plan for one run to that of the whole step."""
        whole, runs = self.prepared, self.batches.runs
        most = whole.request.max_slowdown
        baseline = replace(whole.baseline.cost, time_us=whole.baseline.time_us + self._fed_us(run))
        changed = replace(
            plan,
            model_name=whole.loaded.path.name,
            model_sha256=whole.loaded.sha256,
            budget_text=whole.request.aim,
            max_slowdown=None if most is None else parse_slowdown(most),
            baseline=baseline,
            best_order=_times(plan.best_order, runs),
            planned=_times(plan.planned, runs),
            one_stream_us=None if plan.one_stream_us is None else runs * plan.one_stream_us,
            bound_us=None if plan.bound_us is None else runs * plan.bound_us,
            bound_class=f"{plan.bound_class}, in {runs} runs" if plan.bound_class else "",
            micro=replace(
                self.batches,
                run_us=plan.planned.time_us,
                baseline_run_us=run.baseline.time_us,
                baseline_run_bytes=run.baseline.peak_bytes,
            ),
        )
        return replace(changed, assumptions=(*self.notes, *plan.assumptions))

    def _fed_us(self, run: Prepared) -> float:
        """Return the time of a session's own copies for a run of the original.

        Only tensors that live on the host count.
        """
        if not feeds_are_copied(run):
            return 0.0
        graph, hardware = self.prepared.baseline.graph, run.hardware.paged()
        mine = {t.name: t for t in graph.tensors if not t.is_initializer}
        here = [mine[name] for name in run.resident if name in mine]
        made = sum(t.bytes for t in here if t.is_output)
        fed = sum(t.bytes for t in here if not t.is_output)
        out_s = made / hardware.copy_to_host_bytes_per_s
        return 1e6 * (out_s + fed / hardware.copy_from_host_bytes_per_s)

    def verified(
        self,
        verification: Verification,
        rewritten: Path,
        plan: Plan,
    ) -> Verification:
        """Extend the verification of one run: the runs of a step must add up to one on the whole batch.

        Args:
            verification: of the rewritten model against the model of one run.
            rewritten: the rewritten model.
        """
        failures = [f"in one run: {failure}" for failure in verification.failures]
        notes = list(verification.notes)
        title = f"a run on {self.batches.batch // self.batches.runs}"
        changed = replace(
            verification,
            memory=_of_run(verification.memory, title),
            caps=_of_run(verification.caps, title),
        )
        free = available_bytes()
        if free is not None and POLICY.times_peak * self.prepared.baseline.peak_bytes > free:
            why = (
                f"a run on the whole batch may take more than the {format_bytes(free)} of memory that "
                "are free here"
            )
            notes.append(f"the runs were not compared with one run on the whole batch: {why}")
            check = MicroCheck(runs=self.batches.runs, note=why)
            return replace(changed, time=None, notes=tuple(notes), micro=check)
        check, time = self._job(rewritten, plan).check()
        if check.far:
            failures.append(self._failure(check))
        return replace(
            changed,
            passed=verification.passed and not check.far,
            lacks_room=verification.lacks_room and not check.far,
            failures=tuple(failures),
            notes=tuple(notes),
            time=None if self.prepared.target.own_memory else time,
            micro=check,
        )

    def _job(self, rewritten: Path, plan: Plan) -> MicroJob:
        from planner.runtime.feeds.inputs import make_inputs

        prepared = self.prepared
        request, loaded = prepared.request, prepared.loaded
        feeds, _ = make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)
        level = "all" if plan.ort_optimized else "disabled"
        order = "priority" if plan.order_target == "priority" else "default"
        original, run, note = loaded.path, rewritten, None
        if prepared.target.own_memory:
            run, note = (
                self.run,
                "on the CPU, with the model of a run as it is before it is rewritten",
            )
        if random_nodes(loaded.model):
            note = "random numbers switched off in both, and the model of a run not rewritten"
            original, run = (self.folder / f"without-draws-{i}.onnx" for i in range(2))
            for source, target in ((loaded.path, original), (self.run, run)):
                write_model(without_draws(read_model(source)), target)
        return MicroJob(
            original=original,
            run=run,
            openings=(Opening(level=level), Opening(level=level, order=order)),
            batches=self.batches,
            feeds=feeds,
            own=_own_buffers(loaded.model),
            note=note,
        )

    def _failure(self, check: MicroCheck) -> str:
        name = check.far[0]
        found = next((o for o in check.outputs if o.name == name), None)
        by = "" if found is None else f" by {found.max_abs_diff:.3g} at most"
        more = f" (and {len(check.far) - 1} more)" if len(check.far) > 1 else ""
        counted = next((n for n in self.notes if "ignored" in n), "")
        return (
            f"{check.runs} runs on parts of the batch do not give what one run on all of it gives: "
            f"output {name!r}{more} differs{by}{'; ' + counted if counted else ''}; leave --micro-batch "
            "out"
        )


def _own_buffers(model: ir.Model) -> dict[str, str]:
    """Return the inputs in which the model's own nodes add gradients up, each with its reset flag."""
    found: dict[str, str] = {}
    for node in model.graph:
        if node.op_type in ACCUMULATORS:
            names = ["" if v is None else str(v.name) for v in node.inputs]
            found[names[0]] = names[2] if len(names) > 2 else ""
    return found


def _times(cost: PredictedCost, runs: int) -> PredictedCost:
    """Scale a cost to all runs; the peak and the numbers of moved tensors stay those of one run."""
    return replace(cost, **{name: runs * getattr(cost, name) for name in _OF_EACH_RUN})


def _of_run(checks: Sequence[T], title: str) -> tuple[T, ...]:
    """Call the original of the checks `title`: it is the model of one run."""
    return tuple(replace(c, model=title if c.model == "original" else c.model) for c in checks)
