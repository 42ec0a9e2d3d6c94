"""Print the explanation of one tensor of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from planner.report.document.explain import ExplainDocument, Interval
from planner.report.terminal import print_line, print_table, shown, wide_console
from planner.units import format_both, format_duration, some_of

_MAX_RUNS = 4
_PAST = {"recompute": "recomputed", "swap": "copied back", "page-in": "copied from the host"}


def print_explanation(document: ExplainDocument, console: Console | None = None) -> None:
    """Print the tensor, its places, its alternatives, and the worth of its bytes."""
    out = console or wide_console()
    print_line(out, document.tensor, "bold")
    shape = "×".join(map(str, document.shape)) or "scalar"
    said = f"{format_both(document.bytes)}, {document.category}, {document.dtype} {shape}"
    print_line(out, said)
    if document.buffer != document.tensor:
        print_line(out, f"a view: it shares the buffer of {document.buffer}, shown here")
    if document.persistent:
        print_line(out, "a graph input or initializer: on the device throughout, not planned")
    else:
        print_line(out, f"made by {document.producer}")
    for line in (document.program or "").splitlines():
        print_line(out, f"    {line}")
    print_line(out, f"read by {', '.join(document.uses) or 'nothing'}")
    _print_lives(out, document)
    rows = [_interval_row(i) for i in document.intervals]
    columns = ["from", "to", ">steps", "chosen", ">recompute", ">swap", ">worth", "why"]
    print_table(out, "Between one use and the next", columns, rows)
    _print_ways(out, document.intervals)
    for absence in document.returns:
        print_line(
            out,
            f"after its last use: {_PAST[absence.action]} at step {absence.end} by {absence.by}, "
            "for a recompute that reads it",
        )
    _print_prices(out, document)
    if document.times_from != document.plan_times_from:
        print_line(
            out,
            f"Times are from: {document.times_from}. The plan was made with others "
            f"({document.plan_times_from}): give the same profile with --profile.",
        )


def _print_lives(out: Console, document: ExplainDocument) -> None:
    before, after = document.before, document.after
    text = "not in the original"
    if before.live is not None:
        text = f"steps [{before.live.start}, {before.live.end})"
    print_line(out, f"before: {text} of {before.steps}{_at_peak(before.at_peak)}")
    spans = ", ".join(f"[{s.start}, {s.end})" for s in after.live) or "none"
    print_line(out, f"after: steps {spans} of {after.steps}{_at_peak(after.at_peak)}")
    if document.unchanged:
        print_line(out, "The plan leaves the model as it is: there was nothing to decide.")


def _at_peak(there: bool) -> str:
    return ", at the peak too" if there else ", not at the peak"


def _interval_row(interval: Interval) -> list[object]:
    cost_us = {way.action: way.cost_us for way in interval.ways}
    return [
        interval.opens,
        interval.closes,
        f"{interval.start}-{interval.end}",
        interval.chosen,
        shown(format_duration, cost_us["recompute"]),
        shown(format_duration, cost_us["swap"]),
        shown(format_duration, interval.rent_us),
        interval.why,
    ]


def _print_ways(out: Console, intervals: Sequence[Interval]) -> None:
    """Print the nodes that a recompute would run, and why a way is impossible; each once."""
    said: dict[str, None] = {}
    for way in (way for interval in intervals for way in interval.ways):
        if way.why_not:
            said[f"no {way.action}: {way.why_not}"] = None
        elif way.runs:
            said[f"to recompute it: {some_of(way.runs, _MAX_RUNS)} run again"] = None
        elif way.action == "swap":
            out_us, in_us = map(format_duration, (way.copy_out_us, way.copy_in_us))
            said[f"to swap it: {out_us} out, once, and {in_us} in, each time"] = None
    for text in said:
        print_line(out, text)


def _print_prices(out: Console, document: ExplainDocument) -> None:
    prices = document.prices
    if prices is None:
        if not document.unchanged:
            out.print()
            print_line(out, "Prices: none, as the bound was not computed in time.")
        return
    rows = [
        [format_duration(cut.us_per_mib), "yes" if cut.waits else "no", cut.node]
        for cut in prices.cuts
        if cut.us_per_mib > 0
    ]
    columns = [">a MiB saves", "tensor waits there", "while this node runs"]
    print_table(out, "What the budget is worth", columns, rows)
    total = format_duration(prices.us_per_mib)
    here = format_duration(prices.us_per_mib_where_it_waits)
    print_line(
        out,
        f"1 MiB more of budget takes {total} off the bound, {here} of it where this tensor waits.",
    )
    print_line(out, prices.what, "dim")
