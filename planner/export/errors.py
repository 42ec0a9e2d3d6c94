"""Errors of the export of a training graph. All have the exit code of ModelError.

ExportError
├── UnsupportedOperator       an ATen operator, or a form of one, without a lowering rule
├── UnsupportedKernel         ONNX Runtime's CPU provider has no kernel for the operator in this type
├── DataDependentControlFlow  the module's Python branches on the values of a tensor
│   ├── ReadOfState           of a buffer that the step changes
│   └── MovingRead            of what differs from step to step
├── InvalidLoss               the loss is not a scalar, or depends on no parameter
├── ModuleFailure             the module or the loss raises on the example inputs
├── TracerFailure             PyTorch's tracer rejects the step
├── KeptTensor                a cache outside of the module keeps a tensor of the trace
├── WrittenOutside            the step changes a tensor that is not the module's
├── UpdateRefused             the code after the backward pass cannot be exported
│   ├── DataDependentUpdate   it reads a tensor's value as a Python number
│   └── UpdateFailure         it raises an error of its own
├── OtherStep                 the graph does not compute the step that PyTorch runs
└── UnsupportedType           a tensor's element type
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import ModelError


class ExportError(ModelError):
    """A module could not be turned into an ONNX training graph."""


class UnsupportedOperator(ExportError):
    """An ATen operator, or this form of it, has no lowering rule."""

    def __init__(
        self,
        operator: str,
        where: str,
        reason: str = "no lowering rule",
        others: Sequence[str] = (),
    ) -> None:
        self.operator = operator
        self.where = where
        self.reason = reason
        self.others = tuple(others)
        beside = f"; neither can {', '.join(others)}" if others else ""
        super().__init__(
            f"the operator {operator} cannot be exported ({reason}), at {where}{beside}; "
            "write it with other operators, or give a rule for it (planner.export.register)"
        )

    def called_at(self, line: str) -> UnsupportedOperator:
        """Return the error with the source line that calls the operator added; "" adds none."""
        if not line:
            return self
        where = f"{self.where}, called from {line}"
        return UnsupportedOperator(self.operator, where, self.reason, self.others)

    def together_with(self, others: Sequence[UnsupportedOperator]) -> UnsupportedOperator:
        """Return the error with the other operators that have no rule added."""
        names = tuple(other.operator for other in others)
        return UnsupportedOperator(self.operator, self.where, self.reason, names)


class UnsupportedKernel(ExportError):
    """ONNX Runtime's CPU provider has no kernel for an exported operator in its type."""

    def __init__(self, kernel: str, operator: str, where: str, line: str) -> None:
        self.operator = operator
        called = f", called from {line}" if line else ""
        super().__init__(
            f"ONNX Runtime's CPU provider has no kernel of {kernel}, which {operator} is exported as, "
            f"at {where}{called}; it has them all in torch.float32: convert the module (module.float()) "
            "and its inputs, or write the operator with others"
        )


class DataDependentControlFlow(ExportError):
    """The module reads a tensor's value to decide what to compute next."""

    def __init__(self, where: str, detail: str, *, can_specialize: bool = False) -> None:
        self.where = where
        self.detail = detail
        also = ", or take what the example inputs give (specialize=True, --specialize)"
        super().__init__(
            f"the graph depends on the value of a tensor{at(where)} ({_first_line(detail)}); "
            "use torch.where or a mask in place of the branch or index, and .item() for a number that is "
            f"only logged{also if can_specialize else ''}"
        )

    def specializable(self) -> DataDependentControlFlow:
        """Return the error with the advice to export the step with `specialize`."""
        return DataDependentControlFlow(self.where, self.detail, can_specialize=True)


class ReadOfState(DataDependentControlFlow):
    """The module reads the value of a buffer that the same step changes."""

    def __init__(self, where: str, name: str) -> None:
        self.where = where
        ExportError.__init__(
            self,
            f"the graph depends on the value of {name!r}, which the step changes{at(where)}; use "
            "torch.where in place of a branch, and an index that is a tensor in place of a number "
            "(x[:, (place + torch.arange(n)) % size] = rows); where the first run alone takes a branch "
            "(if not self.ready), run the module once before the export",
        )


class MovingRead(DataDependentControlFlow):
    """The module reads a value that differs from step to step."""

    def __init__(self, where: str, function: str) -> None:
        super().__init__(
            where,
            f"the result of {function} changes from step to step: where the first run alone takes a "
            "branch, as of an observer, run the module once before the export",
        )


class InvalidLoss(ExportError):
    """The loss is not a scalar floating-point tensor that depends on a parameter."""


class ModuleFailure(ExportError):
    """The module or the loss raises an error of its own."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where = where
        super().__init__(
            f"the step fails on the example inputs: {type(error).__name__}: "
            f"{_first_line(str(error))}{at(where)}; check the example inputs"
        )


class TracerFailure(ExportError):
    """PyTorch cannot trace the step, though it runs on the example inputs."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where = where
        super().__init__(
            f"PyTorch cannot trace the step: {type(error).__name__}: {_first_line(str(error))}"
            f"{at(where)}; try torch.export.export on it, which says more"
        )


class KeptTensor(ExportError):
    """A tensor made in one pass of the tracer is read in the next pass."""

    def __init__(self) -> None:
        super().__init__(
            "a cache outside of the module (functools.cache, a global, an object of its own) keeps a "
            "tensor of the trace, which has no values: clear it and run the module once before the "
            "export, or make that tensor a buffer in __init__"
        )


class WrittenOutside(ExportError):
    """The step changes a tensor that is not the module's: a graph would not keep it."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"the step changes a tensor that is not the module's ({name}){at(where)}; make it a buffer "
            "of the module (a module that holds both and returns the loss will do), or give it as a "
            "target and let the update function change it"
        )


class UpdateRefused(ExportError):
    """The code after the backward pass (`optimizer`) cannot be exported."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the update cannot be exported: {what}")


class DataDependentUpdate(UpdateRefused):
    """The update reads a tensor's value as a Python number."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        super().__init__(
            f"it reads the value of a tensor ({what}){at(where)}; keep it a tensor (torch.where, "
            "torch.sqrt and the like in place of Python's)"
        )


class UpdateFailure(UpdateRefused):
    """The update raises an error while it is traced."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {_first_line(str(error))}{at(where)}")


class OtherStep(ExportError):
    """The exported graph and PyTorch's step give different results."""

    def __init__(self, number: int | None, what: str) -> None:
        self.what = what
        when = {None: "", 0: "at the example inputs, "}.get(
            number, "at other inputs and parameters, with the state that the step before left, "
        )
        causes = (
            ""
            if number is None
            else "; the trace may have kept as a constant a number that Python or NumPy draws, a "
            "tensor within a list, a dict or a closure, or state that is no buffer (register_buffer), "
            "or changes its shape"
        )
        super().__init__(
            f"the exported graph is not the step that PyTorch runs: {when}{what}{causes}; "
            "--no-check (check=False) exports it anyway"
        )


class UnsupportedType(ExportError):
    """Tensors of this element type are not exported."""

    def __init__(self, dtype: object) -> None:
        to = "torch.int64" if "int" in str(dtype) else "torch.float32"
        super().__init__(f"tensors of {dtype} cannot be exported; convert them to {to}")


def at(where: str) -> str:
    """Return the end of a message that names a place in the source; "" if the place is unknown."""
    return f", at {where}" if where else ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "").rstrip(".")
