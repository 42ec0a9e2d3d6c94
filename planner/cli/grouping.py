"""`--help` of the commands with many options: in groups, by what they are about."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from planner.request.asking import GROUPS, ITSELF, OUTPUT

Row = tuple[str, str]


class GroupedCommand(TyperCommand):
    """A command whose help shows its options under headings."""

    # the formatter's and the context's classes are Typer's own, which it does not export
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        for title, rows in sections_of(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)


def sections_of(command: TyperCommand, context: Any) -> dict[str, list[Row]]:
    """Rows of help by heading; an option whose command names no heading for it is about output."""
    is_grouped = isinstance(command, GroupedCommand)
    found: dict[str, list[Row]] = {
        title: [] for title in ("Arguments", *(GROUPS if is_grouped else ("Options",)))
    }
    for param in command.get_params(context):
        row = param.get_help_record(context)
        if row is None:
            continue
        default = ITSELF if param.name == "help" else OUTPUT
        title = getattr(param, "rich_help_panel", None) or default
        is_argument = param.param_type_name == "argument"
        found["Arguments" if is_argument else title if is_grouped else "Options"].append(row)
    return {title: rows for title, rows in found.items() if rows}
