"""Calls made side by side, in processes of this machine that end with this one: many (`workers`), or one
beside what this process does itself (`beside`).

`multiprocessing` has pools too, but a killed process of theirs hangs the pool or loses the others'
semaphores, and Ctrl-C prints the traceback of each.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from types import FrameType
from typing import Any, BinaryIO, TypeVar

from planner.errors import MemoryLimitError, PlannerError
from planner.processes.children import child_environment, end_with_parent, in_background
from planner.processes.garbage import collect_seldom
from planner.processes.importing import import_there

_GIVE_UP: signal.Signals | None = getattr(signal, "SIGURG", None)
"""Ends the call that a process is at; ignored by one that is only starting."""

_AGAIN_S = 0.05

_UNBROKEN = "importlib"
"""What is not broken off: a module that is half imported fails whoever asks for it next."""

_COURTEOUS, _NICENESS = "--courteous", 10
"""A process that gives way to the others: how it is told so, and by how much."""

Call = Callable[[Any, Any], Any]
T = TypeVar("T")
Run = Callable[[Call, Sequence[Any]], Iterator[Any]]


@contextlib.contextmanager
def workers(count: int, shared: Any) -> Iterator[Run]:
    """A function that calls another with `shared` and each of some tasks; answers come as they are
    ready. What is called, and all that it takes and gives, can be pickled.

    Args:
        count: processes.
        shared: sent to each process once.

    Raises:
        MemoryLimitError: the system has ended a process.
    """
    content = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
    processes = [_started() for _ in range(count)]
    idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    unread = set(processes)

    def answer(call: Call, task: Any) -> Any:
        process = idle.get()
        try:
            if process in unread:
                unread.discard(process)
                _send(process, content)
            return _ask(process, call, task)
        except _EndedError:
            raise MemoryLimitError(
                "one of the processes was ended from outside, as a system does that is short of "
                f"memory; solve fewer points at once (--jobs {max(1, count // 2)})"
            ) from None
        finally:
            idle.put(process)

    pool = ThreadPoolExecutor(count)

    def run(call: Call, tasks: Sequence[Any]) -> Iterator[Any]:
        for done in as_completed([pool.submit(answer, call, task) for task in tasks]):
            yield done.result()

    try:
        for process in processes:
            idle.put(process)
        yield run
    finally:
        for process in processes:
            process.kill()
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()


class Beside:
    """One process that works while this one does something else, with what this one leaves of the
    cores; see `beside`."""

    def __init__(self) -> None:
        self._process = _started(_COURTEOUS)
        in_background(self._process)
        self._pool = ThreadPoolExecutor(1)
        with contextlib.suppress(_EndedError):  # the first call says so
            _send(self._process, pickle.dumps(None))

    def begin(self, call: Callable[[None, Any], T], task: Any) -> Future[T]:
        """Have `call(None, task)` made there. Its answer, or the error that it raised, comes later.

        The answer is a MemoryLimitError where the system has ended the process.
        """
        return self._pool.submit(self._answer, call, task)

    def give_up(self, answer: Future[Any]) -> None:
        """End a call whose answer nobody waits for, where the system can tell a process so: its answer is
        an error then. Elsewhere it goes on to its end."""
        if answer.cancel() or _GIVE_UP is None:
            return
        while not answer.done():
            self._process.send_signal(_GIVE_UP)  # again if it came before the call began there
            wait([answer], timeout=_AGAIN_S)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._pool.shutdown(cancel_futures=True)
        self._process.communicate()

    def _answer(self, call: Call, task: Any) -> Any:
        try:
            return _ask(self._process, call, task)
        except _EndedError:
            raise MemoryLimitError(
                "a process was ended from outside, as a system does that is short of memory"
            ) from None


@contextlib.contextmanager
def beside(imports: str = "") -> Iterator[Beside]:
    """A process beside this one for the length of a block, for one call at a time.

    Args:
        imports: a module that its calls need, which it imports at once; "" for none.
    """
    helper = Beside()
    if imports:
        helper.begin(import_there, imports)
    try:
        yield helper
    finally:
        helper.end()


def answer_of(begun: Future[T]) -> T | None:
    """The answer to a call to the process beside, waited for; None where it has not begun, and now never
    does, and where the system has ended the process."""
    if begun.cancel():
        return None
    try:
        return begun.result()
    except MemoryLimitError:
        return None


class _EndedError(Exception):
    """A process has ended without an answer."""


class _GivenUpError(BaseException):
    """Nobody waits for the answer any longer."""


def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(content)
        process.stdin.flush()
    except BrokenPipeError:
        raise _EndedError from None


def _ask(process: subprocess.Popen[bytes], call: Call, task: Any) -> Any:
    """What the process answers; the error is raised that the call raised there.

    Raises:
        _EndedError: there was no answer.
    """
    _send(process, pickle.dumps((call, task), protocol=pickle.HIGHEST_PROTOCOL))
    assert process.stdout is not None
    try:
        is_error, found = pickle.load(process.stdout)
    except (EOFError, pickle.UnpicklingError):
        raise _EndedError from None
    if is_error:
        raise found
    return found


def _started(*options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        process_group=0,
    )


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer calls until there are no more."""
    is_busy = False

    def give_up(_signal: int, frame: FrameType | None) -> None:
        if is_busy and not _is_unbroken(frame):  # else `give_up` asks again
            raise _GivenUpError

    if _GIVE_UP is not None:
        signal.signal(_GIVE_UP, give_up)
    shared = pickle.load(requests)
    while True:
        try:
            call, task = pickle.load(requests)
        except EOFError:
            return
        try:
            is_busy = True
            answer = False, call(shared, task)
            is_busy = False
        except _GivenUpError:
            is_busy, answer = False, (True, CancelledError())
        except Exception as error:
            is_busy, answer = False, (True, error)
            if not isinstance(error, PlannerError):  # where it was raised does not come across
                error.add_note("".join(traceback.format_exception(error)))
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _is_unbroken(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).split(".")[0] == _UNBROKEN:
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    end_with_parent()
    collect_seldom()
    if _COURTEOUS in sys.argv and hasattr(os, "nice"):
        os.nice(_NICENESS)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what is printed does not get among the answers
        _serve(sys.stdin.buffer, answers)
