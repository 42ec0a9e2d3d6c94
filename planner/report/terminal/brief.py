"""The short summaries: about ten lines, the outcome on top.

`--verbose` prints the same lines, and `planner.report.terminal.whole` the rest, which is also on the
page and in `--json`. The summaries keep all facts by which a reader judges the result: failures,
unverified parts, assumptions on the model (`planner.report.remarks`), one line each.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from planner.report.document.analysis import AnalysisHeadline, AnalyzeDocument
from planner.report.document.headline import Headline
from planner.report.document.outcome import OptimizeDocument, PlanFigures
from planner.report.document.verification import VerificationFigures
from planner.report.document.views import PeakDocument
from planner.report.narrative import changes, times_of
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
    """Print the outcome, the remarks that matter, and the next step."""
    out = console or wide_console()
    head, checks = document.headline, document.verification
    print_outcome(document, out)
    notes = checks.notes if checks else ()
    print_notes(out, [*notes_of(head), *that_matter([*document.assumptions, *notes])])
    for step in document.next_steps:
        if step.command is not None:
            print_row(out, "Next", step.text)
            print_row(out, "", nearby_command(step.command), "cyan")
            break
    is_on_page = head.verified is not False and any(document.outputs.values())
    print_row(out, "More", "the report, or -v" if is_on_page else "-v")


def print_outcome(document: OptimizeDocument, out: Console) -> None:
    """Print whether it fits, the verification, the peak, the time, the changes, and the files."""
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
    print_row(out, "Done", _done(document))
    print_row(out, "Search", f"{plan.solve_s:.1f} s of work: {phrases.proof(plan, head)}")
    written = [nearby(path) for path in document.outputs.values() if path is not None]
    if written:
        print_row(out, "Wrote", ", ".join(written))
    if document.script is not None:
        print_row(out, "Script", document.script, "cyan")


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
    print_possible(document, out)
    print_preview(document, out, _PREVIEW_COLUMNS)
    print_notes(out, that_matter(document.assumptions))
    print_row(
        out, "More", "-v adds arenas, residents and what was assumed; -o FILE.html writes a page"
    )


def print_possible(document: AnalyzeDocument, out: Console) -> None:
    """Print the possible peaks, and the time of a step."""
    head = document.headline
    for name, text in _possible(head):
        print_row(out, name, text)
    time = format_duration(head.time_us)
    print_row(out, "Time", f"{time} a step, predicted ({document.cost_source})")


def print_preview(document: AnalyzeDocument, out: Console, columns: int | None = None) -> None:
    """Print the cost of budgets: the first `columns` columns, or all."""
    if document.budget_preview is not None:
        points = document.budget_preview.frontier.points
        rows = [phrases.point_row(point)[:columns] for point in points]
        title = f"What a budget would cost ({times_of(document.cost_source)})"
        print_table(out, title, phrases.POINT_COLUMNS[:columns], rows)


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


def _done(document: OptimizeDocument) -> str:
    """Describe the changes that the rewritten model has."""
    if document.headline.is_copy:
        return "nothing: the model is within the budget, and was copied as it is"
    found = changes(document.headline)
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
        text += f" (limit {format_bytes(head.host_budget_bytes)})" if head.host_budget_bytes else ""
    if head.file_bytes:
        text += f"; {format_bytes(head.file_bytes)} in files"
    return text


def _time(head: Headline, cost_source: str) -> str:
    before, after = format_duration(head.time_before_us), format_duration(head.time_after_us)
    ratio = head.predicted_time_ratio
    times = "" if ratio is None else f"x{ratio:.3f} "
    cached = f", {format_duration(head.cache_us)} of it in the caches" if head.cache_us else ""
    text = f"{times}predicted ({before} -> {after}{cached}, {cost_source or 'source unknown'})"
    if head.measured_time_ratio is None:
        return f"{text}; not measured"
    measured = f"x{head.measured_time_ratio:.3f} measured on this machine"
    return f"{text}; {measured} ({phrases.measured_times(head)})"


def notes_of(head: Headline) -> list[str]:
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
    yield "Possible", f"{best}; no plan below {format_both(head.least_peak_bound_bytes)}"
    if head.least_peak_on_host_bytes is not None:
        below = f"no plan below {shown(format_both, head.least_peak_on_host_bound_bytes)}"
        found = format_budget(head.least_peak_on_host_bytes)
        yield "On host", f"{found} with inputs and outputs there; {below}"
