"""The host's processor: its memory is the host's, and a copy there saves nothing."""

from __future__ import annotations

from planner.targets.target import ASKABLE, HALF, AnchorRule, FusedKernels, Target

_SIZELESS = (
    AnchorRule(op_type="OptionalHasElement", dtypes=ASKABLE, opset=18),
    AnchorRule(op_type="GatherND", dtypes=HALF, scalars=False, opset=12),
)
"""Anchors for half types, for which Size has no kernel (providers/cpu/tensor/size.cc): a session
would put a cast, and a copy of the tensor, before it."""

_SIGNED = AnchorRule(op_type="Sign", dtypes=frozenset({"bfloat16"}), scalars=True, opset=13)
"""The anchor of scalars in bfloat16: GatherND takes no element of a scalar."""

_SNIPPET = """\
# {comment}
memory = ort.OrtMemoryInfo(
    "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
)
arena = {arena}
ort.create_and_register_allocator(memory, ort.OrtArenaCfg(arena))
options.add_session_config_entry("session.use_env_allocators", "1")

{session}
"""

FUSED = FusedKernels(
    either_zero=True,
    convolutions=True,
    remark="blocks of their values take some 100 KiB for each thread besides",
)

CPU = Target(
    name="cpu",
    title="the CPU",
    package=__name__,
    provider="CPUExecutionProvider",
    extra="cpu",
    own_memory=False,
    overlap="asked",  # it saves nothing there, and is tested there
    memory="Cpu",
    fused=FUSED,
    anchors=(*_SIZELESS, _SIGNED, AnchorRule(op_type="Size")),
    host_anchors=(*_SIZELESS, _SIGNED, AnchorRule(op_type="Size")),
    snippet=_SNIPPET,
)
