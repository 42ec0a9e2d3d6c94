"""How the command ends early: by a signal, or by a limit on its memory or time.

An exception raised in the midst of native code may abort the process, and one that waits for native
code to return comes late. So a thread of its own ends the process, at once: what is temporary is
removed, and the kernel ends every process that was started (`planner.processes.children`).

Nothing heavy is imported here: it is the first that the command does.
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

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_leaving = threading.Lock()


@dataclass(slots=True)
class _Signals:
    """Two threads see each signal, in any order, and each changes an attribute of its own.

    Attributes:
        raising: signals of which the first is a KeyboardInterrupt in the main thread.
        excused: signals of which the thread that ends the process passes over the first.
    """

    raising: frozenset[int] = frozenset()
    excused: frozenset[int] = frozenset()


_state = _Signals()


def watch_signals() -> Callable[[], None]:
    """End the process in one line on Ctrl-C, SIGTERM and SIGHUP, whatever the main thread does; not
    on what the process was started to ignore (nohup).

    Returns a function that leaves signals to Python again, as a script finds them.
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
    """Within the block, the first signal is a KeyboardInterrupt in the main thread, as elsewhere in
    Python; the second ends the process.

    Args:
        numbers: of signals; all that end the process if none is given.
    """
    _state.excused = _state.raising = frozenset(numbers or SIGNALS)
    try:
        yield
    finally:
        if _state.raising:  # none came; else the other thread may still have to pass over it
            _state.excused = frozenset()
        _state.raising = frozenset()


def exit_code(number: int) -> int:
    """The status of a command that a signal ended, as shells have it: 130 for Ctrl-C."""
    return 128 + number


def leave(line: str, status: int) -> NoReturn:
    """Say `line` on stderr and end the process, from any thread, without unwinding."""
    with _leaving, temporary.SETTLED:
        temporary.remove_all()
        # the terminal's cursor is hidden while progress is shown
        restored = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
        with contextlib.suppress(OSError):
            os.write(2, f"{restored}{line}\n".encode(errors="backslashreplace"))
        os._exit(status)


def end(status: int) -> NoReturn:
    """End the process after a command, at once: what Python does at its own end takes a while in which
    signals are not answered, and a native thread that was left to its time limit would abort it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 1
    os._exit(status)


def leave_for(number: int) -> NoReturn:
    """`leave`, because of a signal."""
    why = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    leave(f"planner: {why}; {what_is_written()}", exit_code(number))


def what_is_written() -> str:
    """The outputs that are in place, as a part of a sentence."""
    written = ", ".join(map(nearby, temporary.PLACED))
    return f"written before: {written}" if written else "nothing was written"


def _on_signal(number: int, _frame: Any) -> None:
    if number in _state.raising:
        _state.raising = frozenset()
        raise KeyboardInterrupt
    if _leaving.locked() or temporary.SETTLED.locked():
        return  # the other thread leaves, as soon as this one lets it
    leave_for(number)


def _read_signals(reader: int) -> None:
    while numbers := os.read(reader, 64):
        for number in numbers:
            _seen_beside(number)


def _seen_beside(number: int) -> None:
    """A signal, as the thread that ends the process sees it."""
    if number in _state.excused:
        _state.excused = frozenset()
    elif number in SIGNALS:
        leave_for(number)
