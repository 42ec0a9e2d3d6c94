"""The session in which the original will be verified, created before its plan is made.

It writes the graph that it runs, and that is what is planned: a large graph goes through ONNX Runtime's
optimizers once instead of twice. What it shows when it runs is looked at only once the plan is there.
"""

from __future__ import annotations

from contextlib import ExitStack

from planner.onnxio.load import LoadedModel
from planner.request import Request
from planner.runtime.optimizers.normalize import Written
from planner.runtime.options import Opening, default_threads
from planner.runtime.profiled import MANY_NODES, Profiled, may_copy
from planner.targets import target_named


class OriginalAhead:
    """The session, where there is to be one; it ends with `stack`."""

    def __init__(self, request: Request, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self.session: Profiled | None = None

    def begin(self, loaded: LoadedModel) -> Written | None:
        """Have it created, where that takes long; gives the graph that it writes."""
        session = original_ahead(loaded, self._request)
        if session is None:
            return None
        self.session = self._stack.enter_context(session)
        return session.written


def original_ahead(loaded: LoadedModel, request: Request) -> Profiled | None:
    """A session as verification will open one, as far as can be told; None where none is worth it.

    Where verification needs another session, it creates another.
    """
    nodes = list(loaded.model.graph.all_nodes())
    if len(nodes) < MANY_NODES or not may_copy(loaded.model, loaded):
        return None
    if target_named(request.device).own_memory or not request.ort_optimize:
        return None
    opening = Opening(threads=default_threads())
    return Profiled(loaded.path, opening, seed=request.seed, with_copy=True)
