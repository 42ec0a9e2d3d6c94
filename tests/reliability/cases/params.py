"""Files of parameters for `planner solve --params`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.reliability.case import OK, USAGE, Case
from tests.reliability.kit import take

_SOLVE = (
    "solve", "problem.json", "--budget", "80%", "--time-limit", "2", "--params", "params.toml", "-q",
)  # fmt: skip


def cases() -> list[Case]:
    """Engines and numbers that do not exist or make no sense, and files that are not TOML."""
    refused = {
        "the file is empty of sense": b"portfolio",
        "the file is JSON": b'{"engines": {}}',
        "the file is not UTF-8": b'[engines."\xff"]',
        "the file is nested 100,000 deep": b"a = " + b"[" * 100_000,
        "a number of 5,000 digits": b"[portfolio]\nlarge_ops = " + b"9" * 5000,
        "an engine that does not exist": b"[engines.magic]",
        "an engine that this table has not": b"[rough.cp-sat]",
        "an engine that is a number": b"[engines]\nanneal = 1",
        "a table that does not exist": b"[speed]",
        "a key that does not exist": b"[engines.anneal]\nspeed = 1",
        "a turn that ends at 0": b"[engines.anneal]\nuntil = 0",
        "a turn that ends after the limit": b"[engines.anneal]\nuntil = 1.1",
        "a turn that ends at NaN": b"[engines.anneal]\nuntil = nan",
        "enabled is a number": b"[engines.anneal]\nenabled = 0",
        "a count of 0": b"[engines.lp-rounding]\nmax_instants = 0",
        "a count below 0": b"[engines.lp-rounding]\nmax_instants = -1",
        "a count that is no whole number": b"[engines.lp-rounding]\nmax_instants = 1.5",
        "a share above 1": b"[engines.cp-sat]\nparts_share = 1.5",
        "stages that are none": b"[engines.parts]\npart_stages = []",
        "a stage that is a text": b'[engines.parts]\npart_stages = ["1"]',
        "seconds that are NaN": b"[portfolio]\nnear_s = nan",
        "seconds that are infinite": b"[portfolio]\nnear_s = inf",
    }
    found = [
        Case(
            room="params",
            wrong=wrong,
            arguments=_SOLVE,
            build=partial(_write, data),
            exits=(USAGE,),
            words=("params.toml",),
        )
        for wrong, data in refused.items()
    ]
    found += [
        Case(room="params", wrong=wrong, arguments=_SOLVE, build=partial(_write, data), exits=(OK,))
        for wrong, data in {
            "the file says nothing": b"",
            "an engine is left out": b"[engines.greedy]\nenabled = false",
            "a number that is very large": b"[engines.lp-rounding]\nmax_instants = 4611686018427387904",
        }.items()
    ]
    found.append(
        Case(
            room="params",
            wrong="the file is not there",
            arguments=_SOLVE,
            build=_without,
            exits=(USAGE,),
            words=("params.toml",),
        )
    )
    return found


def _write(data: bytes, folder: Path) -> None:
    take("problem.json", into=folder)
    (folder / "params.toml").write_bytes(data)


def _without(folder: Path) -> None:
    take("problem.json", into=folder)
