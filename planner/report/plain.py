"""Text from a model's file, made safe to show on one line."""

from __future__ import annotations


def printable(value: object) -> str:
    """`value` on one line, with control characters (escape sequences too) made visible."""
    text = str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, *, at_most: int = 80) -> str:
    """`text` with its middle left out where it is longer than `at_most` characters."""
    if len(text) <= at_most:
        return text
    half = (at_most - 1) // 2
    return f"{text[: at_most - 1 - half]}…{text[-half:]}"
