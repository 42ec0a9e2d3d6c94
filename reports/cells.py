"""Cells of the tables that are made of rows of `reports.planned`."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def plain(row: Row) -> str:
    """Results that are the same bits in plain sessions of both files; "" where nobody looked."""
    if "plain_outputs" not in row:
        return ""
    off = len(row["plain_differ"]) + len(row["plain_unstable"])
    unstable = f" ({len(row['plain_unstable'])} unstable)" if row["plain_unstable"] else ""
    return f"{row['plain_outputs'] - off} of {row['plain_outputs']}{unstable}"


def short(text: str, most: int = 300) -> str:
    """The first line of a message, as a cell of a table."""
    first = text.splitlines()[0].replace("|", "\\|")
    return first if len(first) < most else first[: most - 3] + "..."
