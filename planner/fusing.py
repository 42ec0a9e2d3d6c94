"""Fusing operations: which of them become one node of `planner.fused`, the native library's.

none    nothing: the file runs on stock ONNX Runtime without any library.
exact   operations whose fused form gives the bits of ONNX Runtime's kernels.
auto    those, and others (exponentials, error functions, sums over rows), which differ in rounding.
"""

from __future__ import annotations

from typing import Literal

FuseMode = Literal["none", "exact", "auto"]
