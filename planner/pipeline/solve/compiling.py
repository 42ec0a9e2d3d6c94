"""What is compiled on this machine the first time that it is used."""

from __future__ import annotations

from planner.pipeline.prepare.copies import choose_copies
from planner.request import Request


def compile_ahead(request: Request) -> None:
    """Have what planning runs be compiled while the model is read, where it is not yet on this machine.

    Raises:
        UsageError: see `choose_copies`.
    """
    from planner.fit import search
    from planner.search.fast import warm

    overlap, _ = choose_copies(request.levers.copies, request.levers.swap, request.device)
    warm.begin(overlap=overlap)
    search.COMPILATION.begin()
