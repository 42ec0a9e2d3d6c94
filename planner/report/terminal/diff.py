"""Print the comparison of two plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from planner.report.document.diff import DiffDocument, FateRow, PeakChange
from planner.report.terminal import print_line, print_table, wide_console
from planner.units import counted, format_bytes, format_duration, signed

_ROWS = 15

Format = Callable[[Any], str]
_BYTES = format_bytes, partial(signed, format_bytes)
_TIME = format_duration, partial(signed, format_duration)
_COUNT = "{:,}".format, "{:+,}".format
_AMOUNTS: dict[str, tuple[str, Format, Format]] = {
    "peak_bytes": ("peak", *_BYTES),
    "step_us": ("step time", *_TIME),
    "recomputed_ops": ("operations recomputed", *_COUNT),
    "recompute_us": ("recompute time", *_TIME),
    "recomputed_bytes": ("bytes recomputed", *_BYTES),
    "swapped_tensors": ("tensors swapped", *_COUNT),
    "swap_out_bytes": ("copied to the host", *_BYTES),
    "swap_in_bytes": ("copied back", *_BYTES),
    "swap_us": ("copy time", *_TIME),
    "halved_tensors": ("tensors in half", *_COUNT),
    "paged_tensors": ("tensors on the host", *_COUNT),
    "page_in_bytes": ("paged in", *_BYTES),
    "page_out_bytes": ("paged out", *_BYTES),
    "page_us": ("paging time", *_TIME),
    "host_bytes": ("most on the host", *_BYTES),
    "file_bytes": ("in files", *_BYTES),
}


def print_diff(document: DiffDocument, console: Console | None = None) -> None:
    """Print the differences as tables, with the largest rows of each."""
    out = console or wide_console()
    print_line(out, document.sentence, "bold")
    if not document.same_model:
        digests = next(s for s in document.settings if s.setting == "model_sha256")
        print_line(
            out,
            f"The plans are of different models ({digests.a} and {digests.b}): tensors are "
            "compared by name, and the same name need not mean the same tensor.",
        )
    settings = [[s.setting, s.a, s.b] for s in document.settings]
    print_table(out, "Settings", ["setting", "a", "b"], settings)
    rows = []
    for name, (label, plain, change) in _AMOUNTS.items():
        pair = document.planned[name]
        if name == "step_us" and not document.same_times:
            continue  # the sentence has the ratios
        if pair.a or pair.b:
            rows.append([label, plain(pair.a), plain(pair.b), change(pair.difference)])
    print_table(out, "Planned", ["figure", ">a", ">b", ">b - a"], rows)
    _print_tensors(out, document.tensors)
    _print_order(out, document)
    _print_peak(out, document.peak)


def _print_tensors(out: Console, changes: Sequence[FateRow]) -> None:
    rows = [
        [format_bytes(c.bytes), c.a, c.b, signed(format_duration, c.cost_us.difference), c.tensor]
        for c in changes[:_ROWS]
    ]
    title = f"Tensors treated differently ({len(rows)} of {len(changes):,})"
    print_table(out, title, [">bytes", "a", "b", ">cost, b - a", "tensor"], rows)


def _print_order(out: Console, document: DiffDocument) -> None:
    order = document.base_order
    out.print()
    if not order.nodes.a or not order.nodes.b:
        which = [side for side in ("a", "b") if not getattr(order.nodes, side)]
        print_line(out, f"No schedule in {' and '.join(which)}: that model is left as it is.")
    elif (first := order.first_difference) is None:
        print_line(out, "Base order: the same.")
    else:
        print_line(
            out,
            f"Base order: {order.moved:,} of {counted(order.nodes.b, 'operation')} elsewhere, "
            f"{len(order.only_a):,} only in a, {len(order.only_b):,} only in b; first "
            f"difference at {first.at:,}: {first.a} / {first.b}",
        )
    first = document.schedule.first_difference
    if order.equal and first is not None:
        print_line(out, f"Schedule: first difference at action {first.at:,}: {first.a} / {first.b}")


def _print_peak(out: Console, peak: PeakChange) -> None:
    terms = peak.terms
    rows = [
        [
            signed(format_bytes, t.difference),
            format_bytes(t.a) if t.a else "-",
            format_bytes(t.b) if t.b else "-",
            t.tensor,
        ]
        for t in terms[:_ROWS]
    ]
    if len(terms) > _ROWS:
        rest = signed(format_bytes, sum(t.difference for t in terms[_ROWS:]))
        rows.append([rest, "", "", f"({len(terms) - _ROWS:,} more)"])
    if not peak.complete:
        unknown = signed(format_bytes, peak.not_known_bytes)
        rows.append([unknown, "", "", "(not known: a file lists only its largest residents)"])
    both = [format_bytes(peak.a), format_bytes(peak.b)]
    rows.append([signed(format_bytes, peak.difference), *both, "(peak)"])
    columns = [">b - a", ">in a", ">in b", "tensor"]
    print_table(out, "Why the peak moved: resident there", columns, rows)
    for side, at in (("a", peak.at.a), ("b", peak.at.b)):
        if at is not None:
            print_line(out, f"peak of {side}: step {at.step:,}, {at.node}")
