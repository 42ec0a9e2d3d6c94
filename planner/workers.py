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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, BinaryIO, TypeVar

from planner.children import child_environment, end_with_parent
from planner.errors import MemoryLimitError

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
    """One process that works while this one does something else; see `beside`."""

    def __init__(self, process: subprocess.Popen[bytes], pool: ThreadPoolExecutor) -> None:
        self._process = process
        self._pool = pool

    def begin(self, call: Callable[[None, Any], T], task: Any) -> Future[T]:
        """Have `call(None, task)` made there. Its answer, or the error that it raised, comes later.

        The answer is a MemoryLimitError where the system has ended the process.
        """
        return self._pool.submit(self._answer, call, task)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is done there meanwhile, where the system can stop a process."""
        stop, go = (getattr(signal, name, None) for name in ("SIGSTOP", "SIGCONT"))
        if stop is None or go is None:
            yield
            return
        self._process.send_signal(stop)
        try:
            yield
        finally:
            self._process.send_signal(go)

    def _answer(self, call: Call, task: Any) -> Any:
        try:
            return _ask(self._process, call, task)
        except _EndedError:
            raise MemoryLimitError(
                "a process was ended from outside, as a system does that is short of memory"
            ) from None


@contextlib.contextmanager
def beside() -> Iterator[Beside]:
    """A process beside this one for the length of a block, for one call at a time."""
    process = _started()
    pool = ThreadPoolExecutor(1)
    try:
        _send(process, pickle.dumps(None))
        yield Beside(process, pool)
    finally:
        process.kill()
        pool.shutdown(cancel_futures=True)
        process.communicate()


class _EndedError(Exception):
    """A process has ended without an answer."""


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


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        process_group=0,
    )


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer calls until there are no more."""
    shared = pickle.load(requests)
    while True:
        try:
            call, task = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = (False, call(shared, task))
        except Exception as error:
            answer = (True, error)
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    end_with_parent()
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what is printed does not get among the answers
        _serve(sys.stdin.buffer, answers)
