"""Fusing operations: which of them become one node of `planner.fused`, the native library's.

none    nothing: the file runs on stock ONNX Runtime without any library.
exact   operations whose fused form gives the bits of ONNX Runtime's kernels.
auto    those, and others (exponentials, error functions, sums over rows), which differ in rounding.
"""

from __future__ import annotations

from typing import Literal, get_args

from planner.errors import UsageError

FuseMode = Literal["none", "exact", "auto"]
FUSE: tuple[FuseMode, ...] = get_args(FuseMode)


def check_fuse(mode: str, *, budget: str | None, device: str) -> None:
    """Raise UsageError where it is no choice, or does not go with the request.

    Args:
        device: that the model is planned for.
    """
    if mode not in FUSE:
        raise UsageError(f"--fuse is none, exact or auto, not {mode!r}")
    if mode == "none":
        return
    if device != "cpu":
        raise UsageError(
            f"--fuse {mode} is for the CPU alone: planner's native library has no kernel of "
            f"planner.fused::Pointwise for {device} yet; use --fuse none, or --device cpu"
        )
    if budget is None:
        raise UsageError(f"--fuse {mode} needs a --budget (100% is one)")
