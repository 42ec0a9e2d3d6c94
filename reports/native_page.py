"""The page of `reports.native`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.units import format_bytes
from reports.shared import table

Row = Mapping[str, Any]

_HEAD = """# Memory to the byte

Written by `python -m reports.native`: plans for the CPU for a share of the peak, recompute only, swaps
only and both; swaps run beside the operations, and so do copies of what lives on the host. Files run by
`planner.open_session(file, pool=SIZE)`, in a process of its own for each size.

- *asked*: the most bytes that ONNX Runtime asked the pool for at once: results, what lies between, and
  kernels' workspace. Inputs and large initializers lie beside it, as they do beside ONNX Runtime's
  arena.
- *pool*: the least one in which the steps run, in pages of 4 KiB, and how much that is over *asked*.
  *predicted*: what planner says of it beforehand.
- *arena*: the least one of ONNX Runtime's in one region that has room for the plan, by its replay, over
  *asked*.
- Outputs that are stored on the host are in *asked* and *pool*, since the CPU's memory is the host's, and
  in neither *live peak* nor *arena*.
- *copies*: beside the operations in a step, out and in.
- *other bits*: steps in which some output is not, to the bit, the original's in a plain session; each
  step has new inputs, and runs in the least pool.
- *in order*: of ONNX Runtime's levels of optimization, those at which the nodes run in the planned
  order.

[races.md](races.md), by `python -m tests.native`, has random streams of swaps in such pools, counted:
none has a wrong byte or a race, and each wait that is left out is found.

"""

_GROWTH = """
## What a process grows by

Six steps in the least pool: resident memory from before the session on, at the most, and its parts.
Results lie in the pool; `open_session` copies them out of it for the caller, which comes on top.

- *session*: a control: what is there once the session is created and nothing has run: graph, kernels,
  weights packed ahead.
- *code*: pages of libraries that are read from files for the first time; any session has them.
- *slots*: what swaps take on the host, as the plan counts it.
- *scratch*: what runs take of malloc beside all that, at the most, which a second thread reads off
  (`mallinfo2`): kernels' buffers that no allocator of ONNX Runtime's gives them. A control: the
  original's, in a session of default options.
- *unexplained*: the growth less all of these and the pool, as a share of the pool;
  below 0 where scratch is not at its most when the pool is.

malloc was set to give memory back as it is freed (`MALLOC_TRIM_THRESHOLD_` and others).

"""


def page(rows: Mapping[str, Row]) -> str:
    """Return the page."""
    of_plans = ("plan", "live peak", "asked", "pool", "over asked", "predicted", "arena", "copies")
    of_growth = ("plan", "growth", "session", "code", "slots", "scratch (original's)")
    first = table((*of_plans, "other bits", "in order"), [_plan(*row) for row in rows.items()])
    grown = [_growth(*row) for row in rows.items()]
    second = table((*of_growth, "pool", "unexplained", "original's growth"), grown)
    return "\n".join((_HEAD + first[0], *first[1:], _GROWTH + second[0], *second[1:], ""))


def _plan(name: str, row: Row) -> tuple[str, ...]:
    asked, least = row["asked_bytes"], row["least_bytes"]
    off = row["predicted_bytes"] - least
    return (
        name,
        format_bytes(row["peak_bytes"]),
        format_bytes(asked),
        format_bytes(least),
        f"{least / asked - 1:+.2%}",
        "the same" if not off else f"{off:+,} B",
        f"{row['arena_bytes'] / asked - 1:+.1%}",
        f"{row['copies']:,}",
        f"{row['different']} of {row['steps']}",
        f"{row['levels_in_order']} of {row['levels']}",
    )


def _growth(name: str, row: Row) -> tuple[str, ...]:
    grown, original = row["grown"], row["original"]
    fixed = [grown[f"{part}_bytes"] for part in ("session", "code", "slot")]
    pool, scratch = grown["pool_bytes"], grown["scratch_bytes"]
    left = grown["grown_bytes"] - sum(fixed) - scratch - pool
    return (
        name,
        format_bytes(grown["grown_bytes"]),
        *map(format_bytes, fixed),
        f"{format_bytes(scratch)} ({format_bytes(original['scratch_bytes'])})",
        format_bytes(pool),
        f"{left / pool:+.1%}",
        format_bytes(original["grown_bytes"]),
    )
