"""Storing what is saved from forward to backward in half: opt-in, since it changes numbers.

    none    nothing.
    bf16    as bfloat16: the range of a float, 8 bits of its 24-bit significand.
    fp16    as float16: 11 bits of it, and nothing above 65504.

A tensor that is stored so is cast to half where the forward pass is done with it, and back where the
backward pass first needs it: two casts, for half the bytes in between.
"""

from __future__ import annotations

from typing import Literal

CastSaved = Literal["none", "bf16", "fp16"]

DTYPE = {"bf16": "bfloat16", "fp16": "float16"}
"""Element type of each, as `planner.graph.model.Tensor` has it."""

LARGEST = {"bf16": 3.3895313892515355e38, "fp16": 65504.0}
"""The largest finite value of each: (2 - 2**-7) * 2**127 and (2 - 2**-10) * 2**15."""

OPSET = {"bf16": 13, "fp16": 6}
"""The operator set from which Cast knows the type (onnx, docs/Changelog.md)."""
