"""Calls made side by side, in processes of this machine that end with this one.

`multiprocessing` has pools too, but a killed process of theirs hangs the pool or loses the others'
semaphores, and Ctrl-C prints the traceback of each.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, BinaryIO

from planner.children import child_environment, end_with_parent
from planner.errors import MemoryLimitError

Call = Callable[[Any, Any], Any]
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
            assert process.stdin is not None and process.stdout is not None
            if process in unread:
                unread.discard(process)
                process.stdin.write(content)
            pickle.dump((call, task), process.stdin)
            process.stdin.flush()
            is_error, found = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise MemoryLimitError(
                "one of the processes was ended from outside, as a system does that is short of "
                f"memory; solve fewer points at once (--jobs {max(1, count // 2)})"
            ) from None
        finally:
            idle.put(process)
        if is_error:
            raise found
        return found

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
