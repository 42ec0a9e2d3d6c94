"""What is compiled on this machine the first time that it is used."""

from __future__ import annotations

from planner.pipeline.copies import Copies


def compile_ahead(copies: Copies) -> None:
    """Have what is not compiled yet on this machine be compiled while the model is read."""
    from planner.pack import depth_first
    from planner.search.fast import warm

    warm.begin(overlap=copies != "serial")
    depth_first.COMPILATION.begin()
