"""Targets: the execution providers that a model can be written for, one row each.

A model is normalised, planned, pinned and verified for one target. What differs between providers is
in this table, so that a new provider is a new row:

    provider, options   what sessions are created with, everywhere
    own_memory          the device's memory is not the host's: nodes have a place, and borders copies
    anchors             operators with which the file order is pinned (`planner.lower.order.anchors`)
    overlap             whether copies to the host and back may run beside the operations
    cap, allocator      what bounds the device's memory, and how its bytes are predicted
    tolerance           how far outputs may be from the CPU's: absolute plus relative

Measured on onnxruntime 1.31.1: with onnxruntime-ep-webgpu 0.4.0 on software Vulkan (reports/device.md),
and onnxruntime-gpu on an H100 (reports/cuda.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import UsageError

Device = Literal["cpu", "webgpu", "cuda", "any"]

TARGET_KEY = "pkg.planner.target"
OPTIONS_KEY = "pkg.planner.provider_options"
LEVEL_KEY = "pkg.planner.optimization_level"
ORDER_KEY = "pkg.planner.execution_order"
PACKED_KEY = "pkg.planner.packed"
ARENA_KEY = "pkg.planner.arena"
POOL_KEY = "pkg.planner.pool"
DISK_KEY = "pkg.planner.disk_bytes"
BLOCK_KEY = "pkg.planner.block_channels"
ASSUMED_KEY = "pkg.planner.assumed"
NEEDS_KEY = "pkg.planner.needs"
SESSION_KEYS = (
    TARGET_KEY,
    OPTIONS_KEY,
    LEVEL_KEY,
    ORDER_KEY,
    PACKED_KEY,
    ARENA_KEY,
    POOL_KEY,
    DISK_KEY,
    BLOCK_KEY,
    ASSUMED_KEY,
    NEEDS_KEY,
)
"""Metadata of a file that planner wrote: what for, and what its sessions need
(`planner.runtime.opened`)."""

NEEDS_SWAPS, NEEDS_FUSED = "planner.swap 1", "planner.fused 1"
"""The domain and version of the operators that a file with copies beside the operations needs, and one
with fused operations."""
NEEDS = (NEEDS_SWAPS, NEEDS_FUSED, f"{NEEDS_FUSED}, {NEEDS_SWAPS}")
"""What files may need of the native library."""

HALF = frozenset({"float16", "bfloat16"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
_WEBGPU_NUMBERS = frozenset({"float", "float16", "int32", "uint32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRule:
    """An operator that can anchor a tensor: it reads no more of it than one element or its shape.

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
        """Whether a tensor of this type and rank can be anchored so."""
        if self.dtypes is not None and dtype not in self.dtypes:
            return False
        return opset >= self.opset and self.scalars in (None, rank == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row: see the module's docstring.

    Attributes:
        plugin: the Python package that brings the provider beside stock onnxruntime; "" where the
            provider is part of the onnxruntime wheel `wheel`.
        anchors: for tensors on the device; host_anchors: for tensors on the host.
        unfolds: constants that folding would keep on the device are made when they are needed.
        view_dtypes: element types of which a Reshape runs on the device; None for all.
        expand_dtypes: element types of which an Expand runs on the device; constants of these are
            unfolded beside it.
        inplace: operators whose kernels on the device write their first output over their first
            input where it dies. The views are those of `planner.graph.rules` on every target.
        sums: operators whose kernels on the device add with atomics where their `reduction` says so:
            in any order, so that the same model may give other last bits in each run.
        always_sums: operators whose kernels do so whatever they are told.
        overlap: whether copies may run beside the operations, by `planner.native`: "proved" there, so
            that `--copies auto` has them so; "asked", where they are asked for; "never".
        keep_on_cpu: operators that the provider claims and cannot run, with the number of outputs
            from which that is so; `keep_option` is the provider option that names their nodes.
        cap: "arena" (a registered CPU arena), "driver" (the counting Vulkan driver), "arena_on_device"
            (an arena that is registered for the device).
        allocator: "arena" (best fit with coalescing) or "buckets" (buffers of fixed sizes).
        absolute, relative: tolerance against the CPU's outputs, of the largest element.
    """

    name: Device
    title: str
    provider: str
    extra: str
    plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    own_memory: bool = True
    anchors: tuple[AnchorRule, ...] = (AnchorRule(op_type="Size"),)
    host_anchors: tuple[AnchorRule, ...] = (AnchorRule(op_type="Size"),)
    unfolds: bool = True
    view_dtypes: frozenset[str] | None = None
    expand_dtypes: frozenset[str] = frozenset()
    inplace: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    always_sums: frozenset[str] = frozenset()
    overlap: Literal["proved", "asked", "never"] = "never"
    keep_on_cpu: Mapping[str, int] = field(default_factory=dict)
    keep_option: str = ""
    cap: Literal["arena", "driver", "arena_on_device"] = "arena"
    allocator: Literal["arena", "buckets"] = "arena"
    absolute: float = 0.0
    relative: float = 0.0

    @property
    def is_arena(self) -> bool:
        """Whether all that is on the device lies in ONNX Runtime's arena: CUDA."""
        return self.cap == "arena_on_device"


_ASKABLE = frozenset({"float16"})
"""Half types that OptionalHasElement takes (onnx, docs/Operators.md): bfloat16 is none of them."""

_SIZELESS = (
    AnchorRule(op_type="OptionalHasElement", dtypes=_ASKABLE, opset=18),
    AnchorRule(op_type="GatherND", dtypes=HALF, scalars=False, opset=12),
)
"""For half types, which have no kernel of Size (providers/cpu/tensor/size.cc): a session would put a
cast, and a copy of the tensor, before it."""

_SIGNED = AnchorRule(op_type="Sign", dtypes=frozenset({"bfloat16"}), scalars=True, opset=13)
"""For scalars in bfloat16, of which GatherND takes no element."""

CPU = Target(
    name="cpu",
    title="the CPU",
    provider="CPUExecutionProvider",
    extra="cpu",
    own_memory=False,
    overlap="asked",  # it saves nothing there, and is tested there
    anchors=(*_SIZELESS, _SIGNED, AnchorRule(op_type="Size")),
    host_anchors=(*_SIZELESS, _SIGNED, AnchorRule(op_type="Size")),
)

WEBGPU = Target(
    name="webgpu",
    title="WebGPU",
    provider="WebGpuExecutionProvider",
    extra="webgpu",
    plugin="onnxruntime_ep_webgpu",
    # NHWC, the default, puts transposes around convolutions each time a session is created
    options={"preferredLayout": "NCHW"},
    anchors=(
        AnchorRule(op_type="GatherND", dtypes=_WEBGPU_NUMBERS, scalars=False),
        AnchorRule(op_type="Neg", dtypes=frozenset({"float", "float16"}), scalars=True),
        AnchorRule(op_type="Not", dtypes=frozenset({"bool"}), scalars=True),
    ),
    host_anchors=(_SIZELESS[0], AnchorRule(op_type="Size")),
    view_dtypes=_WEBGPU_NUMBERS | {"bool", "uint8"},
    expand_dtypes=_WEBGPU_NUMBERS | {"bool", "uint8"},
    # `MayInplace` in providers/webgpu/tensor/scatter_elements.cc and scatter_nd.cc, nowhere else
    inplace=frozenset({"ScatterElements", "ScatterND"}),
    sums=_SCATTERS,
    # "The Indices output is not supported yet" (providers/webgpu/nn/pool.cc)
    keep_on_cpu={"MaxPool": 2},
    keep_option="forceCpuNodeNames",
    cap="driver",
    allocator="buckets",
    absolute=1e-5,
    relative=5e-2,
)

CUDA = Target(
    name="cuda",
    title="CUDA",
    provider="CUDAExecutionProvider",
    extra="gpu",
    options={"arena_extend_strategy": "kSameAsRequested"},
    overlap="asked",  # "proved" once a card has given the same bits with it
    # providers/cuda/tensor/size.cc: the kernel reads the shape, not the data
    anchors=(AnchorRule(op_type="Size"),),
    # GetCpuPreferredNodes (framework/fallback_cpu_capability.cc) moves Size of a host tensor to the
    # CPU, but leaves half types: those would be copied back. OptionalHasElement has no CUDA kernel.
    host_anchors=(
        AnchorRule(op_type="OptionalHasElement", dtypes=_ASKABLE, opset=18),
        AnchorRule(op_type="Size"),
    ),
    # `MayInplace` in providers/cuda: activation/activations.cc, nn/shrink.cc, tensor/; seen on an H100
    # (reports/cuda.md), where Celu runs on the CPU
    inplace=frozenset(
        {
            "Celu",
            "Elu",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "QuickGelu",
            "Relu",
            "ScatterND",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Softplus",
            "Softsign",
            "Tanh",
            "ThresholdedRelu",
            "Trilu",
        }
    ),
    sums=_SCATTERS,
    # where rows are added up (reports/cuda.md): `reduce_matrix_rows` in
    # providers/cuda/reduction/reduction_functions.cu
    always_sums=frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare"}),
    cap="arena_on_device",
    absolute=1e-5,
    relative=1e-3,
)

ANY = Target(
    name="any",
    title="every target",
    provider=CPU.provider,
    extra=CPU.extra,
    own_memory=False,
    # GatherND has a kernel on each of them, beside the tensor
    anchors=WEBGPU.anchors,
    host_anchors=CUDA.host_anchors,
    unfolds=False,  # by Size of what is on the device
    view_dtypes=WEBGPU.view_dtypes,
)
"""One file for all of them, where none leaves a node to the CPU
(`planner.pipeline.target.everywhere`)."""

TARGETS: Mapping[str, Target] = {target.name: target for target in (CPU, WEBGPU, CUDA, ANY)}


def target_named(device: str) -> Target:
    """The row of a device.

    Raises:
        UsageError: there is none of that name.
    """
    if device not in TARGETS:
        names = list(TARGETS)
        raise UsageError(f"--device is {', '.join(names[:-1])} or {names[-1]}, not {device!r}")
    return TARGETS[device]
