"""Print a whole report, as `--verbose` does: the summary, and all that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from planner.report.document.analysis import AnalyzeDocument
from planner.report.document.outcome import OptimizeDocument
from planner.report.document.verification import VerificationFigures
from planner.report.document.views import RegionFigures, ViewDocument
from planner.report.next_steps import StepRow
from planner.report.plain import nearby_command
from planner.report.terminal import (
    BAD,
    GOOD,
    phrases,
    print_assumptions,
    print_facts,
    print_line,
    print_notes,
    print_row,
    print_table,
    print_whole,
    shown,
    wide_console,
)
from planner.report.terminal.brief import (
    notes_of,
    print_outcome,
    print_peak_brief,
    print_possible,
    print_preview,
)
from planner.results.verification import CopyCheck, MicroCheck
from planner.units import (
    counted,
    format_both,
    format_bytes,
    format_duration,
    format_percent,
)

_ROWS = 10


def print_analysis(document: AnalyzeDocument, console: Console | None = None) -> None:
    """Print the summary of an analysis, arenas, the ten largest residents, and what was assumed."""
    out = console or wide_console()
    print_peak_brief(document.model, document.view, out)
    print_possible(document, out)
    for name, text in _of_model(document):
        print_row(out, name, text)
    _residents(out, document.view)
    print_preview(document, out)
    print_assumptions(out, document.assumptions)


def _of_model(document: AnalyzeDocument) -> Iterator[tuple[str, str]]:
    """Yield names and texts of rows that the summary of an analysis leaves out."""
    head, view = document.headline, document.view
    yield "Order", f"{format_bytes(head.best_order_peak_bytes)} at best ({head.best_order_name})"
    yield "Region", _region(view.one_region)
    for arena in view.arena:
        text = f"{format_bytes(arena.in_use_bytes)} in use, {format_bytes(arena.held_bytes)} held"
        beside = arena.beside_bytes
        kind = f"predicted; {format_bytes(beside)} of inputs beside it" if beside else "predicted"
        yield "Arena", f"{text} under {arena.options} options ({kind})"


def print_optimize(document: OptimizeDocument, console: Console | None = None) -> None:
    """Print the outcome, the largest decisions, verification, assumptions, and all next steps."""
    out = console or wide_console()
    print_outcome(document, out)
    for name, text in _of_plan(document):
        print_row(out, name, text)
    print_notes(out, notes_of(document.headline))
    _decisions(out, document)
    if document.verification is not None:
        print_verification(document.verification, out)
    print_assumptions(out, document.assumptions)
    _next(out, document.next_steps)


def _of_plan(document: OptimizeDocument) -> Iterator[tuple[str, str]]:
    """Yield names and texts of rows that the outcome leaves out."""
    head = document.headline
    peaks = (head.peak_before_bytes, head.order_alone_peak_bytes, head.peak_after_bytes)
    before, alone, after = map(format_both, peaks)
    by = "order and casts" if head.halved_tensors else "order"
    yield "Peak", f"{before}; {alone} by {by} alone; {after} as planned"
    if head.reserve_bytes:
        yield "Reserve", format_both(head.reserve_bytes)
    regions = (document.before.one_region, document.after.one_region)
    yield "Region", " -> ".join(map(_region, regions))
    yield "Engine", document.plan.engine or "none"
    if head.copies_sentence:
        yield "Copies", head.copies_sentence


def _next(out: Console, steps: Sequence[StepRow]) -> None:
    if not steps:
        return
    out.print()
    print_line(out, "What to do next", "bold")
    for step in steps:
        print_line(out, f"  {step.text}")
        if step.command:
            print_whole(out, f"    {nearby_command(step.command)}", "cyan")


def _residents(out: Console, view: ViewDocument) -> None:
    rows = [
        [
            format_bytes(r.bytes),
            r.category,
            "whole run" if r.persistent else f"[{r.start}, {r.end})",
            r.tensor,
        ]
        for r in view.residents_at_peak[:_ROWS]
    ]
    title = f"Largest residents at the peak ({len(rows)} of {view.residents:,})"
    print_table(out, title, [">bytes", "category", ">steps", "tensor"], rows)


def _decisions(out: Console, document: OptimizeDocument) -> None:
    rows = [
        [d.action, format_bytes(d.bytes), format_duration(d.cost_us), d.tensor, d.why]
        for d in document.largest[:_ROWS]
    ]
    title = f"Largest decisions ({len(rows)} of {len(document.decisions):,})"
    print_table(out, title, ["action", ">bytes", ">cost", "tensor", "why"], rows)


def print_verification(v: VerificationFigures, console: Console | None = None) -> None:
    """Print ONNX Runtime's results, check by check."""
    out = console or wide_console()
    verdict = "Verified" if v.passed else "Verification failed"
    where = f"ONNX Runtime {v.ort_version}, {v.provider}, inputs: {v.inputs_source}"
    out.print()
    print_line(out, f"{verdict} ({where})", GOOD if v.passed else BAD)
    for failure in v.failures:
        print_line(out, f"  failed: {failure}", "red")
    print_facts(out, _checks(v))
    rows = [
        [
            m.model,
            m.options,
            m.how,
            format_bytes(m.predicted_live_bytes),
            format_bytes(m.live_bytes),
            shown(format_bytes, m.in_use_bytes),
            shown(format_bytes, m.predicted_held_bytes),
            shown(format_bytes, m.held_bytes),
        ]
        for m in v.memory
    ]
    columns = ["model", "options", "how", ">live, predicted", ">live", ">in use"]
    columns += [">held, predicted", ">held"]
    print_table(out, "Memory on ONNX Runtime", columns, rows)
    for remark in v.notes:
        print_line(out, f"note: {remark}", "dim")


