"""Typed documents of results: the terminal, the page and `--json` all show their figures.

Each document names its `schema`. Sizes are integer bytes (`*_bytes`), durations microseconds
(`*_us`), ratios plain numbers (1.25 = 25% slower); a missing figure is None.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document, or a part of one. Its fields appear in `--json`; its properties are for people
    only."""


D = TypeVar("D", bound=Document)


def told(kind: type[D], *sources: object, **fields: object) -> D:
    """Make a document of `fields`, and fill its other fields from the sources.

    Args:
        sources: values with attributes named like the fields; the first that has one counts.
    """
    for name in kind.__struct_fields__:
        source = next((s for s in sources if hasattr(s, name)), None)
        if source is not None:
            fields.setdefault(name, getattr(source, name))
    return msgspec.convert(fields, kind, from_attributes=True)


def unique(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """List each text of the groups once, in order of first occurrence."""
    return tuple(dict.fromkeys(text for group in groups for text in group))
