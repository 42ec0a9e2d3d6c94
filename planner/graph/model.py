"""The training graph: operations, tensors, and the storage that tensors share.

`planner.graph.build` makes it from an ONNX model; all later stages use these frozen values.

    tensor   a named value of the model, with shape, bytes and category
    buffer   the storage behind one or more tensors: a view (Reshape, Squeeze, ...) shares its
             input's buffer. `Tensor.buffer` is the id of the tensor that owns the storage.
    step     position in a schedule; a live range is half-open: [start, end)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NewType

from planner.graph.effects import Effect
from planner.graph.reasons import WhyOnce, WhyStay, why_once

TensorId = NewType("TensorId", int)
OpId = NewType("OpId", int)
Step = NewType("Step", int)

OPAQUE = frozenset({"sequence", "string"})
"""Element types of tensors that are never copied or recomputed."""


class Category(enum.StrEnum):
    """The role of a tensor in a training step (the memory taxonomy of the report)."""

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
    """Why an operation is in the graph: the model has it, or planner added it."""

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
    """The provider of each node, on a target whose device has its own memory.

    Attributes:
        on_cpu: names of the nodes that run on the CPU; all others run on the device.
        inplace: operators whose device kernels write over their first input if it dies there.
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
        on_host: lives in host memory (made by MemcpyToHost, StoreTo or a node on the CPU, or an
            input that the device never reads) and takes no device bytes.
        unsized: has a symbolic dim that ONNX Runtime learns only at run time. ONNX Runtime then
            neither writes the tensor in place nor reuses its buffer, whatever its size.
        barred: why planning ruled out a copy to the host; None if it did not.
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
        """Whether it is on the device for the whole run: graph inputs and initializers."""
        return self.producer is None

    @property
    def is_opaque(self) -> bool:
        """Whether it is a sequence (its bytes are an upper bound) or holds strings."""
        return self.dtype in OPAQUE

    @property
    def why_stay(self) -> WhyStay | None:
        """Why a tensor produced on the device is not copied to the host; None if it may be."""
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
        is_view: its first output shares the buffer of its first input, and it does no work.
        per_reader: ONNX Runtime duplicates the node for each reader of its output
            (`planner.graph.rules.PER_READER`); like a view, it runs again for each reader.
        inplace: (input, output) pairs whose buffers ONNX Runtime's kernel shares if the input has
            no later reader.
        effect: side effects of a run, beyond its outputs.
        on_cpu: runs on the CPU, on a target whose device has its own memory.
        scratch: inputs that the kernel writes over; a second run needs other buffers for them.
        role: whether planner added it.
        inner_bytes: the most that its bodies (of an If, a Loop, a Scan) hold while it runs.
        barred: why planning ruled out a copy of it; None if it did not.
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
        """Whether it is planned as a part of its readers."""
        return self.is_view or self.per_reader

    @property
    def why_once(self) -> WhyOnce | None:
        """Why it may not be recomputed; None if it may.

        It may if a second run gives the same values without side effects, and its node survives
        ONNX Runtime's optimizers. Running statistics have no side effect if the second run is given
        other buffers for them.
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
        """Why it may not be recomputed, as text for people; "" if it may."""
        why = self.why_once
        return "" if why is None else why.of(self.op_type, self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGraph:
    """Operations in file order (index = OpId) and tensors (index = TensorId).

    Attributes:
        shapes_follow: the target build of ONNX Runtime moves each Shape and Size node to just
            behind the producer of its input (builds with training do).
        pattern: sessions with default options use the memory pattern; False if an input may be left
            out (`planner.lower.optional_input`).
        assumptions: assumptions about facts that the model does not state, one sentence each; every
            report shows them.
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
        """Initializers that are graph outputs; each run begins by copying them for the caller.

        Source: core/framework/execution_frame.cc, `ExecutionFrame`.
        """
        return tuple(
            tensor
            for tensor in self.tensors
            if tensor.is_initializer and tensor.is_output and not tensor.on_host
        )

    @property
    def has_sequences(self) -> bool:
        """Whether some values are lists of tensors, whose bytes are upper bounds."""
        return any(tensor.dtype == "sequence" for tensor in self.tensors)

    def with_bars(
        self, stay: Mapping[TensorId, WhyStay], once: Mapping[OpId, WhyOnce] | None = None
    ) -> TrainingGraph:
        """Return the graph with copies of some tensors, and second runs of some operations, ruled out."""
        again = once or {}
        return replace(
            self,
            tensors=tuple(
                replace(t, barred=stay[t.id]) if t.id in stay else t for t in self.tensors
            ),
            operations=tuple(
                replace(op, barred=again[op.id]) if op.id in again else op for op in self.operations
            ),
        )

    def tensor_named(self, name: str) -> Tensor:
        """Return the tensor of a name; raise KeyError if none has it."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)
