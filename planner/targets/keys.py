"""Metadata keys of a file that planner wrote: its target, and the needs of its sessions.

pkg.planner.target               the device that it was written for
pkg.planner.provider_options     options of that device's provider
pkg.planner.optimization_level   "disabled" where it was planned as it is; ALL without
pkg.planner.execution_order      "priority" where it was planned for that; ONNX Runtime's own without
pkg.planner.packed               "0" where kernels must not pack constant weights
pkg.planner.arena                the arena in which it runs, on a device with one
pkg.planner.pool                 the pool in which it runs on the CPU (`planner.native`)
pkg.planner.disk_bytes           bytes of the file for its swaps, where they go to a disk
pkg.planner.block_channels       block size of its weights' layout, which belongs to a processor
pkg.planner.assumed              "1" where it was made without its device's provider
pkg.planner.needs                operators of planner's native library (`NEEDS`)
"""

from __future__ import annotations

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

NEEDS_SWAPS, NEEDS_FUSED = "planner.swap 1", "planner.fused 1"
"""Domain and version of the operators for copies beside the operations, and for fused operations."""
NEEDS = (NEEDS_SWAPS, NEEDS_FUSED, f"{NEEDS_FUSED}, {NEEDS_SWAPS}")
"""Values of `NEEDS_KEY`: operators of the native library that files may need."""
