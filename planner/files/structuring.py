"""Convert JSON to values of stated types and back, by msgspec, without coercion.

A string of digits is no number, true is not 1, and 1.5 is not 1. A wrong value becomes one line that
names the file and the place in it: "$.ops[1].name".
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
    """Read a file's JSON document; `what` and `error` as for `planner.files.reading.read_bytes`."""
    text = read_text(path, what=what, error=error)
    return parse_json(text, kind, where=str(path), what=what, error=error)


def parse_json(
    text: str, kind: type[T], *, where: str, what: str, error: type[PlannerError] = ModelError
) -> T:
    """Parse a JSON document of type `kind`, whose numbers are finite and have at most 400 digits.

    Args:
        where: name of the document in the message; what, error: as for `read_json`.

    Raises:
        error: names the first fault, and its place in the document.
    """
    try:
        found = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as reason:
        raise error(f"{where} is not {what}: {_said(reason)}") from None
    # msgspec takes as many digits as Python: 4300 by default
    if _LONG.search(text) and any(token[0][0] != '"' for token in _TOKENS.finditer(text)):
        raise error(f"{where} is not {what}: a number of more than 400 digits")
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of data and what it should be, for messages.

    Attributes:
        where, what, error: as for `parse_json`.
        path: the data's place in the document.
    """

    where: str
    what: str
    error: type[PlannerError] = ModelError
    path: str = "$"


def structured(
    data: Any, kind: type[T] | UnionType, source: Source, *, only_known_keys: bool = True
) -> T:
    """Convert `data`, as JSON or TOML gives it, to a value of type `kind`.

    Args:
        only_known_keys: refuse keys that no field has.

    Raises:
        error: see `parse_json`.
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
    """Return a value of stated types as a line of JSON in ASCII, which any locale can carry.

    A number that JSON cannot hold becomes "nan", "inf" or "-inf".
    """
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
    """Return the fields of a dataclass by name, unconverted: a `default` for `json.dumps`."""
    return {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}


def _faults(data: Any, made: Any, path: str, only_known_keys: bool) -> Iterator[str]:
    """Yield faults that msgspec lets through: nan and inf of TOML, and keys that no dataclass field
    has."""
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
    """Return msgspec's message without the middle of a long value; the place comes last."""
    if isinstance(reason, RecursionError):
        return "it is nested too deep"
    said = str(reason)
    return said if len(said) <= _MAX_SAID else f"{said[:60]}...{said[-60:]}"
