"""Ctrl-C while a solver works in native code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def interruptibly(work: Callable[[], T]) -> T:
    """Run `work` on a thread of its own and wait for it: Ctrl-C reaches Python at once.

    After Ctrl-C, the thread runs on to its time limit, and does not keep the process alive.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(timeout=0.2)
    if failure:
        raise failure[0]
    return result[0]
