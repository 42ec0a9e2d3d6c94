"""Choice of the stream for copies: that of the operations, or one beside them.

ONNX Runtime runs everything of one device on one stream, its own copies included. Copies on other
streams are not safe in it: a buffer returns to the arena when its last reader is *issued*
(`reports/overlap.md`). The operators of `planner.native` copy beside the operations and are safe by
construction: the node that waits for a copy takes the buffer's remaining readers as inputs. Files
with them need that library. `planner.targets` lists the targets on which it has been shown to give
the same bits.
"""

from __future__ import annotations

from planner.errors import UsageError
from planner.targets import Target, titles

BESIDE = (
    "copies run beside the operations, by planner's native library, which sessions of the file load"
)

_UNPROVED = "on {title} they have not been shown to give the same bits yet: verify the file there"

SHARED = (
    "host copies share the CPU's memory: nothing is saved on this machine; the plan shows "
    "what a GPU would do"
)
"""Note on the worth of copies in a file that runs on the CPU."""


def choose_copies(copies: str, swap: str, target: Target) -> tuple[bool, str]:
    """Tell whether copies run beside the operations; the text explains why, for the plan's assumptions.

    "auto" overlaps on devices on which that has been shown to be safe.

    Args:
        copies: value of `--copies`.
        swap: value of `--swap`.
        target: the target that the model will run on.

    Raises:
        UsageError: the request overlaps copies on a target for which the library has no operators.
    """
    if copies == "overlapped":
        if target.overlap == "never":
            where = titles(lambda row: row.overlap != "never")
            raise UsageError(
                f"--copies overlapped: planner's library copies on {where}, not on {target.title}; use "
                "--copies serial"
            )
        is_new = target.own_memory and target.overlap != "proved"
        return True, f"{BESIDE}; {_UNPROVED.format(title=target.title)}" if is_new else BESIDE
    if copies == "serial" or swap == "none":
        return False, ""
    if target.overlap == "proved":
        return True, BESIDE
    return False, (
        "copies are planned on the stream of the operations: copies beside them have not been "
        f"shown to be safe on {target.name}"
    )
