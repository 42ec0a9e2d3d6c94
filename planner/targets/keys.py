"""Metadata keys of a file that planner wrote: its target, and the needs of its sessions."""

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
