"""The session in which the original will be verified, created while its plan is made.

For a large graph that takes ONNX Runtime as long as the optimizers did, and needs one core alone. What
it shows is looked at only once the plan is there, so that nothing is planned on it.
"""

from __future__ import annotations

from contextlib import ExitStack

from planner.onnxio.load import LoadedModel
from planner.request import Request
from planner.runtime.options import Opening, default_threads
from planner.runtime.profiled import Profiled, default_level, may_copy, may_create_beside
from planner.targets import target_named


class OriginalAhead:
    """The session, where there is to be one; it ends with `stack`."""

    def __init__(self, request: Request, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self.session: Profiled | None = None

    def begin(self, loaded: LoadedModel) -> None:
        """Have it created, where that takes long."""
        found = original_ahead(loaded, self._request)
        self.session = None if found is None else self._stack.enter_context(found)


def original_ahead(loaded: LoadedModel, request: Request) -> Profiled | None:
    """A session as verification will open one, as far as can be told; None where none is worth it.

    It is begun once it is entered. Where verification needs another, it makes another.
    """
    nodes = list(loaded.model.graph.all_nodes())
    if not may_create_beside(len(nodes)) or not may_copy(loaded.model, loaded):
        return None
    if target_named(request.device).own_memory or not request.ort_optimize:
        return None
    level = default_level((node.op_type for node in nodes), "extended")
    if level != "all":
        return None  # whether images are laid out anew is not known yet
    opening = Opening(level=level, threads=default_threads())
    return Profiled(loaded.path, opening, seed=request.seed, with_copy=True)
