"""Print documents on a terminal (or a pipe): the lines and tables of all commands.

Names from a model are shown as plain text: no markup, and control characters made visible.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.plain import printable

T = TypeVar("T")
GOOD, BAD, NOTE = "bold green", "bold red", "yellow"
_PIPE_WIDTH = 120
_NAME_WIDTH = 10


def wide_console() -> Console:
    """Return a console on standard output, wide where it is a pipe."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def shown(text_of: Callable[[T], str], value: T | None, none: str = "-") -> str:
    """Format a figure by `text_of`, or return `none` where there is none."""
    return none if value is None else text_of(value)


def print_line(out: Console, text: str, style: str = "") -> None:
    """Print one paragraph of plain text."""
    out.print(Text(printable(text), style=style))


def print_whole(out: Console, text: str, style: str = "") -> None:
    """Print `text` as one line, however long it is."""
    out.print(Text(printable(text), style=style), soft_wrap=True)


def print_row(out: Console, name: str, text: str, style: str = "") -> None:
    """Print a name and a text beside it, as one line that a terminal wraps in its column."""
    if out.is_terminal and name:
        grid = Table.grid()
        grid.add_column(width=_NAME_WIDTH)
        grid.add_column(overflow="fold")
        grid.add_row(Text(name, style="dim"), Text(printable(text), style=style))
        out.print(grid)
        return
    line = Text(name.ljust(_NAME_WIDTH), style="dim")
    line.append(printable(text), style=style)
    out.print(line, soft_wrap=True)


def print_notes(out: Console, notes: Iterable[str]) -> None:
    """Print a row for each note."""
    for note in notes:
        print_row(out, "Note", note, NOTE)


def print_facts(out: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print names and texts in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(Text(name), Text(printable(text)))
    out.print(table)


def print_table(
    out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
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


def print_assumptions(out: Console, assumptions: Sequence[str]) -> None:
    """Print the assumptions as a list, if there are any."""
    if assumptions:
        out.print()
        print_line(out, "Assumed", "bold")
        for text in assumptions:
            print_line(out, f"  {text}")
