"""The figures of an outcome of `planner optimize`: memory and time, and the bytes that sessions hold."""

from __future__ import annotations

import msgspec

from planner.disk import Disk
from planner.plan.planfile import Arena, Plan, Pool
from planner.report import narrative
from planner.report.document import Document, told
from planner.report.document.verification import VerificationFigures
from planner.results import OptimizeResult
from planner.results.verification import Verification


class Held(Document, frozen=True):
    """Bytes that sessions hold.

    They are those of the rewritten model as `planner.open_session` opens it (`held_bytes`) and under
    default options, and those of the original under default options (`default_held_before_bytes`).

    Live bytes are those of tensors. Held bytes are those that the allocator has taken from the system,
    inputs and initializers included. A process grows by the touched part of them (`grown_bytes`), and
    by all else that a run takes.
    """

    held_bytes: int | None
    default_held_bytes: int | None
    default_held_before_bytes: int | None
    measured_held_bytes: int | None
    measured_default_held_bytes: int | None
    measured_default_held_before_bytes: int | None
    grown_bytes: int | None
    default_grown_bytes: int | None
    default_grown_before_bytes: int | None
    results_bytes: int
    pool: Pool | None
    arena: Arena | None

    @property
    def plain_held_bytes(self) -> int | None:
        """Bytes held by the rewritten model under default options: measured, or else predicted."""
        return self.measured_default_held_bytes or self.default_held_bytes

    @property
    def plain_held_before_bytes(self) -> int | None:
        """Bytes held by the original under default options: measured, or else predicted."""
        return self.measured_default_held_before_bytes or self.default_held_before_bytes


class StepRuns(Document, frozen=True):
    """A step of several runs, on `samples` samples each."""

    runs: int
    samples: int


class Headline(Held, frozen=True):
    """The figures of the outcome.

    Peaks and times are before and after; without `measured_` they are predicted.
    """

    verdict: str
    sentence: str
    fits: bool
    verified: bool | None
    unchanged: bool
    budget_text: str
    budget_bytes: int
    reserve_bytes: int
    budget_of: str
    host_budget_bytes: int | None
    gap: float | None
    proved_optimal: bool
    copies: str
    one_stream_us: float | None
    peak_before_bytes: int
    peak_after_bytes: int
    order_alone_peak_bytes: int
    peak_saved_bytes: int
    measured_peak_before_bytes: int | None
    measured_peak_before_how: str | None
    measured_peak_after_bytes: int | None
    measured_peak_after_how: str | None
    default_options_peak_before_bytes: int | None
    default_options_peak_after_bytes: int | None
    time_before_us: float
    time_after_us: float
    predicted_time_ratio: float | None
    measured_time_before_us: float | None
    measured_time_after_us: float | None
    measured_time_ratio: float | None
    recomputed_ops: int
    recompute_us: float
    recomputed_bytes: int
    swapped_tensors: int
    swap_out_bytes: int
    swap_in_bytes: int
    swap_us: float
    paged_tensors: int
    page_in_bytes: int
    page_out_bytes: int
    page_us: float
    halved_tensors: int
    halved_bytes: int
    cast_us: float
    pins_us: float
    cache_us: float
    host_bytes: int
    file_bytes: int
    split_nodes: int
    split_regions: int
    split_chunks: int
    fused_nodes: int
    cast_saved: str | None
    worst_rms_rel_diff: float | None
    disk: Disk | None
    copies_sentence: str
    micro: StepRuns | None

    @property
    def is_copy(self) -> bool:
        """Whether the model fits as it is."""
        return self.unchanged and self.micro is None

    @property
    def needs_library(self) -> bool:
        """Whether the rewritten file has planner's operators, which a bare session cannot open."""
        is_moved = bool(self.swapped_tensors or self.paged_tensors)
        return self.fused_nodes > 0 or (self.copies == "overlapped" and is_moved)

    @property
    def is_good(self) -> bool:
        """Whether it fits, and no verification failed."""
        return self.fits and self.verified is not False

    @property
    def is_plain_over(self) -> bool:
        """Whether a session of default options holds more than the budget."""
        return (self.plain_held_bytes or 0) > self.budget_bytes

    @property
    def saved_share(self) -> float:
        """The saved share of the original peak."""
        return self.peak_saved_bytes / (self.peak_before_bytes or 1)


