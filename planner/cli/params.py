"""Files of parameters, as the commands that take one read them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.console import note

if TYPE_CHECKING:
    from planner.portfolio.table import Policy


def read_noting(path: Path, *, unused: Collection[str]) -> Policy:
    """The policy that a file asks for; a note says which of its tables change nothing here.

    Args:
        unused: the tables, among `planner.portfolio.params.STAGES`, that the command has no use for.

    Raises:
        UsageError: as `planner.portfolio.params.read_params`.
    """
    from planner.portfolio.params import changed_stages, read_params

    policy = read_params(path)
    idle = [f"[{name}]" for name in changed_stages(policy) if name in unused]
    if idle:
        verb = "changes" if len(idle) == 1 else "change"
        note(f"{' and '.join(idle)} of {path} {verb} nothing in this command")
    return policy
