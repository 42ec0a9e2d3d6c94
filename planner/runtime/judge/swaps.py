"""Compare executed copies with the planned ones, and watch swaps beside the operations.

For the watch, the link is slowed down until copies take about as long as the step, with jitter. The
library compares checksums at every swap and writes canaries into memory that a copy has yet to fill
(`planner.check_swaps`). A value that is read, written or reused too early is detected, or changes an
output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.graph.model import TrainingGraph
from planner.graph.rules import COMING_IN, COPIES, STORE_OUT, SWAP_OUT
from planner.results.verification import CopyCheck, ExtraCopy
from planner.running.digest import digest_of
from planner.runtime.options import Opening
from planner.runtime.profile import NodeEvent, create_session, run_session
from planner.runtime.swapping import CHECK_SWAPS, LINK_JITTER_US, LINK_MBPS
from planner.units import counted

Arrays = Mapping[str, npt.NDArray[Any]]

RUNS = 3
_JITTER_US = 200
_OUT = frozenset({SWAP_OUT, STORE_OUT})
_KINDS = COPIES | COMING_IN | _OUT


def copy_check(graph: TrainingGraph, run: Sequence[NodeEvent]) -> CopyCheck:
    """Compare the copies that ran, by name, operator and bytes, with those of the graph.

    Each way of a swap is one copy, named by the node that begins it.
    """
    tensors = graph.tensors
    planned: dict[str, tuple[str, int]] = {}
    moved = 0
    for op in graph.operations:
        if op.op_type in _KINDS:
            made = sum(tensors[t].bytes for t in op.outputs)
            planned[op.name] = (op.op_type, made)
            moved += tensors[op.inputs[0]].bytes if op.op_type in _OUT else made
    ran = {e.name: (e.op_type, e.output_bytes or 0) for e in run if e.op_type in _KINDS}
    missing = tuple(name for name, what in planned.items() if ran.get(name) != what)
    return CopyCheck(
        planned=len(planned),
        planned_bytes=moved,
        ran=len(planned) - len(missing),
        missing=missing,
        extra=tuple(
            ExtraCopy(node=name, bytes=size)
            for name, (_, size) in ran.items()
            if name not in planned
        ),
    )


def copy_failures(check: CopyCheck) -> list[str]:
    """Return failures for copies that did not run, or that nobody planned."""
    extra = tuple(copy.node for copy in check.extra)
    both = (("did not run", check.missing), ("ran unplanned", extra))
    return [f"{len(names)} copies {what}, first {names[0]!r}" for what, names in both if names]


def digests(results: Arrays) -> dict[str, str]:
    """Return a digest of the bits of each result."""
    return {name: digest_of(array) for name, array in results.items()}


def link_for(graph: TrainingGraph, step_us: float) -> int:
    """Return the link speed in MB/s at which the copies of one way take about as long as the step."""
    moved = copy_check(graph, ()).planned_bytes // 2
    return max(1, int(moved / max(1.0, step_us)))


def watched(
    path: Path,
    opening: Opening,
    feeds: Callable[[], Arrays],
    named: Callable[[list[str], list[npt.NDArray[Any]], Arrays], Arrays],
    wanted: Mapping[str, str],
    link_mbps: int,
) -> tuple[list[str], str]:
    """Return (failures, note) of a few watched runs.

    Args:
        opening: the options of the session whose results have the digests `wanted`.
        feeds: makes the inputs of a run.
        named: turns names and arrays of a run's outputs, and its feeds, into results by name.

    Raises:
        ModelError: ONNX Runtime cannot load or run the model.
    """
    from planner.native import counts

    entries = {CHECK_SWAPS: "1", LINK_MBPS: str(link_mbps), LINK_JITTER_US: str(_JITTER_US)}
    session = create_session(path, replace(opening, entries=tuple(entries.items())).options())
    names = [output.name for output in session.get_outputs()]
    before = counts()
    off: set[str] = set()
    for _ in range(RUNS):
        fed = feeds()
        found = digests(named(names, run_session(session, fed), fed))
        off |= {name for name, bits in wanted.items() if found.get(name) != bits}
    after = counts()
    failures: list[str] = []
    if off:
        failures.append(
            f"on a slow link {counted(len(off), 'output')} with other bits, first {min(off)!r}"
        )
    violations = after.violations - before.violations
    if violations:
        failures.append(
            f"{counted(violations, 'swap')} read or wrote memory that was not theirs: planner's library "
            "found other checksums or canaries than it left"
        )
    outs, ins = after.swaps_out - before.swaps_out, after.swaps_in - before.swaps_in
    note = (
        f"swaps were watched in {RUNS} runs on a link of {link_mbps:,} MB/s each way, with jitter: "
        f"{outs:,} copies out, {ins:,} in, {violations or 'no'} violations"
    )
    return failures, note
