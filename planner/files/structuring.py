"""JSON to values of stated types, by msgspec, and back: nothing is turned into the type that is wanted.

Not a text of digits into a number, not true into 1, not 1.5 into 1. What is not as it should be becomes
one line that names the file and the place in it: "$.ops[1].name".
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

import msgspec

from planner.errors import ModelError, PlannerError
from planner.files.reading import read_text, shown

T = TypeVar("T")

_LONG = re.compile("[0-9]{401}")
_TOKENS = re.compile(rf'"(?:[^"\\]|\\.)*+"|{_LONG.pattern}')
_MAX_SAID = 160


def read_json(path: Path, kind: type[T], *, what: str, error: type[PlannerError] = ModelError) -> T:
    """The JSON document of a file; `what` and `error` as for `planner.files.reading.read_bytes`."""
    text = read_text(path, what=what, error=error)
    return parse_json(text, kind, where=str(path), what=what, error=error)


def parse_json(
    text: str, kind: type[T], *, where: str, what: str, error: type[PlannerError] = ModelError
) -> T:
    """A JSON document of type `kind`. Its numbers are finite, and of at most 400 digits.

    Args:
        where: names the document in the message; what, error: as for `read_json`.

    Raises:
        error: with the first thing that is wrong, and where in the document.
    """
    try:
        found = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as reason:
        raise error(f"{where} is not {what}: {_said(reason)}") from None
    # msgspec takes as many digits as Python, 4300 unless it is told otherwise
    if _LONG.search(text) and any(token[0][0] != '"' for token in _TOKENS.finditer(text)):
        raise error(f"{where} is not {what}: a number of more than 400 digits")
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where data comes from and what it should be, for messages.

    Attributes:
        where, what, error: as for `parse_json`.
        path: what the data is called in the document.
    """

    where: str
    what: str
    error: type[PlannerError] = ModelError
    path: str = "$"


def structured(
    data: Any, kind: type[T] | UnionType, source: Source, *, only_known_keys: bool = True
) -> T:
    """`data`, as JSON or TOML gives it, as a value of type `kind`.

    Args:
        only_known_keys: refuse keys that no field has.

    Raises:
        error: as `parse_json`.
    """
    try:
        made = msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as reason:
        said = _said(reason).replace("`$", f"`{source.path}")
        raise source.error(f"{source.where} is not {source.what}: {said}") from None
    for fault in _faults(data, made, source.path, only_known_keys):
        raise source.error(f"{source.where} is not {source.what}: {fault}")
    return made


def json_text(value: object) -> str:
    """A value of stated types as JSON, in a line of ASCII, so that any locale can carry it; a number that
    JSON cannot hold is "nan", "inf" or "-inf"."""
    plain = msgspec.to_builtins(value)
    try:
        return json.dumps(plain, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(plain), allow_nan=False, separators=(",", ":"))


def _finite(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _finite(item) for key, item in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(item) for item in plain]
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain


def fields_of(made: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as they are: what `json.dumps` wants for its `default`."""
    return {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}


def _faults(data: Any, made: Any, path: str, only_known_keys: bool) -> Iterator[str]:
    """What msgspec lets through: TOML's nan and inf, and keys that no field of a dataclass has."""
    if isinstance(made, float) and not math.isfinite(made):
        yield f"{made} is not a finite number - at `{path}`"
    elif dataclasses.is_dataclass(made):
        known = fields_of(made)
        for key in data:
            if key in known:
                yield from _faults(data[key], known[key], f"{path}.{key}", only_known_keys)
            elif only_known_keys:
                yield f"unknown key {shown(key)} - at `{path}`"
    elif isinstance(made, dict | tuple):
        for at in made if isinstance(made, dict) else range(len(made)):
            yield from _faults(data[at], made[at], f"{path}[{shown(at)}]", only_known_keys)


def _said(reason: Exception) -> str:
    """What msgspec says, without the middle of a long value; the place comes last."""
    if isinstance(reason, RecursionError):
        return "it is nested too deep"
    said = str(reason)
    return said if len(said) <= _MAX_SAID else f"{said[:60]}...{said[-60:]}"
