"""The session of the original that planning and its check share, created before planning starts.

The session writes the graph that it runs, and planning uses that graph: a large graph goes through
ONNX Runtime's optimizers once instead of twice. Verification measures with the session after planning;
without verification, its numbers are compared with those of the graph (`compared`).
"""

from __future__ import annotations

from contextlib import ExitStack

from planner.onnxio.load import LoadedModel
from planner.request import Request
from planner.runtime.optimizers.large_fills import large_fills
from planner.runtime.optimizers.normalize import Written
from planner.runtime.options import Opening, default_threads
from planner.runtime.profiled import MANY_NODES, Profiled, may_copy
from planner.targets import target_named


class OriginalAhead:
    """The session for the original, if one is worth it; it ends with `stack`."""

    def __init__(self, request: Request, stack: ExitStack) -> None:
        self._request, self._stack = request, stack
        self.session: Profiled | None = None

    def begin(self, loaded: LoadedModel) -> Written | None:
        """Start to create the session if that takes long; return the graph that it writes.

        It has verification's likely options. If verification needs others, it creates its own session.
        """
        request = self._request
        nodes = list(loaded.model.graph.all_nodes())
        if len(nodes) < MANY_NODES or not may_copy(loaded.model, loaded):
            return None
        if target_named(request.device).own_memory or not request.ort_optimize:
            return None
        if large_fills(loaded.model):
            return None  # the session would write them, and planning would not use its graph
        opening = Opening(threads=default_threads())
        session = Profiled(loaded.path, opening, seed=request.seed, with_copy=True)
        self.session = self._stack.enter_context(session)
        return session.written
