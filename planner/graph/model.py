"""The training graph: operations, tensors, and who shares storage with whom.

Built from an ONNX model by `planner.graph.build`; everything after it works on these frozen values.

    tensor   a named value of the model, with shape, bytes and category
    buffer   the storage behind one or more tensors: a view (Reshape, Squeeze, ...) shares its
             input's buffer. `Tensor.buffer` is the id of the tensor that owns the storage.
    step     position in a schedule; a live range is half-open: [start, end)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from planner.graph.effects import Effect
from planner.graph.reasons import WhyOnce, WhyStay, why_once

TensorId = NewType("TensorId", int)
OpId = NewType("OpId", int)
Step = NewType("Step", int)

OPAQUE = frozenset({"sequence", "string"})
"""Types of tensors that stay where they are, for as long as they are read."""


class Category(enum.StrEnum):
    """What a tensor is to a training step (the memory taxonomy of the report)."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer state"
    INPUT = "input"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    TEMPORARY = "temporary"
    OUTPUT = "output"
    WORKSPACE = "workspace"


class Role(enum.StrEnum):
    """Why an operation is in the graph: the user's own, or added by planner."""

    ORIGINAL = "original"
    RECOMPUTE = "recompute"
    BARRIER = "barrier"
    SWAP_OUT = "swap-out"
    SWAP_IN = "swap-in"
    SWAP_BEGIN = "swap-begin"
    SWAP_OUT_DONE = "swap-out-done"
    SWAP_IN_DONE = "swap-in-done"
    SCRATCH = "scratch"
    ANCHOR = "anchor"
    PAGE_IN = "page-in"
    PAGE_OUT = "page-out"
    STORE_TO = "store-to"
    CHUNK = "chunk"
    HALF = "half"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where ONNX Runtime runs each node, on a target whose device has a memory of its own.

    Attributes:
        on_cpu: names of the nodes that run on the CPU; all others run on the device.
        inplace: operators whose kernels on the device write over their first input where it dies.
    """

    on_cpu: frozenset[str]
    inplace: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One named value.

    Attributes:
        shape: static dims; `()` for a scalar.
        bytes: size in bytes, without allocator rounding.
        buffer: id of the tensor whose storage this one uses (its own id unless it is a view).
        producer: the operation that writes it; None for graph inputs and initializers.
        consumers: operations that read it, ascending, without repeats.
        on_host: lives in host memory (made by MemcpyToHost, StoreTo or a node on the CPU, or an input
            that the device never reads) and costs no device bytes.
        unsized: symbolic, with a dim that ONNX Runtime learns only as it runs. It then neither
            writes the tensor in place nor reuses its buffer, whatever its size turns out to be.
        barred: why planning found that it may not be copied to the host; None where it found nothing.
    """

    id: TensorId
    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    category: Category
    buffer: TensorId
    producer: OpId | None
    consumers: tuple[OpId, ...]
    is_input: bool = False
    is_initializer: bool = False
    is_output: bool = False
    on_host: bool = False
    unsized: bool = False
    barred: WhyStay | None = None

    @property
    def is_persistent(self) -> bool:
        """Present on the device for the whole run: graph inputs and initializers."""
        return self.producer is None

    @property
    def is_opaque(self) -> bool:
        """Whether it is a sequence, whose bytes are an upper bound, or holds strings."""
        return self.dtype in OPAQUE

    @property
    def why_stay(self) -> WhyStay | None:
        """Why what a node made here is not copied to the host; None where it may be."""
        if self.on_host:
            return WhyStay.ON_HOST
        if self.is_opaque:
            return WhyStay.OPAQUE
        return self.barred if self.bytes else WhyStay.NO_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One node.

    Attributes:
        inputs, outputs: tensors, in the node's order, absent optional ones left out.
        is_view: its (first) output shares the buffer of its first input and no work is done.
        per_reader: ONNX Runtime gives each reader of its output one of its own
            (`planner.graph.rules.PER_READER`), so that it is made anew for each reader, as a view is.
        inplace: (input, output) pairs whose buffers ONNX Runtime's kernel shares when the input
            has no later reader.
        effect: what a run does besides computing its outputs.
        on_cpu: runs on the CPU, on a target whose device has a memory of its own.
        scratch: inputs that the kernel writes over; a second run must be given other buffers there.
        role: whether planner added it.
        inner_bytes: what its bodies (of an If, a Loop, a Scan) hold at most while it runs.
        barred: why planning found that a copy of it would not last; None where it found nothing.
    """

    id: OpId
    name: str
    op_type: str
    domain: str
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    is_view: bool = False
    per_reader: bool = False
    inplace: tuple[tuple[TensorId, TensorId], ...] = ()
    effect: Effect = Effect.PURE
    on_cpu: bool = False
    scratch: tuple[TensorId, ...] = ()
    role: Role = Role.ORIGINAL
    barred: WhyOnce | None = None
    inner_bytes: int = 0
    attributes: Mapping[str, object] | None = None

    @property
    def is_folded(self) -> bool:
        """Whether it is planned as a part of those that read its output."""
        return self.is_view or self.per_reader

    @property
    def why_once(self) -> WhyOnce | None:
        """Why it may not be recomputed; None where a second run gives the same values and leaves no
        trace, and its node would last.

        Running statistics leave none where the second run is given other buffers for them.
        """
        if self.barred is not None:
            return self.barred
        apart = self.effect is Effect.RUNNING_STATISTICS and bool(self.scratch)
        return None if apart else why_once(self.effect)

    @property
    def recomputable(self) -> bool:
        """Whether it may be recomputed."""
        return self.why_once is None

    @property
    def why_not(self) -> str:
        """Why it may not be recomputed, for people; "" where it may."""
        why = self.why_once
        return "" if why is None else why.of(self.op_type, self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGraph:
    """Operations in file order (index = OpId) and tensors (index = TensorId).

    Attributes:
        shapes_follow: the build of ONNX Runtime that will run it moves each Shape and Size node to
            just behind the node whose output it reads (builds with training do).
        pattern: sessions with default options use the memory pattern; not where an input may be left
            out (`planner.lower.optional_input`).
        assumptions: what was assumed where the model does not say, one sentence each; they are
            shown in every report.
    """

    name: str
    operations: tuple[Operation, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    shapes_follow: bool = False
    pattern: bool = True
    assumptions: tuple[str, ...] = ()

    @property
    def output_copies(self) -> tuple[Tensor, ...]:
        """Initializers that are graph outputs: each run starts by copying them, for the caller to
        keep (core/framework/execution_frame.cc, `ExecutionFrame`)."""
        return tuple(
            tensor
            for tensor in self.tensors
            if tensor.is_initializer and tensor.is_output and not tensor.on_host
        )

    @property
    def has_sequences(self) -> bool:
        """Whether bytes of some values are upper bounds, because they are lists of tensors."""
        return any(tensor.dtype == "sequence" for tensor in self.tensors)

    def tensor_named(self, name: str) -> Tensor:
        """Look a tensor up by name; raises KeyError."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)
