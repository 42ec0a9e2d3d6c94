"""One tensor of a plan, as a document and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner import __version__
from planner.pipeline.record.explanation import Explanation, Interval
from planner.report.views import number, picked
from planner.units import format_both, format_duration

if TYPE_CHECKING:
    from rich.console import Console

EXPLAIN_SCHEMA = "planner.explain/1"
_MIB = 1 << 20
_MAX_RUNS = 4
_WHAT_PRICES_ARE = (
    "Prices are of the bound: the dual prices of the linear program over these instants, which "
    "says that no plan in this base order takes less time. That program may keep a part of a "
    "tensor; what another MiB saves the plan itself comes in jumps, and may be nothing."
)
_PAST = {"recompute": "recomputed", "swap": "copied back", "page-in": "copied from the host"}

Payload = dict[str, Any]


def explain_payload(e: Explanation) -> Payload:
    """The document of `planner explain`; durations in microseconds."""
    plan = e.plan
    prices = None
    if e.instants is not None:
        prices = {
            "what": _WHAT_PRICES_ARE,
            "bound_us": number(e.bound_us),
            "us_per_mib": sum(m.us_per_byte for m in e.instants) * _MIB,
            "us_per_mib_where_it_waits": sum(m.us_per_byte for m in e.instants if m.waits) * _MIB,
            "cuts": [
                {"node": m.node, "us_per_mib": m.us_per_byte * _MIB, "waits": m.waits}
                for m in e.instants
            ],
        }
    return {
        "schema": EXPLAIN_SCHEMA,
        "planner_version": __version__,
        "model_sha256": plan.model_sha256,
        "budget_bytes": plan.budget_bytes,
        "unchanged": plan.unchanged,
        **picked(e, "tensor", "buffer", "bytes", "category", "dtype", "shape", "producer", "uses"),
        **picked(e, "times_from"),
        "persistent": e.is_persistent,
        "program": e.program or None,
        "before": {
            "steps": e.steps_before,
            "live": None if e.before is None else asdict(e.before),
            "at_peak": e.at_peak_before,
        },
        "after": {
            "steps": e.steps_after,
            "live": [asdict(span) for span in e.after],
            "at_peak": e.at_peak_after,
        },
        "intervals": [{**asdict(i), "why": why(i)} for i in e.intervals],
        "returns": [asdict(absence) for absence in e.returns],
        "prices": prices,
        "plan_times_from": plan.cost_source,
    }


def why(interval: Interval) -> str:
    """Why a tensor is kept, or brought back, over one interval."""
    if interval.absences:
        return "; ".join(dict.fromkeys(a.why for a in interval.absences if a.why))
    costs = [w.cost_us for w in interval.ways if w.action != "keep" and w.cost_us is not None]
    if not costs:
        return "it may be neither recomputed nor swapped"
    rent = interval.rent_us
    back = f"bringing it back costs {format_duration(min(costs))}"
    if rent is None:
        return back
    if rent < 1e-3:
        return "memory has no price here: no instant that binds lies within the interval"
    worth = f"its bytes are worth {format_duration(rent)} to the bound here"
    if rent <= min(costs) * (1 + 1e-6):
        return f"{worth}, {back}"
    return f"{worth}, although {back}: the plan is not the bound"


def print_explanation(payload: Payload, console: Console | None = None) -> None:
    """The tensor, where it is, what was weighed, what its bytes are worth."""
    from planner.report.terminal import print_line, print_table, wide_console

    out = console or wide_console()
    print_line(out, payload["tensor"], "bold")
    shape = "×".join(map(str, payload["shape"])) or "scalar"
    print_line(
        out, f"{format_both(payload['bytes'])}, {payload['category']}, {payload['dtype']} {shape}"
    )
    if payload["buffer"] != payload["tensor"]:
        print_line(out, f"a view: it shares the buffer of {payload['buffer']}, shown here")
    if payload["persistent"]:
        print_line(out, "a graph input or initializer: on the device throughout, not planned")
    else:
        print_line(out, f"made by {payload['producer']}")
    for line in (payload["program"] or "").splitlines():
        print_line(out, f"    {line}")
    print_line(out, f"read by {', '.join(payload['uses']) or 'nobody'}")
    _print_lives(out, payload)
    rows = [_interval_row(i) for i in payload["intervals"]]
    columns = ["from", "to", ">steps", "chosen", ">recompute", ">swap", ">worth", "why"]
    print_table(out, "Between one use and the next", columns, rows)
    _print_ways(out, payload["intervals"])
    for absence in payload["returns"]:
        print_line(
            out,
            f"behind its last use: {_PAST[absence['action']]} at step {absence['end']} by "
            f"{absence['by']}, for a recompute that reads it",
        )
    _print_prices(out, payload)
    if payload["times_from"] != payload["plan_times_from"]:
        print_line(
            out,
            f"Times are from: {payload['times_from']}. The plan was made with others "
            f"({payload['plan_times_from']}): give the same profile with --profile.",
        )


def _print_lives(out: Console, payload: Payload) -> None:
    from planner.report.terminal import print_line

    before, after = payload["before"], payload["after"]
    live = before["live"]
    text = "not in the original" if live is None else f"steps [{live['start']}, {live['end']})"
    print_line(out, f"before: {text} of {before['steps']}{_at_peak(before)}")
    spans = ", ".join(f"[{s['start']}, {s['end']})" for s in after["live"]) or "none"
    print_line(out, f"after: steps {spans} of {after['steps']}{_at_peak(after)}")
    if payload["unchanged"]:
        print_line(out, "The plan leaves the model as it is: nothing was weighed.")


def _at_peak(view: Payload) -> str:
    return ", at the peak too" if view["at_peak"] else ", not at the peak"


def _interval_row(interval: Payload) -> list[object]:
    cost = {w["action"]: w["cost_us"] for w in interval["ways"]}
    rent = interval["rent_us"]
    return [
        interval["opens"],
        interval["closes"],
        f"{interval['start']}-{interval['end']}",
        interval["chosen"],
        _duration(cost["recompute"]),
        _duration(cost["swap"]),
        _duration(rent),
        interval["why"],
    ]


def _print_ways(out: Console, intervals: list[Payload]) -> None:
    """What a recompute would run, and why a way is closed; each only once."""
    from planner.report.terminal import print_line

    said: dict[str, None] = {}
    for interval in intervals:
        for way in interval["ways"]:
            if way["why_not"]:
                said[f"no {way['action']}: {way['why_not']}"] = None
            elif way["runs"]:
                runs, more = way["runs"][:_MAX_RUNS], len(way["runs"]) - _MAX_RUNS
                rest = f" and {more:,} more" if more > 0 else ""
                said[f"to recompute it: {', '.join(runs)}{rest} run again"] = None
            elif way["action"] == "swap":
                out_us, in_us = (format_duration(way[k]) for k in ("copy_out_us", "copy_in_us"))
                said[f"to swap it: {out_us} out, once, and {in_us} in, each time"] = None
    for text in said:
        print_line(out, text)


def _print_prices(out: Console, payload: Payload) -> None:
    from planner.report.terminal import print_line, print_table

    prices = payload["prices"]
    if prices is None:
        if not payload["unchanged"]:
            out.print()
            print_line(out, "Prices: none, the bound was not found in time.")
        return
    rows: list[list[object]] = [
        [_duration(cut["us_per_mib"]), "yes" if cut["waits"] else "no", cut["node"]]
        for cut in prices["cuts"]
        if cut["us_per_mib"] > 0
    ]
    columns = [">a MiB saves", "tensor waits there", "while this node runs"]
    print_table(out, "What the budget is worth", columns, rows)
    total = format_duration(prices["us_per_mib"])
    here = format_duration(prices["us_per_mib_where_it_waits"])
    print_line(
        out,
        f"1 MiB more of budget takes {total} off the bound, {here} of it where this tensor waits.",
    )
    print_line(out, prices["what"], "dim")


def _duration(microseconds: float | None) -> str:
    return "-" if microseconds is None else format_duration(microseconds)
