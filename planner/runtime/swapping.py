"""Sessions that load `planner.native`.

They are sessions of files with copies beside the operations, to the host's memory or to a disk; of
files with fused operations; and sessions with a memory pool of a given size. A file with such copies
or operations records this in its metadata (`pkg.planner.needs`), and has nodes of the domain
`planner.swap` or `planner.fused`, which ONNX Runtime knows only from the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from planner.disk import default_folder, kind_of, remark_on
from planner.errors import UsageError
from planner.files.reading import MAX_BYTES, shown
from planner.graph.rules import FUSED_DOMAIN, SWAP_DOMAIN
from planner.native import device_pool_options, library_path
from planner.onnxio.metadata import read_metadata
from planner.runtime.build import has_pool
from planner.runtime.messages import first_line
from planner.targets import Target
from planner.targets.keys import DISK_KEY, NEEDS, NEEDS_FUSED, NEEDS_KEY, NEEDS_SWAPS
from planner.units import parse_whole

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

    from planner.plan.planfile import Pool

_POOL_BYTES, _SPILL_BYTES = "planner.pool_bytes", "planner.spill_bytes"
_DISK_FOLDER, _DISK_BYTES = "planner.disk_folder", "planner.disk_bytes"
USES_ARENA = "session.use_env_allocators"
"""The entry that makes a session use the allocators of its process
(core/session/onnxruntime_session_options_config_keys.h)."""
CHECK_SWAPS, LINK_MBPS, LINK_JITTER_US = (
    "planner.check_swaps",
    "planner.link_mbps",
    "planner.link_jitter_us",
)
"""Entries of session options that the library reads when it is registered: see `planner.native`."""


def needs_of_graph(model: ir.Model) -> str:
    """Return the needs of a model on the library, as its metadata records them; "" for none."""
    imports = model.graph.opset_imports
    needs = ((FUSED_DOMAIN, NEEDS_FUSED), (SWAP_DOMAIN, NEEDS_SWAPS))
    return ", ".join(text for domain, text in needs if domain in imports)


def put_pool(options: ort.SessionOptions, pool: Pool, target: Target) -> dict[str, str]:
    """Ask for a pool of exactly `pool.bytes` bytes for a session's results and intermediate values.

    On a device, inputs, initializers and kernels' workspace are in it, too. There the session's provider
    takes it, by the options that are returned; they are empty on the CPU.

    Args:
        target: that the session opens on.

    Raises:
        UsageError: the target's memory is of another kind; this build takes no pool; or the process has a
            device's pool of another size in use.
    """
    if not has_pool():
        raise UsageError(
            "this build of ONNX Runtime, which is for training, cannot use planner's pool"
        )
    if target.is_arena:
        return device_pool_options(pool.bytes)
    if target.own_memory:
        raise UsageError(f"sessions on {target.title} take no pool")
    options.add_session_config_entry(_POOL_BYTES, str(pool.bytes))
    if pool.spill_bytes:
        options.add_session_config_entry(_SPILL_BYTES, str(pool.spill_bytes))
    return {}


def put_disk(options: ort.SessionOptions, disk_bytes: int, folder: Path | None = None) -> str:
    """Make a session's swaps go to a file of `disk_bytes` bytes, made with the session.

    Return a warning about the folder, or "" (`planner.disk.remark_on`).

    Args:
        folder: the file's folder; None for `planner.disk.default_folder`.

    Raises:
        UsageError: no file can be made in the folder.
    """
    folder = (default_folder() if folder is None else folder).absolute()
    remark = remark_on(kind_of(folder), folder)
    options.add_session_config_entry(_DISK_FOLDER, str(folder))
    options.add_session_config_entry(_DISK_BYTES, str(disk_bytes))
    return remark


def disk_bytes_of(props: Mapping[str, str], where: str) -> int | None:
    """Return the bytes of the file for a model's swaps, from its metadata; None where they go to
    memory.

    Raises:
        UsageError: the metadata is not such as planner writes.
    """
    text = props.get(DISK_KEY)
    if text is None:
        return None
    size = parse_whole(text)
    if size is None or size > MAX_BYTES:
        raise UsageError(
            f"{where}: its metadata {DISK_KEY} is {shown(text)}, and no number of bytes"
        )
    return size


def register_library(options: ort.SessionOptions) -> None:
    """Make `options` open a session whose file needs the library. Set the entries that it reads
    before.

    Raises:
        UsageError: the library is not built, or refuses the options; the message says what to do.
    """
    path = str(library_path())
    try:
        options.register_custom_ops_library(path)
    except Exception as error:  # pybind raises its own types
        raise UsageError(first_line(error)) from error


def register_for(options: ort.SessionOptions, model: Path) -> None:
    """Register the library where `put_pool` asked for a pool, or the model's metadata needs it.

    Call `put_disk` too where its swaps go to a disk. Do nothing for a file that is no model.

    Raises:
        UsageError: the model needs the library, which is not built, or no file can be made for its swaps.
    """
    try:
        with Path(model).open("rb") as file:
            props = read_metadata(file)
    except (OSError, ValueError):
        return
    needs = props.get(NEEDS_KEY) in NEEDS
    if needs and (disk_bytes := disk_bytes_of(props, str(model))) is not None:
        put_disk(options, disk_bytes)
    if needs or _asks_for_pool(options):
        register_library(options)


def _asks_for_pool(options: ort.SessionOptions) -> bool:
    try:
        return bool(options.get_session_config_entry(_POOL_BYTES))
    except RuntimeError:
        return False
