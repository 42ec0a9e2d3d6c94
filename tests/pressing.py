"""Ctrl-C pressed in the tests' own process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS = Path("/proc/self/status")


@contextmanager
def ctrl_c_pressed(after_s: float = 0.3) -> Iterator[None]:
    """Ctrl-C is pressed once after so many seconds, and then each second until the block is left.

    Python loses one that comes while it cleans up an object. None comes after the block: it would end the
    whole run of the tests.
    """
    is_left = threading.Event()

    def press() -> None:
        wait_s = after_s
        while not is_left.wait(wait_s):
            os.kill(os.getpid(), signal.SIGINT)
            wait_s = 1.0

    def leave() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        is_left.set()
        finger.join()
        signal.signal(signal.SIGINT, before)

    finger = threading.Thread(target=press, daemon=True)
    # a shell that starts tests in the background has them ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        finger.start()
        yield
    finally:
        try:
            leave()
        except KeyboardInterrupt:  # pressed just now; the next one is a second away
            leave()


def kills() -> bool:
    """Whether Ctrl-C would end this process without a word, as after a solver that took the signal and
    gave it back to the system; False where the system does not tell."""
    if not _STATUS.exists():
        return False
    lines = dict(line.split(":\t", 1) for line in _STATUS.read_text().splitlines() if ":\t" in line)
    minded = int(lines["SigIgn"], 16) | int(lines["SigCgt"], 16)
    return not minded >> (signal.SIGINT - 1) & 1
