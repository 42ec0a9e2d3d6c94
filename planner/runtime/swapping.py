"""Sessions of files whose copies run beside the operations: they load `planner.native`.

Such a file says so in its metadata (`pkg.planner.needs`), and has nodes of the domain `planner.swap`,
which ONNX Runtime knows from the library alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from planner.graph.rules import SWAP_DOMAIN
from planner.native import library_path
from planner.onnxio.metadata import read_metadata
from planner.targets import NEEDS_KEY, NEEDS_SWAPS

if TYPE_CHECKING:
    import onnxruntime as ort

CHECK_SWAPS, LINK_MBPS, LINK_JITTER_US = (
    "planner.check_swaps",
    "planner.link_mbps",
    "planner.link_jitter_us",
)
"""Entries of session options that the library reads when it is registered: see `planner.native`."""


def has_swaps(model: ir.Model) -> bool:
    """Whether a model has nodes of the library."""
    return SWAP_DOMAIN in model.graph.opset_imports


def register_library(options: ort.SessionOptions) -> None:
    """Have `options` open a session whose file needs the library. Entries that it reads are set before.

    Raises:
        UsageError: the library is not built, with what to do.
    """
    options.register_custom_ops_library(str(library_path()))


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