def _checks(v: VerificationFigures) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the checks."""
    if v.outputs:
        same = f"{v.identical:,} of {len(v.outputs):,} bit-identical"
        yield "Outputs", f"{same}{_worst(v)}"
    if v.micro and v.micro.outputs:
        yield "Micro-batches", _micro(v.micro)
    if v.default_bits:
        yield "Outputs, plain sessions", phrases.default_bits_text(v.default_bits)
    for order in v.orders:
        said = "as planned" if order.equal else f"differs: {order.first_difference}"
        where = f", {order.queue}" if order.queue else ""
        yield f"Order, {order.level}{where}", f"{counted(order.executed, 'node')}, {said}"
    if v.copies:
        yield "Copies", _copies(v.copies)
    for cap in v.caps:
        said = "runs" if cap.passed else "fails"
        odd = " (not what was expected)" if cap.expected not in (None, cap.passed) else ""
        yield f"Cap, {cap.model}", f"{said} within {format_both(cap.cap_bytes)}{odd}"
    if v.time:
        yield "Step time", f"{v.time.ratio:.3f} times the original (measured)"
    for check in v.sessions:
        grown = " and ".join(map(format_bytes, check.grown_bytes))
        said = check.failure or f"grew by {grown}, run by run"
        yield f"Process, {check.model}, {check.options}", said


def _copies(copies: CopyCheck) -> str:
    return (
        f"{copies.ran:,} of {copies.planned:,} ran as planned "
        f"({format_bytes(copies.planned_bytes)}), {len(copies.extra) or 'none'} unplanned"
    )


def _micro(micro: MicroCheck) -> str:
    near = f"{micro.near:,} of {counted(len(micro.outputs), 'output')} the same within rounding"
    text = f"{counted(micro.runs, 'run')} against one on the whole batch: {near}"
    if micro.worst:
        share = f"{micro.worst_share:.2g} of the largest element"
        text += f"; the largest difference is {share}, in {micro.worst}"
    if micro.by_rounding:
        text += (
            f" ({counted(micro.by_rounding, 'output', 'differ')} by rounding alone, as much as with "
            "another order of the samples)"
        )
    return text


def _worst(v: VerificationFigures) -> str:
    if not v.different:
        return ""
    worst = max(v.different, key=lambda o: o.max_abs_diff)
    return f"; largest difference {worst.max_abs_diff:.3g} in {worst.name}"


def _region(region: RegionFigures) -> str:
    return f"{format_bytes(region.bytes)} ({format_percent(region.fragmentation)} over the peak)"
