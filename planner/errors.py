"""Errors that reach the user, and the exit code that each one carries.

    PlannerError                 1  internal error (a bug in planner)
    ├── UsageError               2  a wrong option, a budget that cannot be parsed, an output that exists
    ├── ModelError               3  not a model, or one that planner does not support
    ├── InfeasibleBudgetError    4  no plan fits the budget
    │   └── TimeLimitError       6  --time-limit passed with no plan, and none is ruled out; or --timeout
    ├── VerificationError        5  ONNX Runtime disagrees with the plan
    ├── ThresholdError           7  a figure is above what --fail-if-... allows
    ├── MemoryLimitError         8  planner itself needs more memory than it may take, or than there is
    └── Interrupted            130  Ctrl-C

A command that SIGTERM ends has the status 143, and SIGHUP 129, as shells count them.

Each message is one line that names the tensor, node or option, and what to do next.
"""

from __future__ import annotations


class PlannerError(Exception):
    """Base of every error planner raises on purpose; `exit_code` is the process's exit status."""

    exit_code = 1


class UsageError(PlannerError):
    """A wrong option or an output path that may not be written."""

    exit_code = 2


class ModelError(PlannerError):
    """The model is invalid, truncated, or uses something planner does not support."""

    exit_code = 3


class InfeasibleBudgetError(PlannerError):
    """No plan fits the budget.

    Attributes:
        least_peak_bytes: the least peak that was found.
        bound_bytes: no plan can have a peak below this.
        binding: names and bytes of the tensors resident at the step that binds.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        least_peak_bytes: int = 0,
        bound_bytes: int = 0,
        binding: tuple[tuple[str, int], ...] = (),
    ) -> None:
        super().__init__(message)
        self.least_peak_bytes = least_peak_bytes
        self.bound_bytes = bound_bytes
        self.binding = binding


class VerificationError(PlannerError):
    """ONNX Runtime did not confirm the plan; the evidence is left on disk.

    Attributes:
        result: the `planner.results.OptimizeResult` with every finding; None outside `optimize`.
    """

    exit_code = 5

    def __init__(self, message: str, *, result: object | None = None) -> None:
        super().__init__(message)
        self.result = result


class TimeLimitError(InfeasibleBudgetError):
    """The time limit passed before a plan was found, and none was proved impossible; or `--timeout`
    passed."""

    exit_code = 6


class ThresholdError(PlannerError):
    """A figure is above the threshold that the user set for it; every file is in place."""

    exit_code = 7


class MemoryLimitError(PlannerError):
    """planner's own process needs more memory than `--memory-limit` allows, or than there is."""

    exit_code = 8


class Interrupted(PlannerError):
    """The user pressed Ctrl-C; nothing was written."""

    exit_code = 130


def out_of_memory(error: MemoryError) -> MemoryLimitError:
    """Return the error that tells the user that an allocation failed."""
    what = " ".join(str(error).split())
    return MemoryLimitError(
        f"planner ran out of memory{f': {what}' if what else ''}; run it where there is more, or on a "
        "smaller model"
    )
