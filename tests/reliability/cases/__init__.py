"""The misuses, a room each."""

from __future__ import annotations

from tests.reliability.case import Case
from tests.reliability.cases import (
    bounds,
    external,
    files,
    functions,
    graphs,
    hardware,
    huge,
    inputs,
    micro,
    options,
    outputs,
    params,
    plans,
    precision,
    problems,
    profiles,
    sizes,
    splitting,
    tensors,
)

_ROOMS = (
    bounds,
    files,
    graphs,
    functions,
    tensors,
    external,
    sizes,
    plans,
    problems,
    hardware,
    huge,
    profiles,
    inputs,
    micro,
    options,
    outputs,
    params,
    splitting,
    precision,
)


def all_cases() -> list[Case]:
    """Every case; no two have the same words in one room."""
    return [case for room in _ROOMS for case in room.cases()]
