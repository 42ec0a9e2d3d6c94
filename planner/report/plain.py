"""Text from a model's file, made safe to show on one line."""

from __future__ import annotations

import os
import shlex


def printable(value: object) -> str:
    """Return `value` on one line, with control characters (escape sequences too) made visible."""
    text = str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def nearby(path: object) -> str:
    """Return `path` relative to the working folder where it lies below it, unchanged elsewhere."""
    text = str(path)
    if not os.path.isabs(text):
        return text
    try:
        here = os.getcwd()
    except OSError:  # the folder was removed
        return text
    below = os.path.relpath(text, here)
    return text if below == os.pardir or below.startswith(os.pardir + os.sep) else below


def nearby_command(command: str) -> str:
    """Return a command to type, with its files relative to the working folder (`nearby`)."""
    words = shlex.split(command)
    found = [nearby(word) for word in words]
    return command if found == words else shlex.join(found)
