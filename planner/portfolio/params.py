"""The portfolio's numeric parameters as a TOML file; missing ones keep their default.

    [portfolio]
    near_s = 5.0

    [race]                      # of base orders; likewise [frontier]
    first_orders = 4

    [engines.anneal]            # in every table
    enabled = false

    [serial.parts]              # in one of rough, serial and other
    until = 0.4
    part_stages = [3, 12]

`planner solve --print-params` prints all of them. A command that does not use one of the tables
says so (`changed_stages`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from planner.errors import UsageError
from planner.files.reading import read_text, shown
from planner.files.structuring import Source, fields_of, structured
from planner.portfolio.table import POLICY, Policy, PortfolioNumbers, Turn

_WHAT = "a file of parameters"
_TABLES = ("rough", "serial", "other")
_OF_TURN = ("until", "until_if_large")
STAGES = ("race", "frontier")
"""Tables for stages other than one search: fields of `Policy`."""

_SHARES = ("share", "_shares", "_until", "_gap")
"""Suffixes of the names of shares."""

_MIN = 1e-9
"""Least sensible time or factor; dividing by smaller ones overflows."""


def read_params(path: Path) -> Policy:
    """Read a policy from a file.

    Raises:
        UsageError: the file is not one, names an engine or a number that does not exist, or gives a
            number that makes no sense.
    """
    text = read_text(path, what=_WHAT, error=UsageError)
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path} is not {_WHAT}: it is nested too deep") from None
    except ValueError as error:  # not TOML, or a number with thousands of digits
        raise UsageError(f"{path} is not {_WHAT}: {error}") from None
    return policy_of(data, where=str(path))


def policy_of(data: Mapping[str, Any], *, where: str, base: Policy = POLICY) -> Policy:
    """Return `base` with the changes in `data`.

    Args:
        data: parsed TOML.
        where: the file, for messages.
        base: the policy to change.

    Raises:
        UsageError: as `read_params`.
    """
    known = ("portfolio", *STAGES, "engines", *_TABLES)
    for key, value in data.items():
        if key not in known:
            raise _wrong(where, f"unknown table {shown(key)}; there are {', '.join(known)}")
        if not isinstance(value, dict):
            raise _wrong(where, f"{key} is {shown(value)}, not a table")
    head = PortfolioNumbers(**{key: getattr(base, key) for key in PortfolioNumbers.__slots__})
    found = fields_of(_with(head, data.get("portfolio", {}), "portfolio", where))
    for name in STAGES:
        found[name] = _with(getattr(base, name), data.get(name, {}), name, where)
    tables = {name: getattr(base, name) for name in _TABLES}
    for section in ("engines", *_TABLES):
        for engine, given in data.get(section, {}).items():
            if not isinstance(given, dict):
                raise _wrong(where, f"{section}.{engine} is {shown(given)}, not a table")
            concerned = _TABLES if section == "engines" else (section,)
            names = sorted({turn.engine.name for name in concerned for turn in tables[name]})
            if engine not in names:
                there = ", ".join(names)
                raise _wrong(where, f"no engine {shown(engine)} in {section}; there are {there}")
            for name in concerned:
                tables[name] = _changed(tables[name], engine, given, f"{section}.{engine}", where)
    return replace(base, **tables, **found)


def params_text(policy: Policy = POLICY) -> str:
    """Return the policy as a TOML file; infinite numbers are left out."""
    data: dict[str, Any] = {
        "portfolio": {k: getattr(policy, k) for k in PortfolioNumbers.__slots__}
    }
    for name in STAGES:
        data[name] = fields_of(getattr(policy, name))
    for name in _TABLES:
        data[name] = {turn.engine.name: _given(turn) for turn in getattr(policy, name)}
    return tomli_w.dumps(data)


def changed_stages(policy: Policy) -> tuple[str, ...]:
    """Return the tables of `STAGES` whose parameters differ from the default."""
    return tuple(name for name in STAGES if getattr(policy, name) != getattr(POLICY, name))


def _given(turn: Turn) -> dict[str, Any]:
    numbers = {key: getattr(turn, key) for key in _OF_TURN}
    found = {**numbers, **fields_of(turn.engine)}
    return {k: v for k, v in found.items() if v is not None and v != math.inf}


def _changed(
    turns: tuple[Turn, ...], engine: str, given: Mapping[str, Any], section: str, where: str
) -> tuple[Turn, ...]:
    """Return the turns with the changes for one engine."""
    enabled = given.get("enabled", True)
    if not isinstance(enabled, bool):
        raise _wrong(where, f"{section}.enabled is {shown(enabled)}, not true or false")
    found: list[Turn] = []
    for turn in turns:
        if turn.engine.name != engine:
            found.append(turn)
        elif enabled:
            found.append(_changed_turn(turn, given, section, where))
    return tuple(found)


def _changed_turn(turn: Turn, given: Mapping[str, Any], section: str, where: str) -> Turn:
    own = {k: v for k, v in given.items() if k not in ("enabled", *_OF_TURN)}
    engine = _with(turn.engine, own, section, where)
    times = {}
    for key in _OF_TURN:
        value = given.get(key, getattr(turn, key))
        if value is not None and (type(value) not in (int, float) or not 0 < value <= 1):
            raise _wrong(
                where, f"{section}.{key} is {shown(value)}, not a share above 0 and up to 1"
            )
        times[key] = value
    return replace(turn, engine=engine, **times)


def _with(value: Any, given: Mapping[str, Any], section: str, where: str) -> Any:
    """Return a copy of the dataclass `value` with the given parameters."""
    source = Source(where=where, what=_WHAT, error=UsageError, path=section)
    made: Any = structured(given, type(value), source)
    _check_numbers(made, section, where)
    return replace(value, **{key: getattr(made, key) for key in given})


def _check_numbers(made: Any, section: str, where: str) -> None:
    """Check that counts, sizes and times are above 0, and shares between 0 and 1."""
    for key, value in fields_of(made).items():
        for number in value if isinstance(value, tuple) else (value,):
            if key.endswith(_SHARES):
                if not 0 <= number <= 1 and number != math.inf:
                    raise _wrong(where, f"{section}.{key} is {number}, not between 0 and 1")
            elif number <= 0:
                raise _wrong(where, f"{section}.{key} is {number}, not above 0")
            elif number < _MIN:
                raise _wrong(where, f"{section}.{key} is {number}, below {_MIN:g}")
        if isinstance(value, tuple) and not value:
            raise _wrong(where, f"{section}.{key} is empty")


def _wrong(where: str, what: str) -> UsageError:
    return UsageError(f"{where} is not {_WHAT}: {what}")