def held(result: OptimizeResult) -> Held:
    """Collect the bytes that sessions hold.

    A copy of the original needs nothing: `planner.open_session` opens it with default options.
    """
    plan, v = result.plan, result.verification
    ours = "default" if plan.unchanged and plan.micro is None else "recommended"
    return told(
        Held,
        plan,
        held_bytes=result.after.held_bytes(ours),
        default_held_bytes=result.after.held_bytes("default"),
        default_held_before_bytes=result.before.held_bytes("default"),
        measured_held_bytes=_measured(v, "rewritten", ours),
        measured_default_held_bytes=_measured(v, "rewritten", "default"),
        measured_default_held_before_bytes=_measured(v, "original", "default"),
        grown_bytes=_grown(v, "rewritten", ours),
        default_grown_bytes=_grown(v, "rewritten", "default"),
        default_grown_before_bytes=_grown(v, "original", "default"),
        results_bytes=max((check.results_bytes for check in v.sessions), default=0) if v else 0,
    )


def _measured(verification: Verification | None, model: str, options: str) -> int | None:
    for check in verification.memory if verification else ():
        if (check.model, check.options) == (model, options) and check.held_bytes is not None:
            return check.held_bytes + check.beside_bytes
    return None


def _grown(verification: Verification | None, model: str, options: str) -> int | None:
    """Return the most that a process grew over its runs."""
    for check in verification.sessions if verification else ():
        if (check.model, check.options) == (model, options) and check.grown_bytes:
            return max(check.grown_bytes)
    return None


def headline(result: OptimizeResult, checks: VerificationFigures | None) -> Headline:
    """Collect the figures of a result with the verification `checks`."""
    plan, of_sessions = result.plan, held(result)
    planned, baseline, time = plan.planned, plan.baseline, checks.time if checks else None
    fits = _fits(plan, of_sessions)
    chunks = [region.chunks for together in plan.split for region in together]
    head = told(
        Headline,
        of_sessions,
        plan,
        planned,
        verdict=narrative.verdict(fits, plan, result.verification),
        sentence="",
        fits=fits,
        verified=checks.passed if checks else None,
        peak_before_bytes=baseline.peak_bytes,
        peak_after_bytes=planned.peak_bytes,
        order_alone_peak_bytes=plan.best_order.peak_bytes,
        peak_saved_bytes=baseline.peak_bytes - planned.peak_bytes,
        **_peaks_seen(checks),
        time_before_us=baseline.time_us,
        time_after_us=planned.step_us,
        predicted_time_ratio=planned.step_us / baseline.time_us if baseline.time_us else None,
        measured_time_before_us=time.original_least_us if time else None,
        measured_time_after_us=time.rewritten_least_us if time else None,
        measured_time_ratio=time.ratio if time else None,
        split_nodes=sum(len(region.nodes) for together in plan.split for region in together),
        split_regions=len(chunks),
        split_chunks=max(chunks, default=0),
        cast_saved=plan.cast_saved if plan.halved else None,
        worst_rms_rel_diff=checks.worst_rms_rel_diff if checks else None,
        copies_sentence=narrative.copies_sentence(plan),
        micro=plan.micro and StepRuns(plan.micro.runs, plan.micro.batch // plan.micro.runs),
    )
    return msgspec.structs.replace(head, sentence=narrative.optimize_sentence(head))


def _fits(plan: Plan, of_sessions: Held) -> bool:
    """Tell whether the plan stays within its budget."""
    most_bytes = plan.planned.peak_bytes
    if plan.budget_of == "held" and of_sessions.held_bytes is not None:
        most_bytes = max(most_bytes, of_sessions.held_bytes)
    return most_bytes + plan.reserve_bytes <= plan.budget_bytes


def _peaks_seen(checks: VerificationFigures | None) -> dict[str, object]:
    """Return each model's live peak as ONNX Runtime showed it, and how it was obtained.

    It is the peak under the recommended session options where those were run, and the one under default
    options, which keep freed buffers for later reuse, is given too.
    """
    found: dict[str, object] = {}
    for model, key in (("original", "before"), ("rewritten", "after")):
        rows = checks.memory_of(model) if checks else []
        plain = [row.live_bytes for row in rows if row.options == "default"]
        found[f"measured_peak_{key}_bytes"] = rows[0].live_bytes if rows else None
        found[f"measured_peak_{key}_how"] = rows[0].how if rows else None
        found[f"default_options_peak_{key}_bytes"] = plain[0] if plain else None
    return found
