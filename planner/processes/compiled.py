"""How functions are compiled, whether they are already, and how that is begun ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from planner.processes import ahead

INNER: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of `numba.njit` for what compiled code alone calls: with no way in from Python it compiles in
less time."""


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether numba has a cached version of a compiled function's present source.

    numba itself is asked (`numba/core/caching.py`): some of its versions know a source by its time, later
    ones by its contents. What is not to be compiled at all, as with `NUMBA_DISABLE_JIT`, counts as done.
    """
    cache = getattr(function, "_cache", None)
    return cache is None or bool(cache._cache_file._load_index())


class Compilation:
    """Functions that are compiled once per machine, and loaded from the cache on disk after that."""

    def __init__(
        self, run: Callable[[], None], wanted: Callable[[], tuple[Callable[..., Any], ...]]
    ) -> None:
        """
        Args:
            run: calls them, of a module's own functions; another process is told its name.
            wanted: gives those without which it is not done; called when that is asked.
        """
        self._run, self._wanted = run, wanted
        self._call = f"{run.__module__}:{run.__qualname__}"
        self._is_warm = False
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """Whether all are in the cache, as far as its index tells."""
        return self._is_warm or all(map(is_compiled, self._wanted()))

    def begin(self, *later: Compilation) -> None:
        """Have a process beside this one compile what is not compiled yet.

        Args:
            later: what it compiles after that, since it is needed later or not at all.
        """
        ahead.begin(*(each._call for each in (self, *later) if not each.is_done))

    def wait(self) -> None:
        """Wait until a process beside this one has compiled it, if that was begun."""
        ahead.finish(self._call)

    def load_ahead(self) -> None:
        """Load it in a thread, where it is compiled: who needs it then waits for that, or finds it."""
        if self.is_done:
            threading.Thread(target=self.warm_up, daemon=True).start()

    def warm_up(self) -> None:
        """Compile or load everything in this process: seconds, the first time on a machine."""
        with self._lock:
            if not self._is_warm:
                self.wait()
                self._run()
                self._is_warm = True

    def warm_up_within(self, left_s: float, compile_s: float) -> bool:
        """`warm_up`, but where it would have to be compiled first in too little time; whether it is warm.

        Args:
            left_s: seconds that are left.
            compile_s: seconds that must be, for it to be compiled in a process beside this one.
        """
        if not self.is_done:
            if left_s < compile_s:
                return False
            self.begin()
        self.warm_up()
        return True
