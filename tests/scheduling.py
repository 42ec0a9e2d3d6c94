"""Which process of pytest-xdist takes which tests, and what is done where one of them dies."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class ByFile(LoadFileScheduling):
    """A file at a time, and some folders as if they were one file.

    pytest-xdist 3.8 runs the test at which a process died again, queues files that are done, and lets a
    process wait for a second test that never comes, so that the run never ends (its issues 1327, 1371 and
    1378). Here that test has failed, and the others go on.
    """

    def __init__(self, config: pytest.Config, log: Any, together: Sequence[str] = ()) -> None:
        """`together`: beginnings of test names, each of which one process takes whole."""
        super().__init__(config, log)
        self.together = together

    def _split_scope(self, nodeid: str) -> str:
        folder = next((f for f in self.together if nodeid.startswith(f)), None)
        return folder or super()._split_scope(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test at which a process died; what it has not come to is left to the others."""
        files = self.assigned_work.pop(node)
        waiting = [test for file in files.values() for test, is_done in file.items() if not is_done]
        if not waiting:
            return None
        for file, tests in files.items():
            left = {t: False for t, is_done in tests.items() if not is_done and t != waiting[0]}
            if left:
                self.workqueue[file] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return waiting[0]

    def _reschedule(self, node: WorkerController) -> None:
        # a new process that has not told its tests yet gets some once it has; given any before, it would
        # never hear of them
        if node not in self.registered_collections:
            return
        # a process begins a test once it knows the next one, or that there is none
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # a process that has died just now: `remove_node` comes next, and takes back what it was given
        with contextlib.suppress(OSError):
            super()._assign_work_unit(node)
