"""The sentences of the reports: the verdict, the headline, and how each number was obtained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.plan.planfile import Plan
from planner.report.document import Document
from planner.results import Analysis
from planner.results.verification import Verification
from planner.units import counted, format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from planner.report.document.analysis import AnalysisHeadline
    from planner.report.document.headline import Headline


class ProvenanceRow(Document, frozen=True):
    """A number, and how it was obtained: proved, measured, predicted or another way."""

    number: str
    how: str
    detail: str


def verdict(fits: bool, plan: Plan, verification: Verification | None) -> str:
    """Return the verdict in a few words."""
    if verification is not None and not verification.passed:
        return "Verification failed"
    if not fits:
        return "Does not fit"
    if plan.unchanged and plan.micro is None:
        return "Fits as it is"
    how = "Fits, not verified" if verification is None else "Fits, verified"
    return f"{how}, lossy" if plan.numbers == "lossy" else how


def optimize_sentence(headline: Headline) -> str:
    """Describe the outcome of `planner optimize` in one sentence, followed by copies and proof."""
    before, after = headline.peak_before_bytes, headline.peak_after_bytes
    budget = format_bytes(headline.budget_bytes)
    if headline.is_copy:
        return (
            f"The model's peak of {format_bytes(before)} is already within the budget of {budget}; "
            "it was copied unchanged."
        )
    saved = format_percent(headline.saved_share)
    fit = "within" if headline.fits else "over"
    text = (
        f"Peak device memory goes from {format_bytes(before)} to {format_bytes(after)} "
        f"({saved} less), {fit} the budget of {budget}: "
        f"{', '.join(changes(headline)) or 'a better order of the same operations'}"
    )
    measured, predicted = headline.measured_time_ratio, headline.predicted_time_ratio
    ratio, how = (measured, "measured") if measured is not None else (predicted, "predicted")
    if ratio is not None:
        text += f", at {ratio:.3f} times the step time ({how})"
    return " ".join(filter(None, (f"{text}.", headline.copies_sentence, _proof(headline))))


def copies_sentence(plan: Plan) -> str:
    """Say how much time copies beside the operations save; "" where copies are between them."""
    if plan.copies != "overlapped" or plan.one_stream_us is None:
        return ""
    return (
        f"Copies run beside the operations: the step is predicted to take "
        f"{format_duration(plan.planned.step_us)}, with copies between the operations "
        f"{format_duration(plan.one_stream_us)}."
    )


def changes(head: Headline) -> list[str]:
    """Describe each kind of change of the rewritten model: how many, their bytes, predicted time."""
    found = []
    if head.micro is not None:
        runs, samples = counted(head.micro.runs, "run"), counted(head.micro.samples, "sample")
        found.append(f"{runs} of {samples} a step")
    if head.recomputed_ops:
        cost = f"{format_bytes(head.recomputed_bytes)}, {format_duration(head.recompute_us)}"
        found.append(f"{counted(head.recomputed_ops, 'operation')} recomputed ({cost})")
    if head.swapped_tensors:
        moved = f"{format_bytes(head.swap_out_bytes)} out, {format_bytes(head.swap_in_bytes)} in"
        swapped = f"{counted(head.swapped_tensors, 'tensor')} swapped"
        found.append(f"{swapped} ({moved}, {format_duration(head.swap_us)})")
    if head.paged_tensors:
        moved = f"{format_bytes(head.page_in_bytes)} in, {format_bytes(head.page_out_bytes)} out"
        kept = f"{paged(head.paged_tensors)} on the host"
        found.append(f"{kept} ({moved}, {format_duration(head.page_us)})")
    if head.split_nodes:
        nodes, regions = counted(head.split_nodes, "node"), counted(head.split_regions, "region")
        found.append(f"{nodes} in up to {head.split_chunks:,} chunks of rows ({regions})")
    if head.fused_nodes:
        found.append(counted(head.fused_nodes, "fused node"))
    if head.halved_tensors:
        cost = f"{format_bytes(head.halved_bytes)}, {format_duration(head.cast_us)}"
        count = counted(head.halved_tensors, "saved tensor")
        found.append(f"{count} in {head.cast_saved} ({cost}), lossy")
    return found


def paged(count: int) -> str:
    """Return a number of inputs and outputs: `1 input or output`, `2 inputs and outputs`."""
    return "1 input or output" if count == 1 else f"{count:,} inputs and outputs"


def _proof(headline: Headline) -> str:
    if headline.verified is None:
        return "Nothing was run on ONNX Runtime: these are predictions."
    if headline.verified:
        return "ONNX Runtime confirmed it."
    return "ONNX Runtime did not confirm it: see the verification."


def analysis_sentence(headline: AnalysisHeadline) -> str:
    """Describe the outcome of `planner analyze` in one sentence."""
    peak, best = headline.peak_bytes, headline.best_order_peak_bytes
    text = f"Peak device memory is {format_bytes(peak)} in ONNX Runtime's default order"
    if best < peak:
        text += f"; a better order of the same operations needs {format_bytes(best)}"
    least = format_bytes(headline.least_peak_bytes, up=True)
    text += f", and with {headline.least_peak_levers} {least} is feasible"
    least_of_all = format_bytes(headline.least_peak_bound_bytes)
    text += f"; no plan with inputs and outputs on the device needs less than {least_of_all}"
    on_host = headline.least_peak_on_host_bytes
    if on_host is not None:
        text += f", and with them on the host {format_bytes(on_host, up=True)} is feasible"
    return f"{text}."


def times_of(cost_source: str) -> str:
    """Say in a few words which times a bound, a gap or a slowdown uses, and their source."""
    if cost_source.startswith("measured"):
        return f"in operation times {cost_source}"
    if cost_source.startswith("profile "):
        return f"in measured operation times: {cost_source}"
    return f"in predicted times: {cost_source or 'source unknown'}"


def provenance(
    headline: Headline, plan: Plan, verification: Verification | None
) -> tuple[ProvenanceRow, ...]:
    """Say how each number of the headline was obtained."""
    cost = f"cost model: {plan.cost_source or plan.hardware or 'unknown'}"
    cost += "; copies beside the operations" if plan.copies == "overlapped" else ""
    rows = [
        ("Peak before and after", "predicted", "live ranges over the order ONNX Runtime runs"),
        ("Step time before and after", "predicted", cost),
        ("Bytes recomputed and swapped", "exact", "counted from the plan's schedule"),
    ]
    if plan.bound_us is not None or plan.proved_optimal:
        found = f"for {plan.bound_class or 'the class searched'}, {times_of(plan.cost_source)}"
        rows.append(("Bound and gap", "proved", found))
    where = "the same inputs and outputs on the host" if plan.resident else "all on the device"
    if plan.split:
        where += " and the same nodes in chunks"
    rows.append(("Least feasible peak (bound)", "proved", f"no plan with {where} can be below it"))
    if verification is not None:
        for how, label in (
            (headline.measured_peak_before_how, "original"),
            (headline.measured_peak_after_how, "rewritten model"),
        ):
            if how:
                rows.append((f"Live peak of the {label}", how, _HOW.get(how, "")))
        if verification.time is not None:
            repeats = len(verification.time.rewritten_us)
            detail = f"the least of {counted(repeats, 'alternating run')} each, in one process"
            if plan.micro is not None:
                detail += f", {plan.micro.runs} runs a step against one on the whole batch"
            rows.append(("Step-time ratio", "measured", detail))
        if verification.micro is not None and verification.micro.outputs:
            detail = f"one run on the whole batch against {verification.micro.runs} on its parts"
            rows.append(("Differences of the totals", "measured", detail))
        if verification.outputs:
            detail = f"{counted(len(verification.outputs), 'output')}, same inputs, both models"
            rows.append(("Differences of the outputs", "measured", detail))
        if verification.orders:
            rows.append(("Executed order", "measured", "from ONNX Runtime's profile"))
    return _rows(rows)


_HOW = {
    "measured": "ONNX Runtime's memory events at every node",
    "replayed": "live ranges over the order that ONNX Runtime was seen to run",
}


def analysis_provenance(analysis: Analysis) -> tuple[ProvenanceRow, ...]:
    """Say how each number of an analysis was obtained."""
    return _rows(
        [
            ("Peak and composition", "predicted", "live ranges over ONNX Runtime's default order"),
            ("Step time", "predicted", f"cost model: {analysis.cost_source or analysis.hardware}"),
            (
                "Least possible peak (bound)",
                "proved",
                "no plan with all on the device can be below it",
            ),
        ]
    )


def _rows(rows: list[tuple[str, str, str]]) -> tuple[ProvenanceRow, ...]:
    return tuple(ProvenanceRow(*row) for row in rows)
