"""The document of `planner verify`: ONNX Runtime's results, check by check."""

from __future__ import annotations

from typing import Literal

from planner import __version__
from planner.report.document import Document, told
from planner.results.verification import (
    CopyCheck,
    DefaultBits,
    MemoryCheck,
    MicroCheck,
    OrderCheck,
    OutputComparison,
    Verification,
)

_WORST_NODES = 20


class NodeRow(Document, frozen=True):
    """Live bytes at one executed node."""

    node: str
    predicted_bytes: int
    measured_bytes: int


class NodeColumns(Document, frozen=True):
    """Live bytes at every executed node."""

    node: tuple[str, ...]
    predicted_bytes: tuple[int, ...]
    measured_bytes: tuple[int, ...]


class MemoryRow(Document, frozen=True):
    """Bytes of one model under one set of options; `worst` lists the nodes that differ most."""

    model: str
    options: str
    how: str
    predicted_live_bytes: int
    live_bytes: int
    predicted_in_use_bytes: int | None
    in_use_bytes: int | None
    predicted_held_bytes: int | None
    held_bytes: int | None
    beside_bytes: int
    nodes: int
    nodes_equal: int
    worst: tuple[NodeRow, ...]
    per_node: NodeColumns


class CapRow(Document, frozen=True):
    """One model's run within a cap of `cap_bytes`."""

    model: str
    cap_bytes: int
    passed: bool
    expected: bool | None
    message: str


class SessionRow(Document, frozen=True):
    """One model in a process of its own, and the line that opened it."""

    model: str
    options: str
    opened: str
    grown_bytes: tuple[int, ...]
    results_bytes: int
    failure: str | None


class TimeFigures(Document, frozen=True):
    """Step times of both models."""

    original_us: tuple[float, ...]
    rewritten_us: tuple[float, ...]
    original_least_us: float
    rewritten_least_us: float
    ratio: float


class VerificationFigures(Document, frozen=True):
    """All results of a verification."""

    passed: bool
    failures: tuple[str, ...]
    notes: tuple[str, ...]
    ort_version: str
    provider: str
    device: str
    seed: int
    inputs_source: str
    outputs: tuple[OutputComparison, ...]
    orders: tuple[OrderCheck, ...]
    memory: tuple[MemoryRow, ...]
    caps: tuple[CapRow, ...]
    sessions: tuple[SessionRow, ...]
    default_bits: DefaultBits | None
    time: TimeFigures | None
    copies: CopyCheck | None
    micro: MicroCheck | None

    @property
    def different(self) -> list[OutputComparison]:
        """Outputs whose bits differ from the original's."""
        return [output for output in self.outputs if not output.identical]

    @property
    def identical(self) -> int:
        """The number of outputs with the original's bits."""
        return len(self.outputs) - len(self.different)

    @property
    def worst_rms_rel_diff(self) -> float | None:
        """The largest root mean square difference of an output, relative to its own; None where
        nothing ran."""
        return max((output.rms_rel_diff for output in self.outputs), default=None)

    def memory_of(self, model: str) -> list[MemoryRow]:
        """List the memory rows of a model, those under recommended options first."""
        found = [row for row in self.memory if row.model == model]
        return sorted(found, key=lambda row: row.options != "recommended")


class VerifyDocument(VerificationFigures, kw_only=True, frozen=True):
    """The document of `planner verify`."""

    schema: Literal["planner.verify/1"] = "planner.verify/1"
    planner_version: str = __version__


def verification_figures(v: Verification) -> VerificationFigures:
    """Make the document of a verification's checks."""
    return told(
        VerificationFigures,
        v,
        memory=[_memory(check) for check in v.memory],
        sessions=[told(SessionRow, c, failure=c.failure or None) for c in v.sessions],
    )


def verify_document(v: Verification) -> VerifyDocument:
    """Make the document of `planner verify`."""
    return told(VerifyDocument, verification_figures(v))


def _memory(check: MemoryCheck) -> MemoryRow:
    rows = [NodeRow(*row) for row in check.per_node]
    return told(
        MemoryRow,
        check,
        nodes=len(rows),
        nodes_equal=sum(row.predicted_bytes == row.measured_bytes for row in rows),
        worst=[NodeRow(*row) for row in check.worst[:_WORST_NODES]],
        per_node=NodeColumns(
            node=tuple(row.node for row in rows),
            predicted_bytes=tuple(row.predicted_bytes for row in rows),
            measured_bytes=tuple(row.measured_bytes for row in rows),
        ),
    )
