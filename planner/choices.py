"""The words for each lever in a request and in a plan file, and what they mean."""

from __future__ import annotations

from typing import Literal

HOST_PROFILE = "cpu"
"""The hardware profile of the machine's own processor, and the default."""

Swap = Literal["auto", "none", "only"]
"""Copies to the host: never, when they pay, or in place of recompute."""

Copies = Literal["serial", "overlapped", "auto"]
"""Copies on the stream of the operations, beside them, or beside them where that was shown to be safe
(`planner.pipeline.prepare.settings`)."""

Recompute = Literal["auto", "none", "only"]
"""Operations run again: when it pays, never, or in place of copies."""

OrderTarget = Literal["default", "priority"]
"""The session option that a rewritten model is made for."""

BudgetOf = Literal["held", "live"]
"""The bytes that a budget bounds: all that a session opened by `planner.open_session` holds, or live
bytes."""

FROM_PLAN = "plan"
"""In place of a pool's size: that of the file's plan."""

SplitMode = Literal["none", "auto"]
"""The use of chunks of rows.

none    each operation runs as a whole.
auto    those that are too large for the budget run in chunks, with their neighbours, where no plan fits
        without that, or the plan takes less time. Where sums are added up in parts, or a kernel takes
        another path for fewer rows, the numbers are the same up to rounding.
"""

MAX_CHUNKS = 64
"""The most chunks of one region: each chunk has nodes of its own."""

FuseMode = Literal["none", "exact", "auto"]
"""Which operations become one node of `planner.fused`, the native library's.

none    nothing: the file runs on stock ONNX Runtime without any library.
exact   operations whose fused form gives the bits of ONNX Runtime's kernels.
auto    those, and others (exponentials, error functions, sums over rows), which differ in rounding.
"""

Reside = Literal["auto", "device", "host"]
"""The place of values that outlive a step: parameters, optimizer state, other inputs, gradients, new
values.

device  on the device throughout, as a session keeps inputs and outputs.
host    in host memory; nodes of the model copy values to the device when they are needed, and results to
        the host when they are made.
auto    each where the plan takes less time.

An initializer is copied to the device when a session is created, and not in a step: its copies are added
ones whatever the caller does.
"""

Feeds = Literal["auto", "host", "device"]
"""The place of the caller's arrays.

host    in the host's memory. A session copies them in any case, at the beginning and at the end of a
        run: one copy of each costs nothing extra.
device  on the device, bound by the caller, or the host's memory is the device's. Every copy is an added
        one.
auto    "device" where the hardware profile says that memory is shared, else "host".
"""

CastSaved = Literal["none", "bf16", "fp16"]
"""The half type of values saved from forward to backward: opt-in, since it changes numbers.

none    nothing.
bf16    as bfloat16: the range of a float, 8 bits of its 24-bit significand.
fp16    as float16: 11 bits of it, and nothing above 65504.

A saved tensor is cast to half where the forward pass is done with it, and back where the backward pass
first needs it: two casts, for half the bytes in between.
"""

HALF_DTYPE = {"bf16": "bfloat16", "fp16": "float16"}
"""The element type of each half type, as in `planner.graph.model.Tensor`."""

HALF_LARGEST = {"bf16": 3.3895313892515355e38, "fp16": 65504.0}
"""The largest finite value of each half type: (2 - 2**-7) * 2**127 and (2 - 2**-10) * 2**15."""

HALF_OPSET = {"bf16": 13, "fp16": 6}
"""The operator set from which Cast knows the type (onnx, docs/Changelog.md)."""

Numbers = Literal["exact", "rounding", "lossy"]
"""The closeness of a rewritten model's numbers to the original's, by the changes made to it.

exact     the same bits. Recompute, copies and another order change none.
rounding  the same up to rounding: a sum is added up in parts, or a kernel takes another path for fewer
          rows, or a fused node has another polynomial. Each output has to be within `RELATIVE`.
lossy     values were stored in a smaller type, as was asked for. The error of each output is measured
          and reported; only a NaN or an infinity that the original does not have is a failure.
"""

NUMBERS: tuple[Numbers, ...] = ("exact", "rounding", "lossy")

RELATIVE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""Tolerance of an output by type, as a share of its largest element; other types must be equal."""


def least_exact(*numbers: Numbers) -> Numbers:
    """Return the weakest of several promises: the one that holds after several changes."""
    return max(numbers, key=NUMBERS.index)
