"""Calls made side by side in processes that end with this one: many (`workers`), or one (`beside`).

`multiprocessing` has pools too, but a killed process hangs the pool or loses the others' semaphores,
and Ctrl-C prints the traceback of each process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, BinaryIO, TypeVar

from planner.errors import MemoryLimitError, PlannerError
from planner.processes.children import child_environment, end_with_parent, in_background
from planner.processes.garbage import collect_seldom
from planner.processes.importing import import_there

_COURTEOUS, _NICENESS = "--courteous", 10
"""The option that makes a process yield to others, and its niceness."""

Call = Callable[[Any, Any], Any]
T = TypeVar("T")
Run = Callable[[Call, Sequence[Any]], Iterator[Any]]


@contextlib.contextmanager
def workers(count: int, shared: Any) -> Iterator[Run]:
    """Yield a function that calls another with `shared` and each of some tasks, in several processes.

    Answers come as they are ready. The called function, its arguments and its answers can be pickled.

    Args:
        count: number of processes.
        shared: first argument of each call, sent to each process once.

    Raises:
        MemoryLimitError: the system has killed a process.
    """
    content = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
    processes = [_started() for _ in range(count)]
    idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    unread = set(processes)

    def answer(request: bytes) -> Any:
        process = idle.get()
        try:
            if process in unread:
                unread.discard(process)
                _send(process, content)
            return _ask(process, request)
        except _EndedError:
            raise MemoryLimitError(
                "one of the processes was killed, probably because memory ran out; solve fewer "
                f"points at once (--jobs {max(1, count // 2)})"
            ) from None
        finally:
            idle.put(process)

    pool = ThreadPoolExecutor(count)

    def run(call: Call, tasks: Sequence[Any]) -> Iterator[Any]:
        for done in as_completed([pool.submit(answer, _request(call, task)) for task in tasks]):
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
    """One process that works beside this one, at a lower priority; see `beside`."""

    def __init__(self) -> None:
        self._process = _started(_COURTEOUS)
        in_background(self._process)
        self._pool = ThreadPoolExecutor(1)
        with contextlib.suppress(_EndedError):  # the first call says so
            _send(self._process, pickle.dumps(None))

    def begin(self, call: Callable[[None, Any], T], task: Any) -> Future[T]:
        """Begin `call(None, task)` in that process; the future gives its answer or the error that it
        raised.

        The error is a MemoryLimitError where the system has killed the process.
        """
        return self._pool.submit(self._answer, _request(call, task))

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        self._process.kill()
        self._pool.shutdown(cancel_futures=True)
        self._process.communicate()

    def _answer(self, request: bytes) -> Any:
        try:
            return _ask(self._process, request)
        except _EndedError:
            raise MemoryLimitError(
                "a process was killed, probably because memory ran out"
            ) from None


@contextlib.contextmanager
def beside(imports: str = "") -> Iterator[Beside]:
    """Yield a process beside this one, for one call at a time, until the block ends.

    Args:
        imports: a module that the calls need, which the process imports at once; "" for none.
    """
    helper = Beside()
    if imports:
        helper.begin(import_there, imports)
    try:
        yield helper
    finally:
        helper.end()


class _EndedError(Exception):
    """A process ended without an answer."""


def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(content)
        process.stdin.flush()
    except BrokenPipeError:
        raise _EndedError from None


def _request(call: Call, task: Any) -> bytes:
    """Pickle a call, in the caller's thread: values in the task are computed when first asked for, and
    another thread would meet them half-way."""
    return pickle.dumps((call, task), protocol=pickle.HIGHEST_PROTOCOL)


def _ask(process: subprocess.Popen[bytes], request: bytes) -> Any:
    """Make a call in a process and return its answer; raise the error that the call raised there.

    Raises:
        _EndedError: there was no answer.
    """
    _send(process, request)
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
    """Answer calls until the input ends."""
    shared = pickle.load(requests)
    while True:
        try:
            call, task = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = False, call(shared, task)
        except Exception as error:
            answer = True, error
            if not isinstance(error, PlannerError):  # pickling drops the traceback
                error.add_note("".join(traceback.format_exception(error)))
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    end_with_parent()
    collect_seldom()
    if _COURTEOUS in sys.argv:
        os.nice(_NICENESS)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # printed text goes to stderr, not among the answers
        _serve(sys.stdin.buffer, answers)
