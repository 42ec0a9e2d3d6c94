"""Two plan files compared: what was decided otherwise, what that costs, and why the peak moved.

Everything comes from the two files. Differences are b - a: positive where b has more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import __version__
from planner.disk import Disk
from planner.plan.planfile import Plan, PredictedCost
from planner.units import format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from rich.console import Console

DIFF_SCHEMA = "planner.diff/1"
_ROWS = 15
_SETTINGS = (
    "planner_version",
    "model_name",
    "model_sha256",
    "dims",
    "budget_text",
    "budget_bytes",
    "reserve_bytes",
    "hardware",
    "cost_source",
    "swap_mode",
    "assumed",
    "copies",
    "disk",
    "pattern",
    "order_target",
    "ort_optimized",
    "engine",
    "seed",
)
_FIGURES = (*PredictedCost.__dataclass_fields__, "step_us")
_PERSISTENT = "graph inputs and initializers"
_WORKSPACE = "workspace of the node that runs"
_PAST = {"recompute": "recomputed", "swap": "swapped"}

Payload = dict[str, Any]
Amounts = dict[str, int]


def diff_payload(a: Plan, b: Plan, *, paths: tuple[Path, Path]) -> Payload:
    """The document of `planner diff`."""
    payload: Payload = {
        "schema": DIFF_SCHEMA,
        "planner_version": __version__,
        "a": str(paths[0]),
        "b": str(paths[1]),
        "same_model": a.model_sha256 == b.model_sha256,
        "same_schedule": a.schedule == b.schedule,
        "settings": [
            {"setting": name, "a": of_a, "b": of_b}
            for name in _SETTINGS
            if (of_a := _setting(a, name)) != (of_b := _setting(b, name))
        ],
        "planned": {
            name: _pair(getattr(a.planned, name), getattr(b.planned, name)) for name in _FIGURES
        },
        "baseline_peak_bytes": _pair(a.baseline.peak_bytes, b.baseline.peak_bytes),
        "bound_us": {"a": a.bound_us, "b": b.bound_us},
        "tensors": _fates(a, b),
        "base_order": _order(_base_order(a), _base_order(b)),
        "schedule": _schedule(a, b),
        "peak": _peak(a, b),
    }
    payload["sentence"] = _sentence(payload)
    return payload


def _setting(plan: Plan, name: str) -> Any:
    """What a plan says of a setting."""
    value = getattr(plan, name)
    return value.speeds if isinstance(value, Disk) else value


def _pair(a: float, b: float) -> Payload:
    return {"a": a, "b": b, "difference": b - a}


# -- decisions and order -----------------------------------------------------------------------


def _fates(a: Plan, b: Plan) -> list[Payload]:
    """Tensors with another fate, or the same one another number of times; largest first."""
    facts = {d.tensor: d for plan in (a, b) for d in plan.decisions}
    counts = [Counter((d.tensor, d.action) for d in plan.decisions) for plan in (a, b)]
    cost_us: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for plan, sums in zip((a, b), cost_us, strict=True):
        for d in plan.decisions:
            sums[d.tensor] = sums.get(d.tensor, 0.0) + d.cost_us
    rows = []
    for tensor, decision in facts.items():
        fates = [{x: c[tensor, x] for x in _PAST if c[tensor, x]} for c in counts]
        if fates[0] == fates[1]:
            continue
        rows.append(
            {
                "tensor": tensor,
                "bytes": decision.bytes,
                "category": decision.category,
                "a": _fate(fates[0]),
                "b": _fate(fates[1]),
                "cost_us": _pair(*(sums.get(tensor, 0.0) for sums in cost_us)),
            }
        )
    return sorted(rows, key=lambda row: (-row["bytes"], row["tensor"]))


def _fate(times: dict[str, int]) -> str:
    if not times:
        return "kept"
    return " and ".join(
        _PAST[action] if n == 1 else f"{_PAST[action]} {n} times" for action, n in times.items()
    )


def _base_order(plan: Plan) -> tuple[str, ...]:
    """Nodes in the order of their first run; nothing for a model that is left as it is."""
    return tuple(s.target for s in plan.schedule if s.kind == "run" and s.copy == 0)


def _order(a: Sequence[str], b: Sequence[str]) -> Payload:
    """`moved` is the least number of nodes that must be taken elsewhere to get b's order."""
    place = {node: i for i, node in enumerate(a)}
    both = [place[node] for node in b if node in place]
    ends: list[int] = []  # the longest ascending subsequence is what can stay
    for at in both:
        spot = bisect_left(ends, at)
        ends[spot : spot + 1] = [at]
    there = set(b)
    return {
        "equal": tuple(a) == tuple(b),
        "nodes": {"a": len(a), "b": len(b)},
        "moved": len(both) - len(ends),
        "only_a": [node for node in a if node not in there],
        "only_b": [node for node in b if node not in place],
        "first_difference": _first_difference(a, b),
    }


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> Payload | None:
    for i in range(max(len(a), len(b))):
        here = [s[i] if i < len(s) else None for s in (a, b)]
        if here[0] != here[1]:
            return {"at": i, "a": here[0], "b": here[1]}
    return None


