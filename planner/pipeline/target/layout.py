"""Choice of the planned graph if a default session stores images in blocks of channels.

See `planner.runtime.optimizers.blocked`. On the CPU, pools whose bits do not depend on the layout
stay in the plain one; other nodes are planned in their new layout, on the graph of the level ALL.
One file for every target (`--device any`) has plain pools alone, and no convolution with constant
weights.
"""

from __future__ import annotations

from planner.errors import ModelError
from planner.runtime.optimizers.blocked import Layout, block_channels
from planner.targets import Target
from planner.units import counted


def is_planned_blocked(layout: Layout, target: Target) -> bool:
    """Tell whether the graph is planned in the layout of the level ALL."""
    return bool(layout.nodes) and not layout.same_bits and not target.everywhere


def check_layout(layout: Layout, target: Target) -> None:
    """Raise ModelError if one file cannot run as planned on every target."""
    if target.everywhere and layout.has_weights:
        first, count = layout.nodes[0], len(layout.nodes)
        rest = f" and {count - 1} more" if count > 1 else ""
        raise ModelError(
            f"no one file runs as planned on every target: the CPU lays convolutions with constant "
            f"weights out in blocks of channels (NCHWc; {first!r}{rest}); name one with --device"
        )


def layout_notes(layout: Layout, target: Target) -> tuple[str, ...]:
    """Return notes on the layout, for every report."""
    count = len(layout.nodes)
    if not count:
        return ()
    if not is_planned_blocked(layout, target):
        return (
            f"{counted(count, 'pool', 'are')} kept in the plain layout, as images of one channel each, "
            "which are views: under default options ONNX Runtime would store them in blocks of channels "
            "(NCHWc), with two more copies each",
        )
    said = (
        f"{count} convolutions and pools run in blocks of {block_channels()} channels (NCHWc), as a "
        "session of default options lays them out: planned on the graph of the level ORT_ENABLE_ALL"
    )
    if not layout.has_weights:
        return (said,)
    return (
        f"{said}, and the rewritten model has their weights in that layout: it is right only on "
        "processors with blocks of that length; for other processors, plan the model on one of "
        "them",
    )
