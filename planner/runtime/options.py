"""Session options: ONNX Runtime's own defaults, and those recommended for a tight budget.

Measured on onnxruntime 1.31 (reports/ort_facts.md has the figures):

    enable_mem_pattern   on: the second run allocates one block for everything but the outputs
    enable_mem_reuse     on: a buffer of equal shape stays allocated across the gap to its next user
    arena                the session's own doubles its regions (1 MiB, 2 MiB, 4 MiB, ...); one that
                         is registered with the environment and used through the session entry
                         `session.use_env_allocators` takes each region at the size requested

With the first two off, bytes in use are the live bytes, each buffer rounded up to 256. `SessionOptions`
cannot set the growth of the CPU's arena. Only registering an arena can, and that holds for the whole
process: sessions use the arena that was registered last before their creation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planner.errors import UsageError
from planner.targets import HOST, Target
from planner.units import format_bytes

if TYPE_CHECKING:
    import onnxruntime as ort

Memory = Literal["default", "recommended"]
Level = Literal["disabled", "extended", "all"]
Order = Literal["default", "priority"]

_MAX_THREADS = 8

_registered: list[dict[str, int]] = []  # the process's arena, if any

PREPACKING = "session.disable_prepacking"
"""The session entry that keeps kernels from packing constant weights
(core/session/onnxruntime_session_options_config_keys.h)."""

NEXT_POWER_OF_TWO = 0
SAME_AS_REQUESTED = 1
_SMALL_BYTES = 1 << 12  # of a region, left for results of a few bytes as it is opened
_CHUNK_BYTES = 256
"""Multiples of which an arena's chunks are (onnxruntime/core/framework/bfc_arena.h)."""
MAX_FIRST_REGION = (1 << 31) - _CHUNK_BYTES
"""`initial_chunk_size_bytes` is a C int (onnxruntime_c_api.h, OrtArenaCfg)."""
_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def default_threads() -> int:
    """Return the intra-operator threads of a model's run: the machine's cores, at most 8."""
    return min(_MAX_THREADS, os.cpu_count() or 1)


