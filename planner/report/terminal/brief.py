"""The short summaries: about ten lines, the outcome on top.

All further output of `planner.report.terminal.whole` is on the page and in `--json`, and printed with
`--verbose`. The summaries keep all facts by which a reader judges the result: failures, unverified
parts, assumptions on the model (`planner.report.remarks`), one line each.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from planner.report.document.analysis import AnalysisHeadline, AnalyzeDocument
from planner.report.document.headline import Headline
from planner.report.document.outcome import OptimizeDocument, PlanFigures
from planner.report.document.verification import VerificationFigures
from planner.report.document.views import PeakDocument
from planner.report.narrative import paged, times_of
from planner.report.plain import nearby, nearby_command
from planner.report.remarks import that_matter
from planner.report.terminal import (
    BAD,
    GOOD,
    NOTE,
    phrases,
    print_notes,
    print_row,
    print_table,
    print_whole,
    shown,
    wide_console,
)
from planner.units import (
    counted,
    format_both,
    format_budget,
    format_bytes,
    format_duration,
    format_percent,
)

_RESIDENTS = 3
_PREVIEW_COLUMNS = 7
"""The number of a preview's columns before `found by` and `base order`."""

_SEEN = {"replayed": "from the order that ONNX Runtime ran"}
"""The source of live bytes that were not measured."""


def print_optimize_brief(document: OptimizeDocument, console: Console | None = None) -> None:
    """Print whether it fits, the verification, the peak, the time, the changes, and the next step."""
    out = console or wide_console()
    head, plan, checks = document.headline, document.plan, document.verification
    print_whole(out, _outcome(head), GOOD if head.is_good else BAD)
    print_row(out, "Verified", _verified(checks, head), "" if checks else NOTE)
    for failure in checks.failures if checks else ():
        print_row(out, "Failed", failure, "red")
    print_row(out, "Budget", _budget(head, plan))
    if text := phrases.held_text(head):
        print_row(out, "Held", text)
    if text := phrases.grown_text(head):
        print_row(out, "Process", text)
    print_row(out, "Live", _peak(head))
    print_row(out, "Time", _time(head, plan.cost_source))
    print_row(out, "Done", done(document))
    print_row(out, "Search", f"{plan.solve_s:.1f} s: {phrases.proof(plan, head)}")
    written = [nearby(path) for path in document.outputs.values() if path is not None]
    if written:
        print_row(out, "Wrote", ", ".join(written))
    if document.script is not None:
        print_row(out, "Script", document.script, "cyan")
    notes = checks.notes if checks else ()
    print_notes(out, [*_notes_of(head), *that_matter([*document.assumptions, *notes])])
    for step in document.next_steps:
        if step.command is not None:
            print_row(out, "Next", step.text)
            print_row(out, "", nearby_command(step.command), "cyan")
            break
    print_row(out, "More", "the report, or -v" if head.verified is not False and written else "-v")


def print_analysis_brief(document: AnalyzeDocument, console: Console | None = None) -> None:
    """Print the peak, its composition, the possible peaks, and the cost of budgets."""
    print_peak_brief(document.model, document.view, console)
    print_possible_brief(document, console)


def print_peak_brief(model: str, peak: PeakDocument, console: Console | None = None) -> None:
    """Print the first part of an analysis, which is known soon: the peak and its composition."""
    out = console or wide_console()
    print_whole(out, nearby(model), "bold")
    where = f"at step {peak.peak_step:,} of {peak.steps:,}, {peak.peak_operation}"
    print_row(out, "Peak", f"{format_both(peak.peak_bytes)}, {where}")
    print_row(out, "Made of", phrases.made_of(peak.parts))
    largest = peak.residents_at_peak[:_RESIDENTS]
    print_row(out, "Largest", ", ".join(f"{r.tensor} {format_bytes(r.bytes)}" for r in largest))


def print_possible_brief(document: AnalyzeDocument, console: Console | None = None) -> None:
    """Print the rest of an analysis: the possible peaks, and the cost of budgets."""
    out = console or wide_console()
    head, cost_source = document.headline, document.cost_source
    for name, text in _possible(head):
        print_row(out, name, text)
    print_row(out, "Time", f"{format_duration(head.time_us)} a step, predicted ({cost_source})")
    if document.budget_preview is not None:
        points = document.budget_preview.frontier.points
        rows = [phrases.point_row(point)[:_PREVIEW_COLUMNS] for point in points]
        title = f"What a budget would cost ({times_of(cost_source)})"
        print_table(out, title, phrases.POINT_COLUMNS[:_PREVIEW_COLUMNS], rows)
    print_notes(out, that_matter(document.assumptions))
    print_row(
        out, "More", "-v adds arenas, residents and what was assumed; -o FILE.html writes a page"
    )


def _verified(v: VerificationFigures | None, head: Headline) -> str:
    """Say in a line what ONNX Runtime confirmed."""
    if v is None:
        return "no: nothing was run on ONNX Runtime, these are predictions"
    said = []
    if v.outputs:
        said.append(f"{v.identical:,} of {counted(len(v.outputs), 'output')} bit-identical")
    if v.default_bits:
        where = "in plain sessions of both files"
        if head.needs_library:
            where = "under default options, planner's library loaded for the rewritten file"
        said.append(f"{phrases.default_bits_text(v.default_bits)} {where}")
    if v.micro and v.micro.outputs:
        totals = counted(len(v.micro.outputs), "total")
        said.append(f"{v.micro.near:,} of {totals} within rounding")
    if v.orders:
        equal = all(order.equal for order in v.orders)
        levels = ", ".join(dict.fromkeys(order.level for order in v.orders))
        said.append(f"order {'as planned' if equal else 'not as planned'} ({levels})")
    if v.copies:
        said.append(f"copies run: {v.copies.ran:,} of {v.copies.planned:,}")
    if ways := list(dict.fromkeys(m.how for m in v.memory if m.model == "rewritten")):
        said.append(f"live bytes {' and '.join(ways)}")
    for cap in v.caps:
        runs = "runs" if cap.passed else "fails"
        said.append(f"{cap.model} {runs} within {format_bytes(cap.cap_bytes)}")
    if not v.caps:
        said.append("not run under a hard cap")
    return (
        f"{'yes' if v.passed else 'NO'}: {', '.join(said)} "
        f"(ONNX Runtime {v.ort_version}, {v.provider})"
    )


