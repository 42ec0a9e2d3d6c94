"""Sessions that load `planner.native`: of files whose copies run beside the operations, and of those that
are given a memory pool of a size.

A file with such copies says so in its metadata (`pkg.planner.needs`), and has nodes of the domain
`planner.swap`, which ONNX Runtime knows from the library alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import UsageError
from planner.graph.rules import SWAP_DOMAIN
from planner.native import library_path
from planner.onnxio.metadata import read_metadata
from planner.runtime.build import has_pool
from planner.runtime.messages import first_line
from planner.targets import ANY, CPU, NEEDS_KEY, NEEDS_SWAPS, Target

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

    from planner.plan.planfile import Pool

_POOL_BYTES, _SPILL_BYTES = "planner.pool_bytes", "planner.spill_bytes"
USES_ARENA = "session.use_env_allocators"
"""The entry that has a session use the allocators of its process
(core/session/onnxruntime_session_options_config_keys.h)."""
CHECK_SWAPS, LINK_MBPS, LINK_JITTER_US = (
    "planner.check_swaps",
    "planner.link_mbps",
    "planner.link_jitter_us",
)
"""Entries of session options that the library reads when it is registered: see `planner.native`."""


def has_swaps(model: ir.Model) -> bool:
    """Whether a model has nodes of the library."""
    return SWAP_DOMAIN in model.graph.opset_imports


def put_pool(options: ort.SessionOptions, pool: Pool, target: Target) -> None:
    """Ask for a pool of exactly so many bytes, which serves a session's results and what lies between.
    Inputs and large initializers lie beside it. A request that it has no room for ends the run, and the
    error names the node; of a pool that is not proved, it lies outside of it instead, up to a limit.

    Args:
        target: that the session opens on.

    Raises:
        UsageError: the target's memory is of another kind, or this build takes no pool.
    """
    if not has_pool():
        raise UsageError(
            "this build of ONNX Runtime takes no pool of planner's: it is for training"
        )
    if target.name not in (CPU.name, ANY.name):
        how = (
            "; on CUDA the options of its provider are those of planner.native.device_pool_options"
            if target.is_arena
            else ""
        )
        raise UsageError(f"a pool is for sessions on the CPU, not on {target.title}{how}")
    options.add_session_config_entry(_POOL_BYTES, str(pool.bytes))
    if pool.spill_bytes:
        options.add_session_config_entry(_SPILL_BYTES, str(pool.spill_bytes))


def register_library(options: ort.SessionOptions) -> None:
    """Have `options` open a session whose file needs the library. Entries that it reads are set before.

    Raises:
        UsageError: the library is not built, or refuses what the options ask for, with what to do.
    """
    path = str(library_path())
    try:
        options.register_custom_ops_library(path)
    except Exception as error:  # of pybind's own kinds
        raise UsageError(first_line(error)) from error


def register_for(options: ort.SessionOptions, model: Path) -> None:
    """`register_library`, where the file of a model says that it needs it.

    Raises:
        UsageError: it needs the library, which is not built.
    """
    if needs_library(model):
        register_library(options)


def needs_library(model: Path) -> bool:
    """Whether the file of a model says that it needs the library; False for what is no model."""
    try:
        with Path(model).open("rb") as file:
            return read_metadata(file).get(NEEDS_KEY) == NEEDS_SWAPS
    except (OSError, ValueError):
        return False
