"""Print the cost of each budget."""

from __future__ import annotations

from rich.console import Console

from planner.report.document.sweep import SweepDocument
from planner.report.narrative import times_of
from planner.report.plain import nearby
from planner.report.remarks import that_matter
from planner.report.terminal import (
    print_assumptions,
    print_line,
    print_notes,
    print_row,
    print_table,
    shown,
    wide_console,
)
from planner.report.terminal.phrases import POINT_COLUMNS, point_row
from planner.results import Largest
from planner.units import format_bytes, format_duration, format_percent


def print_sweep(
    document: SweepDocument, console: Console | None = None, *, in_full: bool = True
) -> None:
    """Print a table for each size, and the largest sizes.

    Args:
        in_full: whether to print the table of every size, where there are several, and all assumptions.
    """
    out = console or wide_console()
    print_line(out, nearby(document.model), "bold")
    print_line(out, document.sentence)
    print_line(
        out,
        f"Slowdowns and bounds are {times_of(document.cost_source)}; no plan in the base order of a "
        'row is slower by less than its bound ("at least").',
    )
    told = document.frontiers if in_full or not document.largest else ()
    for frontier in told:
        title = "Budgets" + (f" at {frontier.at}" if frontier.dims else "")
        rows = [point_row(point) for point in frontier.points]
        print_table(out, title, POINT_COLUMNS, rows)
    if document.largest:
        columns = [">budget", f">largest {document.dim}", ">slower", ">step", "next"]
        rows = [_largest_row(row) for row in document.largest]
        print_table(out, f"Largest {document.dim} within each budget", columns, rows)
    assumed = document.assumptions
    if in_full:
        print_assumptions(out, assumed)
        return
    print_notes(out, that_matter(assumed))
    if len(told) < len(document.frontiers):
        print_row(out, "More", "-v prints the table of each size; -o FILE.html writes a page")


def _largest_row(row: Largest) -> list[object]:
    after = ""
    if row.next_size is not None:
        after = f"{row.next_size:,}: {'impossible' if row.next_is_impossible else 'none found'}"
    if row.size is None:
        return [format_bytes(row.budget_bytes, up=True), "none", "", "", after]
    return [
        format_bytes(row.budget_bytes, up=True),
        f"{row.size:,}",
        shown(format_percent, row.slowdown),
        shown(format_duration, row.time_us),
        after,
    ]
