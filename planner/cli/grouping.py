"""Groups of options by subject, for `--help` of the commands with many options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from planner.request.asking import GROUPS, ITSELF, OUTPUT

Row = tuple[str, str]


class GroupedCommand(TyperCommand):
    """A command whose help shows its options under headings."""

    # Typer does not export the classes of the formatter and the context
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of options."""
        for title, rows in sections_of(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)


def sections_of(command: TyperCommand, context: Any) -> dict[str, list[Row]]:
    """Return rows of help by heading; an option without a heading goes under output."""
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