def _schedule(a: Plan, b: Plan) -> Payload:
    texts = [[f"{s.kind} {s.target}" for s in plan.schedule] for plan in (a, b)]
    return {
        "equal": a.schedule == b.schedule,
        "actions": _pair(len(a.schedule), len(b.schedule)),
        "first_difference": _first_difference(*texts),
    }


# -- the peak ----------------------------------------------------------------------------------


def _peak(a: Plan, b: Plan) -> Payload:
    """Terms that add up to the difference of the peaks, with what the files don't tell as one."""
    difference = b.planned.peak_bytes - a.planned.peak_bytes
    complete = a.peak is not None and b.peak is not None
    if complete:
        here, there = _residents(a), _residents(b)
        names = {*here, *there}
    else:
        here, there = dict(a.binding), dict(b.binding)
        names = {name for name in {*here, *there} if _is_known(name, a, b)}
    terms = [
        {"tensor": name, **_pair(here.get(name, 0), there.get(name, 0))}
        for name in names
        if here.get(name, 0) != there.get(name, 0)
    ]
    terms.sort(key=lambda term: (-abs(term["difference"]), term["tensor"]))
    return {
        **_pair(a.planned.peak_bytes, b.planned.peak_bytes),
        "at": {
            "a": None if a.peak is None else {"step": a.peak.step, "node": a.peak.node},
            "b": None if b.peak is None else {"step": b.peak.step, "node": b.peak.node},
        },
        "terms": terms,
        "complete": complete,
        "not_known_bytes": difference - sum(term["difference"] for term in terms),
    }


def _residents(plan: Plan) -> Amounts:
    """Bytes by tensor at the planned peak, copies of one tensor together."""
    assert plan.peak is not None
    found: Counter[str] = Counter()
    for resident in plan.peak.residents:
        found[resident.tensor] += resident.bytes
    found[f"({_PERSISTENT})"] += plan.peak.persistent_bytes
    found[f"({_WORKSPACE})"] += plan.peak.workspace_bytes
    return dict(found)


def _is_known(name: str, a: Plan, b: Plan) -> bool:
    """Whether older files, which list the largest residents only, tell where a tensor is resident:
    it is listed in both, or it would be listed if it were there."""
    for plan, other in ((a, b), (b, a)):
        listed = dict(plan.binding)
        if name in listed:
            continue
        least = min(listed.values(), default=0)
        if sum(listed.values()) < plan.planned.peak_bytes and dict(other.binding)[name] <= least:
            return False
    return True


def _sentence(payload: Payload) -> str:
    peak, planned = payload["peak"], payload["planned"]
    if payload["same_schedule"] and not payload["tensors"] and not peak["difference"]:
        return "Both plans do the same."
    time = planned["step_us"]
    ratio = f" ({_signed_percent(time['b'] / time['a'] - 1)})" if time["a"] else ""
    text = (
        f"The planned peak goes from {format_bytes(peak['a'])} to {format_bytes(peak['b'])} "
        f"({_signed_bytes(peak['difference'])}), the predicted step time from "
        f"{format_duration(time['a'])} to {format_duration(time['b'])}{ratio}"
    )
    changed = len(payload["tensors"])
    return f"{text}; {changed:,} {'tensor has' if changed == 1 else 'tensors have'} another fate."


def _signed_bytes(size: int) -> str:
    return ("+" if size > 0 else "") + format_bytes(size)


def _signed_percent(ratio: float) -> str:
    return ("+" if ratio > 0 else "") + format_percent(ratio)


def _signed_duration(microseconds: float) -> str:
    return ("+" if microseconds > 0 else "") + format_duration(microseconds)


# -- text --------------------------------------------------------------------------------------

