"""Print a whole report, as `--verbose` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from planner.report.document.analysis import AnalyzeDocument
from planner.report.document.headline import Headline
from planner.report.document.outcome import OptimizeDocument, PlanFigures
from planner.report.document.verification import VerificationFigures
from planner.report.document.views import RegionFigures, ViewDocument
from planner.report.narrative import paged
from planner.report.next_steps import StepRow
from planner.report.plain import nearby, nearby_command
from planner.report.terminal import (
    BAD,
    GOOD,
    phrases,
    print_assumptions,
    print_facts,
    print_line,
    print_table,
    print_whole,
    shown,
    wide_console,
)
from planner.results.verification import CopyCheck, MicroCheck
from planner.units import (
    counted,
    format_both,
    format_budget,
    format_bytes,
    format_duration,
    format_percent,
)

_ROWS = 10


def print_analysis(document: AnalyzeDocument, console: Console | None = None) -> None:
    """Print headline, composition at the peak, and the ten largest residents."""
    out = console or wide_console()
    print_line(out, nearby(document.model), "bold")
    print_line(out, document.headline.sentence)
    print_facts(out, _possible(document))
    parts = document.view.parts
    rows = [[name, format_bytes(size), format_percent(share)] for name, size, share in parts]
    print_table(out, "Memory at the peak", ["category", ">bytes", ">share"], rows)
    _residents(out, document.view)
    if document.budget_preview is not None:
        rows = [phrases.point_row(point) for point in document.budget_preview.frontier.points]
        print_table(out, "What a budget would cost (predicted)", phrases.POINT_COLUMNS, rows)
    print_assumptions(out, document.assumptions)


def _possible(document: AnalyzeDocument) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the peak, and of the peaks that are possible."""
    head, view = document.headline, document.view
    yield "Peak", format_both(head.peak_bytes)
    yield "at step", f"{view.peak_step:,} of {view.steps:,}: {view.peak_operation}"
    yield "Best order", f"{format_bytes(head.best_order_peak_bytes)} ({head.best_order_name})"
    yield "Least feasible", format_budget(head.least_peak_bytes)
    yield "No plan below", format_both(head.least_peak_bound_bytes)
    if head.least_peak_on_host_bytes is not None:
        below = f"no plan below {shown(format_both, head.least_peak_on_host_bound_bytes)}"
        found = format_budget(head.least_peak_on_host_bytes)
        yield "Inputs, outputs on the host", f"{found}; {below}"
    yield "Step time", f"{format_duration(head.time_us)} (predicted: {document.cost_source})"
    yield "In one region", _region(view.one_region)
    for arena in view.arena:
        text = f"{format_bytes(arena.in_use_bytes)} in use, {format_bytes(arena.held_bytes)} held"
        beside = arena.beside_bytes
        kind = f"predicted; {format_bytes(beside)} of inputs beside it" if beside else "predicted"
        yield f"Arena, {arena.options} options", f"{text} ({kind})"


def print_optimize(document: OptimizeDocument, console: Console | None = None) -> None:
    """Print headline, plan summary, the largest decisions, verification, and files."""
    out = console or wide_console()
    head = document.headline
    print_line(out, head.verdict, GOOD if head.is_good else BAD)
    print_line(out, head.sentence)
    print_facts(out, _facts(document))
    _decisions(out, document)
    if document.verification is not None:
        print_verification(document.verification, out)
    print_assumptions(out, document.assumptions)
    _next(out, document.next_steps)
    for what, path in document.outputs.items():
        if path is not None:
            print_line(out, f"{what}: {nearby(path)}")
    if document.script is not None:
        print_whole(out, f"  {document.script}", "cyan")


def _facts(document: OptimizeDocument) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the request and its outcome."""
    head, plan = document.headline, document.plan
    yield from _outcome(head, plan)
    regions = (document.before.one_region, document.after.one_region)
    yield "In one region", " -> ".join(map(_region, regions))
    yield "Step time", _times(head)
    yield from _done(head)
    yield "Search", f"{plan.engine or 'none'} in {plan.solve_s:.1f} s; {phrases.proof(plan, head)}"


def _outcome(head: Headline, plan: PlanFigures) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the request, and of the resulting memory."""
    yield "Budget", phrases.budget_text(head)
    if plan.max_slowdown is not None:
        limit = f"at most {format_percent(plan.max_slowdown)} slower"
        yield "Limit", f"{limit}; the {plan.binds or 'budget'} binds"
    if head.reserve_bytes:
        yield "Reserve", format_both(head.reserve_bytes)
    yield "Peak before", format_both(head.peak_before_bytes)
    alone = "by order and casts alone" if head.halved_tensors else "by order alone"
    yield alone, format_both(head.order_alone_peak_bytes)
    yield "Peak after", format_both(head.peak_after_bytes)
    if text := phrases.held_text(head):
        yield "Held", text
    if text := phrases.grown_text(head):
        yield "Process", text


def _done(head: Headline) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the plan's changes to tensors and operations."""
    if head.recomputed_ops:
        what = counted(head.recomputed_ops, "operation")
        moved = f"{format_bytes(head.recomputed_bytes)}, {format_duration(head.recompute_us)}"
        yield "Recomputed", f"{what}, {moved}"
    if head.swapped_tensors:
        moved = f"{format_bytes(head.swap_out_bytes)} out, {format_bytes(head.swap_in_bytes)} in"
        what = f"{counted(head.swapped_tensors, 'tensor')}, {moved}"
        yield "Swapped", f"{what}, {format_duration(head.swap_us)}"
    if head.split_nodes:
        nodes, regions = counted(head.split_nodes, "node"), counted(head.split_regions, "region")
        chunks = counted(head.split_chunks, "chunk")
        yield "In chunks", f"{nodes}, in {regions} of up to {chunks} of rows"
    if head.paged_tensors:
        moved = f"{format_bytes(head.page_in_bytes)} in, {format_bytes(head.page_out_bytes)} out"
        what = f"{paged(head.paged_tensors)}, {moved}"
        yield "On the host", f"{what}, {format_duration(head.page_us)}"
    if head.fused_nodes:
        yield "Fused", f"{counted(head.fused_nodes, 'node')} of planner's native library"
    if head.halved_tensors:
        what = f"{head.halved_tensors:,} in {head.cast_saved}, {format_bytes(head.halved_bytes)}"
        worst = head.worst_rms_rel_diff
        lossy = "" if worst is None else f"; outputs differ by {worst:.2g} at most (RMS)"
        yield "In half, lossy", f"{what}, {format_duration(head.cast_us)}{lossy}"
    if head.host_bytes or head.file_bytes:
        most = f", at most {format_bytes(head.host_budget_bytes)}" if head.host_budget_bytes else ""
        files = f"; {format_bytes(head.file_bytes)} more in files" if head.file_bytes else ""
        where = "On disk" if head.disk else "Host memory"
        yield where, f"{format_bytes(head.host_bytes)} at once{most}{files}"


def _times(head: Headline) -> str:
    before, after = format_duration(head.time_before_us), format_duration(head.time_after_us)
    text = f"{before} -> {after} predicted"
    if head.predicted_time_ratio is not None:
        text += f" (x{head.predicted_time_ratio:.3f})"
    if head.cache_us:
        text += f", of which {format_duration(head.cache_us)} in the caches"
    if head.measured_time_ratio is not None:
        text += f"; {phrases.measured_times(head)} measured (x{head.measured_time_ratio:.3f})"
    return text


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
