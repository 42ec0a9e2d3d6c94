"""The rows of all operators, by domain and name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.graph.operators.contrib import CONTRIB
from planner.graph.operators.others import OTHERS
from planner.graph.operators.row import Effect, Operator
from planner.graph.operators.standard import STANDARD
from planner.graph.operators.training import TRAINING

ONNX_DOMAINS = frozenset({"", "ai.onnx"})

_TABLE: Mapping[str, Mapping[str, Operator]] = {
    **dict.fromkeys(ONNX_DOMAINS, STANDARD),
    "com.microsoft": {**CONTRIB, **TRAINING},
    **OTHERS,
}

_UNKNOWN_OPERATOR = Operator(Effect.UNKNOWN_OPERATOR)
_UNKNOWN_DOMAIN = Operator(Effect.UNKNOWN_DOMAIN)


def listed(op_type: str, domain: str) -> Operator | None:
    """Look up the row of an operator; None if the table lacks it."""
    return _TABLE.get(domain, {}).get(op_type)


def operator_of(op_type: str, domain: str) -> Operator:
    """Look up the row of an operator; a row of unknowns if the table lacks it."""
    row = listed(op_type, domain)
    if row is None:
        return _UNKNOWN_OPERATOR if domain in _TABLE else _UNKNOWN_DOMAIN
    return row


def rows() -> Iterator[tuple[str, str, Operator]]:
    """Yield domain, name and row of each operator; the standard's domain is ""."""
    for domain, operators in _TABLE.items():
        if domain != "ai.onnx":
            for op_type, row in operators.items():
                yield domain, op_type, row