_AMOUNTS: dict[str, tuple[str, Any, Any]] = {
    "peak_bytes": ("peak", format_bytes, _signed_bytes),
    "step_us": ("step time", format_duration, _signed_duration),
    "recomputed_ops": ("operations recomputed", "{:,}".format, "{:+,}".format),
    "recompute_us": ("recompute time", format_duration, _signed_duration),
    "recomputed_bytes": ("bytes recomputed", format_bytes, _signed_bytes),
    "swapped_tensors": ("tensors swapped", "{:,}".format, "{:+,}".format),
    "swap_out_bytes": ("copied to the host", format_bytes, _signed_bytes),
    "swap_in_bytes": ("copied back", format_bytes, _signed_bytes),
    "swap_us": ("copy time", format_duration, _signed_duration),
    "halved_tensors": ("tensors in half", "{:,}".format, "{:+,}".format),
    "paged_tensors": ("tensors on the host", "{:,}".format, "{:+,}".format),
    "page_in_bytes": ("paged in", format_bytes, _signed_bytes),
    "page_out_bytes": ("paged out", format_bytes, _signed_bytes),
    "page_us": ("paging time", format_duration, _signed_duration),
    "host_bytes": ("most on the host", format_bytes, _signed_bytes),
    "file_bytes": ("in files", format_bytes, _signed_bytes),
}


def print_diff(payload: Payload, console: Console | None = None) -> None:
    """The differences as tables; the largest rows of each."""
    from planner.report.terminal import print_line, print_table, wide_console

    out = console or wide_console()
    print_line(out, payload["sentence"], "bold")
    if not payload["same_model"]:
        digests = next(s for s in payload["settings"] if s["setting"] == "model_sha256")
        print_line(
            out,
            f"The plans are of different models ({digests['a']} and {digests['b']}): tensors are "
            "compared by name, and the same name need not mean the same tensor.",
        )
    print_table(
        out,
        "Settings",
        ["setting", "a", "b"],
        [[s["setting"], s["a"], s["b"]] for s in payload["settings"]],
    )
    rows: list[list[object]] = []
    for name, (label, plain, signed) in _AMOUNTS.items():
        pair = payload["planned"][name]
        if pair["a"] or pair["b"]:
            rows.append([label, plain(pair["a"]), plain(pair["b"]), signed(pair["difference"])])
    print_table(out, "Planned", ["figure", ">a", ">b", ">b - a"], rows)
    _print_tensors(out, payload["tensors"])
    _print_order(out, payload)
    _print_peak(out, payload["peak"])


def _print_tensors(out: Console, changes: list[Payload]) -> None:
    from planner.report.terminal import print_table

    print_table(
        out,
        f"Tensors with another fate ({min(_ROWS, len(changes))} of {len(changes):,})",
        [">bytes", "a", "b", ">cost, b - a", "tensor"],
        [
            [
                format_bytes(c["bytes"]),
                c["a"],
                c["b"],
                _signed_duration(c["cost_us"]["difference"]),
                c["tensor"],
            ]
            for c in changes[:_ROWS]
        ],
    )


def _print_order(out: Console, payload: Payload) -> None:
    from planner.report.terminal import print_line

    order, schedule = payload["base_order"], payload["schedule"]
    out.print()
    if not order["nodes"]["a"] or not order["nodes"]["b"]:
        which = [side for side in ("a", "b") if not order["nodes"][side]]
        print_line(out, f"No schedule in {' and '.join(which)}: that model is left as it is.")
    elif order["equal"]:
        print_line(out, "Base order: the same.")
    else:
        first = order["first_difference"]
        print_line(
            out,
            f"Base order: {order['moved']:,} of {order['nodes']['b']:,} operations elsewhere, "
            f"{len(order['only_a']):,} only in a, {len(order['only_b']):,} only in b; first "
            f"difference at {first['at']:,}: {first['a']} / {first['b']}",
        )
    if order["equal"] and not schedule["equal"]:
        first = schedule["first_difference"]
        print_line(
            out,
            f"Schedule: first difference at action {first['at']:,}: {first['a']} / {first['b']}",
        )


def _print_peak(out: Console, peak: Payload) -> None:
    from planner.report.terminal import print_line, print_table

    terms = peak["terms"]
    rows: list[list[object]] = [
        [
            _signed_bytes(t["difference"]),
            format_bytes(t["a"]) if t["a"] else "-",
            format_bytes(t["b"]) if t["b"] else "-",
            t["tensor"],
        ]
        for t in terms[:_ROWS]
    ]
    rest = sum(t["difference"] for t in terms[_ROWS:])
    if len(terms) > _ROWS:
        rows.append([_signed_bytes(rest), "", "", f"({len(terms) - _ROWS:,} more)"])
    if not peak["complete"]:
        unknown = _signed_bytes(peak["not_known_bytes"])
        rows.append([unknown, "", "", "(not known: a file lists only its largest residents)"])
    rows.append(
        [
            _signed_bytes(peak["difference"]),
            format_bytes(peak["a"]),
            format_bytes(peak["b"]),
            "(peak)",
        ]
    )
    print_table(
        out, "Why the peak moved: resident there", [">b - a", ">in a", ">in b", "tensor"], rows
    )
    for side, at in peak["at"].items():
        if at is not None:
            print_line(out, f"peak of {side}: step {at['step']:,}, {at['node']}")
