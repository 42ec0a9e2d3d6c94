"""Typed documents: what is said of a result, from which the terminal, the page and `--json` all read.

Each document names its `schema`. Sizes are integer bytes (`*_bytes`), durations microseconds
(`*_us`), ratios plain numbers (1.25 = 25% slower); a figure that was not obtained is None.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document, or a part of one. Its fields are those of `--json`, properties are for people alone."""


D = TypeVar("D", bound=Document)


def told(kind: type[D], *sources: object, **fields: object) -> D:
    """Make a document of `fields`, and of what the sources have of its other fields.

    Args:
        sources: values with attributes of the fields' names; of several that have one, the first counts.
    """
    for name in kind.__struct_fields__:
        source = next((s for s in sources if hasattr(s, name)), None)
        if source is not None:
            fields.setdefault(name, getattr(source, name))
    return msgspec.convert(fields, kind, from_attributes=True)


def unique(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """List each text of the groups once, in their order."""
    return tuple(dict.fromkeys(text for group in groups for text in group))