def most_threads() -> int:
    """Return the most intra-operator threads of a session of default options: one for each core."""
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Options with which a session is opened.

    Attributes:
        memory: "recommended" turns memory pattern and reuse off and, on the CPU, registers an
            arena that grows by each request's size (see `use_registered_arena`).
        level: graph optimization level.
        order: "priority" runs the nodes in the file's order (`PRIORITY_BASED`).
        threads: intra-operator threads; None leaves it to ONNX Runtime.
        packed: False keeps kernels from packing constant weights when the session is created; a product
            with packed weights may have other last bits.
        entries: additional entries of the session's configuration.
    """

    memory: Memory = "default"
    level: Level = "all"
    order: Order = "default"
    threads: int | None = None
    packed: bool = True
    entries: tuple[tuple[str, str], ...] = ()

    def options(self, *, profile_prefix: Path | None = None) -> ort.SessionOptions:
        """Return the options of one session.

        Args:
            profile_prefix: path prefix of ONNX Runtime's profile; None for no profile.
        """
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[self.level])
        if self.order == "priority":
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        if self.threads is not None:
            options.intra_op_num_threads = self.threads
        if profile_prefix is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile_prefix)
        if not self.packed:
            options.add_session_config_entry(PREPACKING, "1")
        if self.memory == "recommended":
            hold_no_more(options)
            use_registered_arena(options, {"arena_extend_strategy": SAME_AS_REQUESTED})
        for key, value in self.entries:
            options.add_session_config_entry(key, value)
        return options


DEFAULT = Opening()
"""Options as ONNX Runtime opens a session by itself."""


def asking_options(level: Level) -> ort.SessionOptions:
    """Return options for a session that only optimizes the graph and runs nothing.

    It plans no memory, which takes time quadratic in the nodes, and starts no threads.
    """
    options = Opening(level=level, threads=1).options()
    hold_no_more(options)
    return options


def hold_no_more(options: ort.SessionOptions) -> None:
    """Make a session hold only live bytes: no block for a whole run, no buffer kept for a later one."""
    options.enable_mem_pattern = False
    options.enable_mem_reuse = False


def stop_spinning(options: ort.SessionOptions) -> None:
    """Prepare a session for running beside other work in one process.

    Threads of a pool spin for a while after a run, on the cores that the other work needs; these stop at
    once (`session.force_spinning_stop` in core/session/onnxruntime_session_options_config_keys.h).
    """
    options.add_session_config_entry("session.force_spinning_stop", "1")


def use_registered_arena(options: ort.SessionOptions, config: dict[str, int]) -> None:
    """Register a CPU arena with `config` for the process, and make `options` use it.

    Keys are those of `OrtArenaCfg`: max_mem, arena_extend_strategy, initial_chunk_size_bytes,
    max_dead_bytes_per_chunk. A session keeps the arena it was created with. Builds before 1.20 let
    a process register one arena only; sessions with the same `config` then share it.

    Raises:
        UsageError: this build has registered an arena with another `config` already.
    """
    import onnxruntime as ort

    info = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    try:
        ort.create_and_register_allocator(info, ort.OrtArenaCfg(config))
        _registered[:] = [dict(config)]
    except RuntimeError as error:
        if "already been registered" not in str(error) or _registered != [config]:
            raise UsageError(
                f"onnxruntime {ort.__version__} does not register this arena in a process that "
                f"has another one: {error}"
            ) from error
    options.add_session_config_entry("session.use_env_allocators", "1")


def cap_arena(
    options: ort.SessionOptions,
    region_bytes: int,
    *,
    limit_bytes: int | None = None,
    target: Target = HOST,
) -> None:
    """Make sessions with `options` use an arena of a target.

    It has one region as long as that suffices, and every chunk of it is split. On the host, regions
    double up to `region_bytes` if these are more than `MAX_FIRST_REGION`. The arena is registered
    for the process: sessions that are created later use the last registered one.

    Args:
        limit_bytes: the most that all regions hold; `region_bytes` if None.

    Raises:
        UsageError: this build cannot register an arena, the device's memory is not an arena, or the
            device has fewer bytes free.
    """
    import onnxruntime as ort

    first_bytes, doublings = first_request(region_bytes)
    config = {
        "max_mem": limit_bytes or region_bytes,
        "arena_extend_strategy": NEXT_POWER_OF_TWO,
        "initial_chunk_size_bytes": first_bytes,
        "max_dead_bytes_per_chunk": 1,  # 0 crashes the process
    }
    if not target.own_memory:
        use_registered_arena(options, config)
    elif not target.is_arena:
        raise UsageError(f"memory of {target.name} is not an arena of ONNX Runtime's")
    else:
        kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
        info = ort.OrtMemoryInfo(target.memory, kind, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator_v2(
            target.provider, info, {"device_id": "0"}, ort.OrtArenaCfg(config)
        )
        if doublings:  # what asks for the whole region writes it: on the host it would be resident
            _open_region(region_bytes - _SMALL_BYTES, target)
        options.add_session_config_entry("session.use_env_allocators", "1")


def first_request(region_bytes: int) -> tuple[int, int]:
    """Return the largest first region that can be asked for, and the doublings up to `region_bytes`.

    An arena doubles its region until a request fits, and takes what its limit leaves at most; if
    the device has not so much, it takes less, but no less than the request (`BFCArena::Extend`,
    onnxruntime/core/framework/bfc_arena.cc).
    """
    doublings = 0
    while -(-region_bytes // 2**doublings) > MAX_FIRST_REGION:
        doublings += 1
    return -(-region_bytes // (_CHUNK_BYTES * 2**doublings)) * _CHUNK_BYTES, doublings


def _open_region(request_bytes: int, target: Target) -> None:
    """Make the arena that was registered last take its first region, which holds `request_bytes`.

    A run of a small model asks for them.
    """
    import numpy as np
    import onnxruntime as ort

    options = Opening(threads=1).options()
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    providers = list(dict.fromkeys((target.provider, HOST.provider)))
    count = np.array([-(-request_bytes // 8)])
    try:
        session = ort.InferenceSession(
            buffer_model(), options, providers=providers, enable_fallback=0
        )
        session.run(None, {"size": count})
    except Exception as error:
        raise UsageError(
            f"{target.title} has not {format_bytes(request_bytes)} left in one piece for an arena: "
            f"{error}"
        ) from error


def buffer_model() -> bytes:
    """Return a model whose only request on a device is for a buffer of `size` integers of 8 bytes.

    Its input and its output, the buffer's shape, are on the host.
    """
    from onnx import TensorProto, helper

    size = helper.make_tensor_value_info("size", TensorProto.INT64, [1])
    found = helper.make_tensor_value_info("found", TensorProto.INT64, [1])
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["buffer"], value=zero),
        helper.make_node("Shape", ["buffer"], ["found"]),
    ]
    graph = helper.make_graph(nodes, "region", [size], [found])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()
