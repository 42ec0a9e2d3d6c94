"""What sessions hold, in the document of a result: predicted, measured, and as a process grows.

Three numbers, which are not the same: live bytes are those of tensors, held bytes those that the
allocator has taken from the system, inputs and initializers included, and a process grows by those of
them that were touched, with all else that a run takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.files.structuring import fields_of
from planner.report.views import picked
from planner.results import DefaultBits, OptimizeResult, SessionCheck, Verification
from planner.units import format_bytes

Payload = dict[str, Any]


def held_headline(result: OptimizeResult) -> Payload:
    """Bytes that sessions hold: of the rewritten model as `planner.open_session` opens it
    (`held_bytes`) and under default options, and of the original under these. A copy of the original asks
    for nothing: `planner.open_session` opens it with default options."""
    plan, verification = result.plan, result.verification
    ours = "default" if plan.unchanged and plan.micro is None else "recommended"
    found: Payload = {
        "held_bytes": result.after.held_bytes(ours),
        "default_held_bytes": result.after.held_bytes("default"),
        "default_held_before_bytes": result.before.held_bytes("default"),
        "measured_held_bytes": _measured(verification, "rewritten", ours),
        "measured_default_held_bytes": _measured(verification, "rewritten", "default"),
        "measured_default_held_before_bytes": _measured(verification, "original", "default"),
        "pool": None if plan.pool is None else fields_of(plan.pool),
        "arena": None if plan.arena is None else fields_of(plan.arena),
    }
    for key, model, options in (
        ("grown_bytes", "rewritten", ours),
        ("default_grown_bytes", "rewritten", "default"),
        ("default_grown_before_bytes", "original", "default"),
    ):
        found[key] = _grown(verification, model, options)
    sessions = verification.sessions if verification else ()
    found["results_bytes"] = max((check.results_bytes for check in sessions), default=0)
    return found


def _measured(verification: Verification | None, model: str, options: str) -> int | None:
    for check in verification.memory if verification else ():
        if (check.model, check.options) == (model, options) and check.held_bytes is not None:
            return check.held_bytes + check.beside_bytes
    return None


def _grown(verification: Verification | None, model: str, options: str) -> int | None:
    """The most that a process had grown by over its runs."""
    for check in verification.sessions if verification else ():
        if (check.model, check.options) == (model, options) and check.grown_bytes:
            return max(check.grown_bytes)
    return None


def sessions_payload(checks: Sequence[SessionCheck]) -> list[Payload]:
    """Each process, with the line that opened the model in it."""
    return [
        {
            **picked(check, "model", "options", "opened", "grown_bytes", "results_bytes"),
            "failure": check.failure or None,
        }
        for check in checks
    ]


def default_bits_payload(bits: DefaultBits | None) -> Payload | None:
    """Which results are other bits in plain sessions; None where that was not seen."""
    if bits is None:
        return None
    others = bits.recommended_differ
    return {
        **picked(bits, "compared", "differ", "unstable"),
        "recommended_differ": None if others is None else list(others),
    }


def default_bits_text(bits: Payload) -> str:
    """How many results are the same bits where `onnxruntime.InferenceSession(path)` opens both files."""
    off = len(bits["differ"]) + len(bits["unstable"])
    text = f"{bits['compared'] - off:,} of {bits['compared']:,} bit-identical"
    if bits["differ"]:
        text += f", {bits['differ'][0]!r} is not"
    if bits["unstable"]:
        text += f"; {len(bits['unstable']):,} differ from run to run of the original"
    return text


def held_text(head: Payload) -> str:
    """What sessions hold, in a line; "" where that is not known."""
    said = []
    if (held := head["held_bytes"]) is not None:
        text = f"{format_bytes(held)} as planner.open_session opens it"
        if (measured := head["measured_held_bytes"]) is not None:
            text += f" ({format_bytes(measured)} measured)"
        said.append(text)
    if (plain := _best(head, "default_held_bytes")) is not None:
        over = ": over the budget" if plain > head["budget_bytes"] else ""
        before = _best(head, "default_held_before_bytes")
        original = "" if before is None else f" (original {format_bytes(before)})"
        said.append(f"{format_bytes(plain)} under default options{original}{over}")
    return "; ".join(said)


def grown_text(head: Payload) -> str:
    """What processes grew by, in a line; "" where none was seen."""
    said = []
    if (grown := head["grown_bytes"]) is not None:
        results = format_bytes(2 * head["results_bytes"])
        said.append(
            f"grew by {format_bytes(grown)} as planner.open_session opens it, the results of two steps "
            f"({results}) included"
        )
    if (plain := head["default_grown_bytes"]) is not None:
        before = head["default_grown_before_bytes"]
        original = "" if before is None else f" (original {format_bytes(before)})"
        word = "" if said else "grew "
        said.append(f"{word}by {format_bytes(plain)} under default options{original}")
    return "; ".join(said)


def _best(head: Payload, key: str) -> int | None:
    """What was measured, or else predicted."""
    measured: int | None = head[f"measured_{key}"]
    found: int | None = measured if measured is not None else head[key]
    return found
