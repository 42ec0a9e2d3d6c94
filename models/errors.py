"""What can go wrong while a training graph is being made.

ExportError
├── UnsupportedOperator       an ATen operator, or a form of one, without a lowering rule
├── DataDependentControlFlow  the module's Python branches on the values of a tensor
└── InvalidLoss               the loss is not a scalar, or no parameter feeds it
"""

from __future__ import annotations


class ExportError(Exception):
    """A module could not be turned into an ONNX training graph."""


class UnsupportedOperator(ExportError):
    """An ATen operator, or this use of it, has no lowering rule."""

    def __init__(self, operator: str, where: str, reason: str = "no lowering rule") -> None:
        self.operator = operator
        self.where = where
        self.reason = reason
        super().__init__(f"{operator}: {reason}\n  at {where}")

    def called_at(self, line: str | None) -> UnsupportedOperator:
        """The same, with the line of source that calls the operator, where there is one."""
        if line is None:
            return self
        return UnsupportedOperator(self.operator, f"{self.where}\n  from {line}", self.reason)


class DataDependentControlFlow(ExportError):
    """The module reads a tensor's value to decide what to compute next."""

    def __init__(self, where: str, detail: str) -> None:
        self.where = where
        super().__init__(f"the graph depends on the value of a tensor\n  at {where}\n  {detail}")


class InvalidLoss(ExportError):
    """The loss is not a scalar floating-point tensor that depends on a parameter."""
