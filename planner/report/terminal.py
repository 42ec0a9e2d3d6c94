"""The reports as text for a terminal (or a pipe): everything comes from the payloads.

Names from a model are shown as plain text: no markup, and control characters made visible.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.frontier import POINT_COLUMNS, point_row
from planner.report.held import default_bits_text, grown_text, held_text
from planner.report.narrative import budget_text, times_of
from planner.report.plain import nearby, nearby_command, printable
from planner.report.session_code import script_lines
from planner.report.what_if import WHAT_IF_COLUMNS, WHAT_IF_TITLE, what_if_assumptions, what_if_rows
from planner.units import format_both, format_budget, format_bytes, format_duration, format_percent

Payload = dict[str, Any]
_PIPE_WIDTH = 120
_ROWS = 10
_GOOD, _BAD = "bold green", "bold red"


def print_analysis(payload: Payload, console: Console | None = None) -> None:
    """Headline, composition at the peak, the ten largest residents."""
    out = console or wide_console()
    head, view = payload["headline"], payload["view"]
    print_line(out, nearby(payload["model"]), "bold")
    print_line(out, head["sentence"])
    facts = _facts()
    _fact(facts, "Peak", format_both(head["peak_bytes"]))
    _fact(facts, "at step", f"{view['peak_step']:,} of {view['steps']:,}: {view['peak_operation']}")
    _fact(
        facts, "Best order", f"{_size(head['best_order_peak_bytes'])} ({head['best_order_name']})"
    )
    if head["least_peak_bytes"] is not None:
        _fact(facts, "Least feasible", format_budget(head["least_peak_bytes"]))
    _fact(facts, "No plan below", format_both(head["least_peak_bound_bytes"]))
    if head["least_peak_on_host_bytes"] is not None:
        least, bound = head["least_peak_on_host_bytes"], head["least_peak_on_host_bound_bytes"]
        said = f"{format_budget(least)}; no plan below {format_both(bound)}"
        _fact(facts, "Inputs, outputs on the host", said)
    _fact(facts, "Step time", f"{_duration(head['time_us'])} (predicted: {payload['cost_source']})")
    _fact(facts, "In one region", _region(view["one_region"]))
    for arena in view["arena"]:
        text = f"{_size(arena['in_use_bytes'])} in use, {_size(arena['held_bytes'])} held"
        beside = arena["beside_bytes"]
        kind = f"predicted; {_size(beside)} of inputs beside it" if beside else "predicted"
        _fact(facts, f"Arena, {arena['options']} options", f"{text} ({kind})")
    out.print(facts)
    _composition(out, view)
    _residents(out, view)
    print_table(out, WHAT_IF_TITLE, list(WHAT_IF_COLUMNS), what_if_rows(payload))
    if payload["budget_preview"] is not None:
        rows = [point_row(point) for point in payload["budget_preview"]["frontier"]["points"]]
        print_table(out, "What a budget would cost (predicted)", list(POINT_COLUMNS), rows)
    print_assumptions(out, [*payload["assumptions"], *what_if_assumptions(payload)])


def print_optimize(payload: Payload, console: Console | None = None) -> None:
    """Headline, plan summary, the largest decisions, verification, files."""
    out = console or wide_console()
    head, plan = payload["headline"], payload["plan"]
    good = head["fits"] and head["verified"] is not False
    print_line(out, head["verdict"], _GOOD if good else _BAD)
    print_line(out, head["sentence"])
    facts = _facts()
    for name, text in _outcome(head, plan):
        _fact(facts, name, text)
    regions = [payload[side]["one_region"] for side in ("before", "after")]
    _fact(facts, "In one region", " -> ".join(map(_region, regions)))
    _fact(facts, "Step time", _times(head))
    for name, text in _done(head):
        _fact(facts, name, text)
    _fact(facts, "Search", _search(head, plan))
    out.print(facts)
    _decisions(out, payload["decisions"])
    if payload["verification"] is not None:
        _verification(out, payload["verification"])
    print_assumptions(out, payload["assumptions"])
    _next(out, payload["next_steps"])
    for what, path in payload["outputs"].items():
        if path is not None:
            print_line(out, f"{what}: {nearby(path)}")
    for line in script_lines(payload):
        out.print(Text(f"  {printable(line)}", style="cyan"), soft_wrap=True)


def _outcome(head: Payload, plan: Payload) -> Iterator[tuple[str, str]]:
    """Names and texts of what was asked for, and of the memory that came of it."""
    yield "Budget", budget_text(head)
    if plan["max_slowdown"] is not None:
        limit = f"at most {format_percent(plan['max_slowdown'])} slower"
        yield "Limit", f"{limit}; the {plan['binds'] or 'budget'} binds"
    if head["reserve_bytes"]:
        yield "Reserve", format_both(head["reserve_bytes"])
    yield "Peak before", format_both(head["peak_before_bytes"])
    alone = "by order and casts alone" if head["halved_tensors"] else "by order alone"
    yield alone, format_both(head["order_alone_peak_bytes"])
    yield "Peak after", format_both(head["peak_after_bytes"])
    if text := held_text(head):
        yield "Held", text
    if text := grown_text(head):
        yield "Process", text


def _done(head: Payload) -> Iterator[tuple[str, str]]:
    """Names and texts of what the plan does to tensors and operations."""
    if head["recomputed_ops"]:
        what = f"{head['recomputed_ops']:,} operations, {_size(head['recomputed_bytes'])}"
        yield "Recomputed", f"{what}, {_duration(head['recompute_us'])}"
    if head["swapped_tensors"]:
        moved = f"{_size(head['swap_out_bytes'])} out, {_size(head['swap_in_bytes'])} in"
        what = f"{head['swapped_tensors']:,} tensors, {moved}"
        yield "Swapped", f"{what}, {_duration(head['swap_us'])}"
    if head["split_nodes"]:
        what = f"{head['split_nodes']:,} nodes, in {head['split_regions']:,} regions"
        yield "In chunks", f"{what} of up to {head['split_chunks']} chunks of rows"
    if head["paged_tensors"]:
        moved = f"{_size(head['page_in_bytes'])} in, {_size(head['page_out_bytes'])} out"
        what = f"{head['paged_tensors']:,} inputs and outputs, {moved}"
        yield "On the host", f"{what}, {_duration(head['page_us'])}"
    if head["fused_nodes"]:
        yield "Fused", f"{head['fused_nodes']:,} nodes of planner's native library"
    if head["halved_tensors"]:
        what = f"{head['halved_tensors']:,} in {head['cast_saved']}, {_size(head['halved_bytes'])}"
        worst = head["worst_rms_rel_diff"]
        lossy = "" if worst is None else f"; outputs differ by {float(worst):.2g} at most (RMS)"
        yield "In half, lossy", f"{what}, {_duration(head['cast_us'])}{lossy}"
    if head["host_bytes"] or head["file_bytes"]:
        most = f", at most {_size(head['host_budget_bytes'])}" if head["host_budget_bytes"] else ""
        files = f"; {_size(head['file_bytes'])} more in files" if head["file_bytes"] else ""
        where = "On disk" if head["disk"] else "Host memory"
        yield where, f"{_size(head['host_bytes'])} at once{most}{files}"


def _next(out: Console, steps: list[Payload]) -> None:
    if not steps:
        return
    out.print()
    print_line(out, "What to do next", "bold")
    for step in steps:
        print_line(out, f"  {step['text']}")
        if step["command"]:
            command = printable(nearby_command(step["command"]))
            out.print(Text(f"    {command}", style="cyan"), soft_wrap=True)


def print_verification(payload: Payload, console: Console | None = None) -> None:
    """What ONNX Runtime said, check by check."""
    out = console or wide_console()
    _verification(out, payload)


def wide_console() -> Console:
    """Standard output; wide where it is a pipe."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_line(out: Console, text: str, style: str = "") -> None:
    """Print one paragraph, whatever is in it."""
    out.print(Text(printable(text), style=style))


