"""How ONNX Runtime uses each operator's buffers.

Three questions per operator, which `planner.graph.operators` answers for onnxruntime 1.31 and
onnxruntime-training 1.19.2 on the CPU. They are measured: `reports/ort_facts.md` has every operator that
shares a buffer (and those that share nothing), by ONNX Runtime's memory events;
`tests/graph/test_rules.py` measures a sample again, `tests/training/test_kernels.py` the operators of the
training build, under hard caps.

    view_input     which input the first output aliases (no work, no memory)
    alias_pairs    which outputs of an operator that does work are an input's buffer, written over
    inplace_pairs  which output may be written over which input when that input has no later reader

No gradient operator of com.microsoft computes in place: their kernels declare neither `MayInplace` nor
`Alias` (orttraining/training_ops/cpu), but for the accumulators and BatchNormInternal.

An operator without a row gets a buffer of its own for each output. If that is wrong (another execution
provider, say), it errs towards more memory.
"""

from __future__ import annotations

from planner.graph.operators.row import Pairs
from planner.graph.operators.table import operator_of

TO_HOST, FROM_HOST = "MemcpyToHost", "MemcpyFromHost"
COPIES = frozenset({TO_HOST, FROM_HOST})

SWAP_DOMAIN = "planner.swap"
SWAP_BEGIN, SWAP_OUT, SWAP_OUT_DONE = "SwapBegin", "SwapOut", "SwapOutDone"
SWAP_IN, SWAP_IN_DONE, LOAD_IN = "SwapIn", "SwapInDone", "LoadIn"
STORE_TO, STORE_OUT = "StoreTo", "StoreOut"
"""Operators of `planner.native` for copies beside the operations. SwapInDone's output is its input."""

SWAP_TOKENS = frozenset({SWAP_BEGIN, SWAP_OUT, STORE_OUT, SWAP_OUT_DONE})
"""Operators whose output is one byte without a reader; its address names a run or a swap."""

FUSED_DOMAIN, POINTWISE = "planner.fused", "Pointwise"
DIRECT_CONV, KERNEL_GRADIENT = "DirectConv", "KernelGradient"
TURNED_KERNEL = "TurnedKernel"
"""Operators of `planner.native` that run a program over elements, a convolution, the gradient of its
kernel, and what turns a kernel for the gradient of an image; `planner.fuse` writes them."""

LEFT_ON_HOST = frozenset({TO_HOST, STORE_TO})
"""Operators whose output lies in host memory."""

IN_CPU_MEMORY = COPIES | LEFT_ON_HOST
"""Operators whose copies lie a second time in ONNX Runtime's memory if the device is the CPU."""

COMING_IN = frozenset({SWAP_IN, LOAD_IN})
"""Operators whose output is complete only after SwapInDone.

The output's dims are unknown to ONNX Runtime, and its buffer must not be shared
(planner/native/swap/swaps.h, `Hold`).
"""

SWAP_OPERATORS = SWAP_TOKENS | COMING_IN | {SWAP_IN_DONE, STORE_TO}

SWAP_DTYPES = frozenset(
    {"bool", "double", "float", "float16", "bfloat16"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Element types that the swap operators can copy."""

PER_READER = frozenset({"DequantizeLinear"})
"""Operators that every session, optimized or not, duplicates until each copy has one reader
(core/optimizer/qdq_transformer/ensure_unique_dq_for_node_unit.cc).
"""


def view_input(op_type: str, domain: str) -> int | None:
    """Return the index of the input that the first output aliases, or None."""
    return 0 if operator_of(op_type, domain).is_view else None


def inplace_pairs(op_type: str, domain: str, dtype: str) -> Pairs:
    """Return the (input index, output index) pairs that the CPU kernel may compute in place.

    ONNX Runtime also requires input and output of one shape and element size, and never writes over
    a graph input or an initializer, nor into a graph output.

    Args:
        dtype: of the first input, in the notation of `planner.graph.model.Tensor`.
    """
    row = operator_of(op_type, domain)
    return () if dtype in row.not_in_place else row.in_place


def alias_pairs(op_type: str, domain: str) -> Pairs:
    """Return the (input index, output index) pairs of one buffer: the kernel writes over its input.

    Unlike in-place pairs, these share a buffer even if the input is a graph input or an initializer
    or has other readers. Only a graph output gets its own buffer.
    """
    return operator_of(op_type, domain).aliases


def written_inputs(op_type: str, domain: str, training: bool) -> tuple[int, ...]:
    """Return the inputs that the kernel writes over, a side effect beyond its outputs.

    An accumulator writes its sum over the buffer that it reads; see also `state_inputs`.
    """
    return operator_of(op_type, domain).writes or state_inputs(op_type, domain, training)


def state_inputs(op_type: str, domain: str, training: bool) -> tuple[int, ...]:
    """Return the inputs that the kernel writes over although its other outputs do not depend on them.

    Training-mode BatchNormalization writes the running statistics over its mean and variance
    inputs; BatchNormInternal, always in training mode, does too. A second run is as good as the
    first if it is given other buffers for them.
    """
    switched = op_type == "BatchNormalization" and not training
    return () if switched else operator_of(op_type, domain).state
