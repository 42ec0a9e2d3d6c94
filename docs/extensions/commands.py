"""`{commands}`: every command of the command line with its options, from the program itself.

Typer brings a Click of its own, which the extensions for Click do not read; this reads what the help
of each command is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from planner.cli.app import app
from planner.cli.grouping import sections_of


class Commands(Directive):
    """A section for each command, with a table for each group of its options."""

    def run(self) -> list[nodes.Node]:
        """The sections, in the order of `planner --help`."""
        group: Any = typer.main.get_command(app)
        context = group.make_context("planner", [], resilient_parsing=True)
        found: list[nodes.Node] = []
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            section = nodes.section(ids=[f"planner-{name}"], names=[f"planner {name}"])
            section += nodes.title("", f"planner {name}")
            section += _usage(command, inner)
            section += list(_help(command.help or ""))
            for title, rows in sections_of(command, inner).items():
                section += list(_table(title, rows))
            self.state.document.note_explicit_target(section)
            found.append(section)
        return found


def _usage(command: Any, context: Any) -> nodes.Node:
    return _code(f"planner {command.name} " + " ".join(command.collect_usage_pieces(context)))


def _code(text: str) -> nodes.Node:
    return nodes.literal_block(text, text, language="text")


def _help(text: str) -> Iterator[nodes.Node]:
    """Paragraphs; what follows a \\b stands as it is."""
    for part in text.strip().split("\n\n"):
        if part.startswith("\b"):
            yield _code(part.lstrip("\b\n"))
        elif part:
            yield nodes.paragraph("", " ".join(part.split()))


def _table(title: str, rows: list[tuple[str, str]]) -> Iterator[nodes.Node]:
    yield nodes.rubric("", title)
    table, group, body = nodes.table(), nodes.tgroup(cols=2), nodes.tbody()
    table += group
    group += [nodes.colspec(colwidth=35), nodes.colspec(colwidth=65), body]
    for option, what in rows:
        row = nodes.row()
        row += nodes.entry("", nodes.paragraph("", "", nodes.literal(option, option)))
        row += nodes.entry("", nodes.paragraph("", what))
        body += row
    yield table


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's way in."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
