"""The row of a target: all that planning, lowering and opening need to know of a provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from planner.targets import Device

HALF = frozenset({"float16", "bfloat16"})
ASKABLE = frozenset({"float16"})
"""Half types that OptionalHasElement takes (onnx, docs/Operators.md); it does not take bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRule:
    """An operator that can anchor a tensor: it reads at most one element or the shape.

    Attributes:
        op_type: `Size`, `GatherND` (one element), `Neg` or `OptionalHasElement`.
        dtypes: element types for which the target has a kernel beside the tensor; None for all.
        scalars: whether the tensor must be (True) or must not be (False) a scalar; None for either.
        opset: the least operator set of the model.
    """

    op_type: str
    dtypes: frozenset[str] | None = None
    scalars: bool | None = None
    opset: int = 1

    def fits(self, dtype: str, rank: int, opset: int) -> bool:
        """Tell whether the rule can anchor a tensor of this type and rank."""
        if self.dtypes is not None and dtype not in self.dtypes:
            return False
        return opset >= self.opset and self.scalars in (None, rank == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernels:
    """The native library's kernels of `planner.fused` on a target.

    Attributes:
        inexact: operators whose bits differ from those of ONNX Runtime's kernels on this target, in
            addition to those that differ on every target (`planner.fuse.operators`).
        halves: whether values may be of half types, with other rounding.
        either_zero: whether ONNX Runtime's Max and Min of 0 and -0 are either here, by the element's
            place in a vector.
        convolutions: whether there are kernels of DirectConv, KernelGradient and TurnedKernel.
        normalizations: whether a Softmax, LogSoftmax or LayerNormalization is fused with its neighbours.
        remark: a clause on these kernels, for a plan's assumptions.
    """

    inexact: frozenset[str] = frozenset()
    halves: bool = False
    either_zero: bool = False
    convolutions: bool = False
    normalizations: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row: see `planner.targets`.

    Attributes:
        package: the target's folder: its `backend` module and, with a memory of its own, its
            `kernels.toml`.
        plugin: the Python module that adds the provider to stock onnxruntime; "" where the provider is
            part of the onnxruntime wheel. `distribution` is the package that has it.
        everywhere: whether it stands for one file for all targets.
        anchors: anchor rules for tensors on the device; host_anchors: for tensors on the host.
        unfolds: whether constants that folding would keep on the device are made when they are needed.
        view_dtypes: element types of which a Reshape runs on the device; None for all.
        expand_dtypes: element types of which an Expand runs on the device; constants of these are
            unfolded there.
        optional_inputs: whether it has a kernel for OptionalGetElement.
        inplace: operators whose kernels on the device write their first output over their first
            input where it dies. The views are those of `planner.graph.rules` on every target.
        sums: operators whose kernels on the device add with atomics where their `reduction` says so:
            in any order, and the same model may give other last bits in each run.
        always_sums: operators whose kernels always add with atomics.
        fused: the native library's kernels of fused operations; None where it has none.
        overlap: whether copies may run beside the operations, by `planner.native`: "proved", for
            `--copies auto` too; "asked", only where the user asks for them; "never".
        capture: the provider option for graph capture, the replay of a step's launches as one graph; ""
            where it has none.
        keep_on_cpu: operators that the provider claims but cannot run, with the number of outputs from
            which it cannot; `keep_option` is the provider option that names their nodes.
        is_arena: whether all memory on the device lies in an arena of ONNX Runtime's.
        memory: ONNX Runtime's name of the device's memory (core/framework/allocator.h); "" where inputs
            and outputs are not bound there. Bindings write it in small letters.
        waits: environment variables of a process in which each launch waits for its kernel, which timing
            of nodes needs; empty where there are none.
        refusals: messages for a run that failed for want of memory, by a text in ONNX Runtime's message,
            which replaces `{message}`.
        absolute, relative: tolerance against the CPU's outputs, as a share of the largest element.
        snippet: Python that opens a session there, with the fields `session`, `comment` and `arena`.
    """

    name: Device
    title: str
    package: str
    provider: str
    extra: str
    plugin: str = ""
    distribution: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    own_memory: bool = True
    everywhere: bool = False
    anchors: tuple[AnchorRule, ...] = (AnchorRule(op_type="Size"),)
    host_anchors: tuple[AnchorRule, ...] = (AnchorRule(op_type="Size"),)
    unfolds: bool = True
    view_dtypes: frozenset[str] | None = None
    expand_dtypes: frozenset[str] = frozenset()
    optional_inputs: bool = True
    inplace: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    always_sums: frozenset[str] = frozenset()
    fused: FusedKernels | None = None
    overlap: Literal["proved", "asked", "never"] = "never"
    capture: str = ""
    keep_on_cpu: Mapping[str, int] = field(default_factory=dict)
    keep_option: str = ""
    is_arena: bool = False
    memory: str = ""
    waits: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    absolute: float = 0.0
    relative: float = 0.0
    snippet: str

    @property
    def is_host(self) -> bool:
        """Whether it is the host's own processor alone."""
        return not self.own_memory and not self.everywhere
