"""Early ends of a command: by a signal, or by a limit on its memory or time.

An exception in the midst of native code may abort the process, and one that waits for native code to
return comes late. Therefore a separate thread ends the process at once: it removes temporary files,
and the kernel ends every child process (`planner.processes.children`).

This module imports nothing that takes time: it is the first thing that the command runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from planner.files import temporary
from planner.report.plain import nearby

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVING = threading.Lock()
"""A lock that a thread which ends the process takes and keeps: who waits for it says nothing more."""


@dataclass(slots=True)
class _Signals:
    """The state of signal handling. Two threads see each signal, in any order; each has an attribute
    of its own.

    Attributes:
        raising: signals whose first one becomes a KeyboardInterrupt in the main thread.
        excused: signals whose first one the thread that ends the process ignores.
    """

    raising: frozenset[int] = frozenset()
    excused: frozenset[int] = frozenset()


_state = _Signals()


def watch_signals() -> Callable[[], None]:
    """End the process with one line on Ctrl-C, SIGTERM and SIGHUP, whatever the main thread does.

    Signals that the process was started to ignore (nohup) stay ignored.

    Return a function that restores Python's own signal handlers.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    heard = [n for n in SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    for number in heard:
        signal.signal(number, _on_signal)
    thread = threading.Thread(target=_read_signals, args=(reader,), daemon=True)
    thread.start()

    def stop() -> None:
        signal.set_wakeup_fd(-1)
        for number in heard:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
        os.close(writer)
        thread.join()
        os.close(reader)

    return stop


@contextlib.contextmanager
def signals_raise(*numbers: int) -> Iterator[None]:
    """Turn the first signal in the block into a KeyboardInterrupt in the main thread, as usual in
    Python.

    The second signal ends the process.

    Args:
        numbers: the signals' numbers; none for all signals that end the process.
    """
    _state.excused = _state.raising = frozenset(numbers or SIGNALS)
    try:
        yield
    finally:
        if _state.raising:  # no signal came; else the other thread may still have to ignore it
            _state.excused = frozenset()
        _state.raising = frozenset()


def exit_code(number: int) -> int:
    """Return the status of a command that a signal ended, as shells count it: 130 for Ctrl-C."""
    return 128 + number


def leave(line: str, status: int) -> NoReturn:
    """Print `line` on stderr and end the process from any thread, without unwinding."""
    with LEAVING, temporary.SETTLED:
        temporary.remove_all()
        # the terminal's cursor is hidden while progress is shown
        restored = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
        with contextlib.suppress(OSError):
            os.write(2, f"{restored}{line}\n".encode(errors="backslashreplace"))
        os._exit(status)


def end(status: int) -> NoReturn:
    """End the process after a command, at once.

    Python's own shutdown takes a while in which signals are not answered, and a native thread that
    still runs to its time limit would abort it.
    """
    wait_if_leaving()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 1
    with temporary.SETTLED:
        temporary.remove_all()  # what Ctrl-C left
        os._exit(status)


def wait_if_leaving() -> None:
    """Wait until the process ends, if another thread is ending it.

    That thread removes files, and an error here may come of it.
    """
    with LEAVING:
        pass


def leave_for(number: int) -> NoReturn:
    """Call `leave` because of a signal."""
    why = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    leave(f"planner: {why}; {what_is_written()}", exit_code(number))


def what_is_written() -> str:
    """Return the outputs that are in place, as a part of a sentence."""
    written = ", ".join(map(nearby, temporary.PLACED))
    return f"written before: {written}" if written else "nothing was written"


def _on_signal(number: int, _frame: Any) -> None:
    if number in _state.raising:
        _state.raising = frozenset()
        raise KeyboardInterrupt
    if LEAVING.locked() or temporary.SETTLED.locked():
        return  # the other thread ends the process as soon as the lock is free
    leave_for(number)


def _read_signals(reader: int) -> None:
    while numbers := os.read(reader, 64):
        for number in numbers:
            _seen_beside(number)


def _seen_beside(number: int) -> None:
    """Handle a signal in the thread that ends the process."""
    if number in _state.excused:
        _state.excused = frozenset()
    elif number in SIGNALS:
        leave_for(number)
