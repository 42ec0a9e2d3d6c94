"""NVIDIA GPUs, by the provider of the onnxruntime-gpu wheel."""

from __future__ import annotations

from planner.targets.target import ASKABLE, AnchorRule, FusedKernels, Target

_SNIPPET = """\
# {comment}
memory = ort.OrtMemoryInfo(
    "Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
)
arena = {arena}
ort.create_and_register_allocator_v2(
    "CUDAExecutionProvider", memory, {{"device_id": "0"}}, ort.OrtArenaCfg(arena)
)
options.add_session_config_entry("session.use_env_allocators", "1")

{session}
"""

# `MayInplace` in providers/cuda: activation/activations.cc, nn/shrink.cc, tensor/; seen on an H100
# (reports/cuda.md), where Celu runs on the CPU
_INPLACE = frozenset(
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
)

FUSED = FusedKernels(
    # ONNX Runtime's Sum begins with a zero, its Pow is powf, and its HardSigmoid has an FMA
    inexact=frozenset({"Sum", "Pow", "HardSigmoid"}),
    halves=True,
    normalizations=True,
    remark=(
        "on CUDA their kernels are compiled by NVRTC in a session's first run, and no card has run any "
        "yet: verify the file there"
    ),
)

_PINNED = (
    "pinned host memory is exhausted by copies to the host: free some, or plan with fewer of them "
    "(--swap none, or a larger --budget)"
)

CUDA = Target(
    name="cuda",
    title="CUDA",
    package=__name__,
    provider="CUDAExecutionProvider",
    extra="gpu",
    options={"arena_extend_strategy": "kSameAsRequested"},
    overlap="asked",  # "proved" once a card has given the same bits with it
    # providers/cuda/tensor/size.cc: the kernel reads the shape, not the data
    anchors=(AnchorRule(op_type="Size"),),
    # GetCpuPreferredNodes (framework/fallback_cpu_capability.cc) moves Size of a host tensor to the
    # CPU, but leaves half types: those would be copied back. OptionalHasElement has no CUDA kernel.
    host_anchors=(
        AnchorRule(op_type="OptionalHasElement", dtypes=ASKABLE, opset=18),
        AnchorRule(op_type="Size"),
    ),
    inplace=_INPLACE,
    sums=frozenset({"ScatterElements", "ScatterND"}),
    # in reductions over rows (reports/cuda.md): `reduce_matrix_rows` in
    # providers/cuda/reduction/reduction_functions.cu
    always_sums=frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare"}),
    fused=FUSED,
    capture="enable_cuda_graph",
    is_arena=True,
    memory="Cuda",
    waits={"CUDA_LAUNCH_BLOCKING": "1"},  # CUDA C++ Programming Guide, environment variables
    # providers/cuda/cuda_allocator.cc
    refusals={"cudaMallocHost": _PINNED, "cudaHostAlloc": _PINNED},
    absolute=1e-5,
    relative=1e-3,
    snippet=_SNIPPET,
)