def _facts() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _fact(table: Table, name: str, text: str) -> None:
    table.add_row(Text(name), Text(printable(text)))


def print_table(out: Console, title: str, columns: list[str], rows: list[list[object]]) -> None:
    """Print a table; columns whose title starts with ">" are right-aligned numbers."""
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        number = column.startswith(">")
        table.add_column(
            Text(column.removeprefix(">")),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    out.print()
    print_line(out, title, "bold")
    out.print(table)


def _composition(out: Console, view: Payload) -> None:
    parts = sorted(view["composition_at_peak"].items(), key=lambda item: -item[1])
    total = view["peak_bytes"] or 1
    rows: list[list[object]] = [
        [name, _size(size), format_percent(size / total)] for name, size in parts
    ]
    print_table(out, "Memory at the peak", ["category", ">bytes", ">share"], rows)


def _residents(out: Console, view: Payload) -> None:
    found = view["residents_at_peak"]
    rows: list[list[object]] = [
        [
            _size(r["bytes"]),
            r["category"],
            "whole run" if r["persistent"] else f"[{r['start']}, {r['end']})",
            r["tensor"],
        ]
        for r in found[:_ROWS]
    ]
    total = len(found) + view["residents_at_peak_omitted"]["count"]
    title = f"Largest residents at the peak ({len(rows)} of {total:,})"
    print_table(out, title, [">bytes", "category", ">steps", "tensor"], rows)


def _decisions(out: Console, decisions: list[Payload]) -> None:
    largest = sorted(decisions, key=lambda d: (-d["bytes"], d["start"]))[:_ROWS]
    rows: list[list[object]] = [
        [d["action"], _size(d["bytes"]), _duration(d["cost_us"]), d["tensor"], d["why"]]
        for d in largest
    ]
    title = f"Largest decisions ({len(rows)} of {len(decisions):,})"
    print_table(out, title, ["action", ">bytes", ">cost", "tensor", "why"], rows)


def _verification(out: Console, v: Payload) -> None:
    verdict = "Verified" if v["passed"] else "Verification failed"
    where = f"ONNX Runtime {v['ort_version']}, {v['provider']}, inputs: {v['inputs_source']}"
    out.print()
    print_line(out, f"{verdict} ({where})", _GOOD if v["passed"] else _BAD)
    for failure in v["failures"]:
        print_line(out, f"  failed: {failure}", "red")
    facts = _facts()
    if v["outputs"]:
        same = sum(o["identical"] for o in v["outputs"])
        _fact(facts, "Outputs", f"{same:,} of {len(v['outputs']):,} bit-identical{_worst(v)}")
    if v["micro"] and v["micro"]["outputs"]:
        _fact(facts, "Micro-batches", _micro(v["micro"]))
    if v["default_bits"]:
        _fact(facts, "Outputs, plain sessions", default_bits_text(v["default_bits"]))
    for order in v["orders"]:
        said = "as planned" if order["equal"] else f"differs: {order['first_difference']}"
        where = f", {order['queue']}" if order["queue"] else ""
        _fact(facts, f"Order, {order['level']}{where}", f"{order['executed']:,} nodes, {said}")
    if v["copies"]:
        _fact(facts, "Copies", _copies(v["copies"]))
    for cap in v["caps"]:
        said = "runs" if cap["passed"] else "fails"
        odd = "" if cap["expected"] in (None, cap["passed"]) else " (not what was expected)"
        _fact(facts, f"Cap, {cap['model']}", f"{said} within {format_both(cap['cap_bytes'])}{odd}")
    if v["time"]:
        _fact(facts, "Step time", f"{v['time']['ratio']:.3f} times the original (measured)")
    for check in v["sessions"]:
        grown = " and ".join(_size(n) for n in check["grown_bytes"])
        said = check["failure"] or f"grew by {grown}, run by run"
        _fact(facts, f"Process, {check['model']}, {check['options']}", said)
    out.print(facts)
    rows: list[list[object]] = [
        [
            m["model"],
            m["options"],
            m["how"],
            _size(m["predicted_live_bytes"]),
            _size(m["live_bytes"]),
            _size(m["in_use_bytes"]),
            _size(m["predicted_held_bytes"]),
            _size(m["held_bytes"]),
        ]
        for m in v["memory"]
    ]
    columns = ["model", "options", "how", ">live, predicted", ">live", ">in use"]
    columns += [">held, predicted", ">held"]
    print_table(out, "Memory on ONNX Runtime", columns, rows)
    for remark in v["notes"]:
        print_line(out, f"note: {remark}", "dim")


def _copies(copies: Payload) -> str:
    extra = len(copies["extra"])
    return (
        f"{copies['ran']:,} of {copies['planned']:,} ran as planned "
        f"({_size(copies['planned_bytes'])}), {extra or 'none'} unplanned"
    )


def _micro(micro: Payload) -> str:
    count, far = len(micro["outputs"]), len(micro["far"])
    text = f"{micro['runs']:,} runs against one on the whole batch: {count - far:,} of {count:,} outputs"
    text += " are the same within rounding"
    if micro["worst"]:
        share = float(micro["worst_share"])
        text += (
            f"; the largest difference is {share:.2g} of the largest element, in {micro['worst']}"
        )
    if micro["by_rounding"]:
        text += f" ({micro['by_rounding']:,} are rounding alone: so much changes with the samples' order)"
    return text


def _worst(v: Payload) -> str:
    different = [o for o in v["outputs"] if not o["identical"]]
    if not different:
        return ""
    worst = max(different, key=lambda o: float(o["max_abs_diff"]))
    return f"; largest difference {float(worst['max_abs_diff']):.3g} in {worst['name']}"


def print_assumptions(out: Console, assumptions: list[str]) -> None:
    """Print them as a list, if there are any."""
    if assumptions:
        out.print()
        print_line(out, "Assumed", "bold")
        for text in assumptions:
            print_line(out, f"  {text}")


def _search(head: Payload, plan: Payload) -> str:
    seconds = "" if plan["solve_s"] is None else f" in {float(plan['solve_s']):.1f} s"
    return f"{plan['engine'] or 'none'}{seconds}; {proof(head, plan)}"


def proof(head: Payload, plan: Payload) -> str:
    """How near the plan is to the least time, and in which times."""
    gap, times = head["gap"], times_of(plan["cost_source"])
    if head["proved_optimal"]:
        return f"proved optimal ({times})"
    if gap is None:
        return "no bound proved"
    return f"at most {format_percent(float(gap))} above the bound ({times})"


def _times(head: Payload) -> str:
    before, after = _duration(head["time_before_us"]), _duration(head["time_after_us"])
    text = f"{before} -> {after} predicted"
    if head["predicted_time_ratio"] is not None:
        text += f" (x{float(head['predicted_time_ratio']):.3f})"
    if head["cache_us"]:
        text += f", of which {_duration(head['cache_us'])} in the caches"
    if head["measured_time_ratio"] is not None:
        before = _duration(head["measured_time_before_us"])
        after = _duration(head["measured_time_after_us"])
        ratio = float(head["measured_time_ratio"])
        text += f"; {before} -> {after} measured (x{ratio:.3f})"
    return text


def _region(region: Payload) -> str:
    return f"{_size(region['bytes'])} ({format_percent(region['fragmentation'])} over the peak)"


def _size(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)


def _duration(microseconds: float | str | None) -> str:
    return "-" if microseconds is None else format_duration(float(microseconds))
