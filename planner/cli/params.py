"""Policy files of the commands that take one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.console import note

if TYPE_CHECKING:
    from planner.portfolio.table import Policy


def read_noting(path: Path, *, unused: Collection[str]) -> Policy:
    """Read a policy from a file, and note which of its tables change nothing in this command.

    Args:
        unused: the tables of `planner.portfolio.params.STAGES` that the command does not use.

    Raises:
        UsageError: see `planner.portfolio.params.read_params`.
    """
    from planner.portfolio.params import changed_stages, read_params

    policy = read_params(path)
    idle = [f"[{name}]" for name in changed_stages(policy) if name in unused]
    if idle:
        verb = "changes" if len(idle) == 1 else "change"
        note(f"{' and '.join(idle)} of {path} {verb} nothing in this command")
    return policy