def done(document: OptimizeDocument) -> str:
    """Describe the changes that the rewritten model has."""
    head = document.headline
    if head.is_copy:
        return "nothing: the model is within the budget, and was copied as it is"
    found = []
    if head.micro is not None:
        runs, samples = counted(head.micro.runs, "run"), counted(head.micro.samples, "sample")
        found.append(f"{runs} of {samples} a step")
    if head.recomputed_ops:
        size = format_bytes(head.recomputed_bytes)
        found.append(f"{counted(head.recomputed_ops, 'operation')} recomputed ({size})")
    if head.swapped_tensors:
        size = format_bytes(head.swapped_bytes)
        found.append(f"{counted(head.swapped_tensors, 'tensor')} swapped ({size} copied)")
    if head.paged_tensors:
        size = format_bytes(head.page_in_bytes + head.page_out_bytes)
        found.append(f"{paged(head.paged_tensors)} on the host ({size} copied)")
    if head.split_nodes:
        found.append(f"{counted(head.split_nodes, 'node')} in up to {head.split_chunks} chunks")
    if head.fused_nodes:
        found.append(counted(head.fused_nodes, "fused node"))
    if head.halved_tensors:
        found.append(f"{counted(head.halved_tensors, 'saved tensor')} in {head.cast_saved}, lossy")
    if document.is_reordered:
        found.append("order changed")
    return ", ".join(found) or "the order pinned, nothing else changed"


def _outcome(head: Headline) -> str:
    within = "within" if head.fits else "over"
    reserve = head.reserve_bytes
    apart = f" less {format_bytes(reserve)} in reserve" if reserve else ""
    what = f"live bytes of {format_bytes(head.peak_after_bytes)} are"
    if head.budget_of == "held" and head.held_bytes is not None:
        what = f"a session holds {format_bytes(head.held_bytes)},"
    budget = format_bytes(head.budget_bytes)
    return f"{head.verdict}: {what} {within} the budget of {budget}{apart}"


def _budget(head: Headline, plan: PlanFigures) -> str:
    text = phrases.budget_text(head)
    if plan.max_slowdown is not None:
        slower = format_percent(plan.max_slowdown)
        text += f"; at most {slower} slower: the {plan.binds or 'budget'} binds"
    return text


def _peak(head: Headline) -> str:
    before, after = format_bytes(head.peak_before_bytes), format_bytes(head.peak_after_bytes)
    text = f"{before} -> {after} ({format_percent(head.saved_share)} less, predicted)"
    if head.measured_peak_after_bytes is not None:
        found, how = format_bytes(head.measured_peak_after_bytes), head.measured_peak_after_how
        text += f"; {found} {how} {_SEEN.get(how or '', 'on ONNX Runtime')}"
    if head.host_bytes:
        where = "on disk" if head.disk else "on the host"
        text += f"; {format_bytes(head.host_bytes)} {where} at once"
    if head.file_bytes:
        text += f"; {format_bytes(head.file_bytes)} in files"
    return text


def _time(head: Headline, cost_source: str) -> str:
    before, after = format_duration(head.time_before_us), format_duration(head.time_after_us)
    ratio = head.predicted_time_ratio
    times = "" if ratio is None else f"x{ratio:.3f} "
    text = f"{times}predicted ({before} -> {after}, {cost_source or 'source unknown'})"
    if head.measured_time_ratio is None:
        return f"{text}; not measured"
    measured = f"x{head.measured_time_ratio:.3f} measured on this machine"
    return f"{text}; {measured} ({phrases.measured_times(head)})"


def _notes_of(head: Headline) -> list[str]:
    """Return notes that follow from the figures themselves."""
    notes = []
    if head.is_plain_over:
        notes.append(
            "not within the budget under default session options: open the file as the lines under "
            "Script do, or run the script with planner run"
        )
    if head.halved_tensors:
        worst = head.worst_rms_rel_diff
        lossy = "by how much was not measured"
        if worst is not None:
            lossy = f"by {worst:.2g} at most (RMS)"
        notes.append(f"saved tensors in {head.cast_saved} are lossy: outputs differ, {lossy}")
    return notes


def _possible(head: AnalysisHeadline) -> Iterator[tuple[str, str]]:
    best = f"{format_bytes(head.best_order_peak_bytes)} by order alone"
    best += f", {format_budget(head.least_peak_bytes)} with {head.least_peak_levers}"
    yield "Possible", f"{best}; no plan below {format_bytes(head.least_peak_bound_bytes)}"
    if head.least_peak_on_host_bytes is not None:
        below = f"no plan below {shown(format_bytes, head.least_peak_on_host_bound_bytes)}"
        found = format_budget(head.least_peak_on_host_bytes)
        yield "On host", f"{found} with inputs and outputs there; {below}"
