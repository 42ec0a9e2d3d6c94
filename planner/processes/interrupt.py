"""Ctrl-C while a solver works in native code."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def interruptibly(work: Callable[[], T], *, stop: Callable[[], None] | None = None) -> T:
    """Run `work` on a thread of its own and wait for it: Ctrl-C reaches Python at once.

    Native code that calls back into Python may lose the KeyboardInterrupt that is raised there (MathOpt
    does, while it converts messages); on another thread, none is raised.

    Args:
        stop: ends the work early, which is waited for. Without it, after Ctrl-C, the thread runs on to
            its time limit, and does not keep the process alive.
    """
    result: list[T] = []
    failure: list[BaseException] = []
    running = threading.Lock()
    running.acquire()

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)
        finally:
            running.release()

    # Python loses a KeyboardInterrupt in the cleaning up of a threading.Thread
    _thread.start_new_thread(run, ())
    try:
        while not (result or failure):
            running.acquire(timeout=0.2)
    except BaseException:
        while stop is not None and not (result or failure):
            stop()
            running.acquire(timeout=0.2)
        raise
    if failure:
        raise failure[0]
    return result[0]
