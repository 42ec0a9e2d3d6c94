"""Sessions that are profiled at first, and run on without a profile.

Creating a session of a large graph takes long, above all in ONNX Runtime's optimizers: their time
grows with the nodes times those that are ready at once (`VisitorPriorityQueue` in core/graph/graph.cc
is a sorted list). Therefore each session serves several purposes:

    outputs, executed order, bytes    from its first runs, which are profiled
    times                             from more runs, once the profile is read
    the graph that it runs            from the file that it writes, which needs no optimizers

A session is created in a thread of its own, and ONNX Runtime holds no lock of Python's meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import onnx
import onnx_ir as ir

from planner.files.temporary import temporary_folder
from planner.onnxio.load import LoadedModel
from planner.runtime.inmemory import run_within
from planner.runtime.options import DEFAULT, Opening, stop_spinning
from planner.runtime.profile import (
    Feeds,
    Run,
    create_session,
    read_profile,
    run_session,
)
from planner.runtime.timing import available_bytes, timed_session

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnxruntime as ort

MANY_NODES = 2_000
"""The number of nodes from which on the creation of a session takes a while."""

MAX_COPY_BYTES = 256 << 20
"""The most bytes of weights that are written again, with the graph that a session runs."""

_TIMES_HELD = 4
"""Free memory required, as a multiple of the bytes held: the other model's arena may be as large, and
grow."""


class Profiled:
    """One session of a model, from the start of its creation to the end of the block.

    Args:
        opening: its options.
        seed: seed of its random numbers.
        with_copy: whether it writes the graph that it runs, as `copy`.
    """

    def __init__(
        self, path: Path, opening: Opening, *, seed: int = 0, with_copy: bool = False
    ) -> None:
        self.path, self.opening, self.seed = path, opening, seed
        self._with_copy = with_copy
        self._stack = ExitStack()
        self._creation: Future[ort.InferenceSession] | None = None
        self.copy: Path | None = None

    def __enter__(self) -> Self:
        import onnxruntime as ort

        ort.set_seed(self.seed)
        folder = self._stack.enter_context(temporary_folder())
        options = self.opening.options(profile_prefix=folder / "profile")
        stop_spinning(options)
        if self._with_copy:
            self.copy = folder / "optimized.onnx"
            options.optimized_model_filepath = str(self.copy)
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        self._creation = pool.submit(create_session, self.path, options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.drop()
        self._stack.close()

    @property
    def session(self) -> ort.InferenceSession:
        """The session; waits for its creation.

        Raises:
            ModelError: ONNX Runtime cannot load the model.
        """
        assert self._creation is not None
        return self._creation.result()

    def written(self) -> Path:
        """Wait for the file of the graph that the session runs, and return its path.

        Raises:
            ModelError: ONNX Runtime cannot load the model.
        """
        assert self.copy is not None and self.session is not None
        return self.copy

    def profile(
        self,
        inputs: Feeds,
        *,
        runs: int = 1,
        on_outputs: Callable[[list[str], list[npt.NDArray[Any]]], None] | None = None,
        names: Collection[str] = (),
    ) -> tuple[Run, ...]:
        """Run the model, end the profile, and return the events of each run in executed order.

        Args:
            runs: number of runs; outputs of a run are dropped before the next.
            on_outputs: called with the names and arrays of the first run's outputs. Keeping them keeps
                their bytes in the arena: keep none when `runs` is more than 1.
            names: names of the graph's own nodes, as far as they are known (`read_profile`).

        Raises:
            ModelError: ONNX Runtime cannot load or run the model.
        """
        import onnxruntime as ort

        session = self.session
        ort.set_seed(self.seed)  # other sessions may have drawn numbers since it was created
        outputs = [output.name for output in session.get_outputs()]
        for index in range(runs):
            results = run_session(session, inputs)
            if index == 0 and on_outputs is not None:
                on_outputs(outputs, results)
            del results
        path = Path(session.end_profiling())
        found = read_profile(path, names)
        path.unlink()
        return found

    def run(self, inputs: Feeds, *, time_limit_s: float) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs of one run, by name.

        Raises:
            ModelError: ONNX Runtime cannot load or run the model, or not in that time.
        """
        import onnxruntime as ort

        session = self.session
        ort.set_seed(self.seed)
        return run_within(session, inputs, time_limit_s)

    def drop(self) -> None:
        """Release the session and its memory; its copy stays."""
        self._creation = None


def profile(
    path: Path,
    inputs: Feeds,
    opening: Opening = DEFAULT,
    *,
    runs: int = 1,
    names: Collection[str] = (),
) -> tuple[Run, ...]:
    """Return the events of each run of a model, in a session of its own; see `Profiled.profile`.

    Raises:
        ModelError: ONNX Runtime cannot load or run the model.
    """
    with Profiled(path, opening) as session:
        return session.profile(inputs, runs=runs, names=names)


@dataclass(slots=True, kw_only=True)
class VerifyingSessions:
    """The sessions of one verification, each shared by as many checks as possible.

    Attributes:
        paths: paths of the models, by name; nodes: names of their graphs' nodes.
        ahead: a session that is already being created; used in place of another with the same options.
    """

    paths: Mapping[str, Path]
    nodes: Mapping[str, Collection[str]]
    seed: int
    ahead: Profiled | None = None
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _begun: list[Profiled] = field(default_factory=list, init=False)
    _kept: dict[str, Profiled] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        if self.ahead is not None:
            self._begun.append(self.ahead)
        return self

    def __exit__(self, *error: object) -> None:
        for known in (*self._begun, *self._kept.values()):
            known.drop()
        self._stack.close()

    def begin(self, model: str, opening: Opening, *, with_copy: bool = False) -> Profiled:
        """Return a session of a model, possibly an earlier one with the same options."""
        for known in self._begun:
            if (known.path, known.opening) == (self.paths[model], opening):
                return known
        made = Profiled(self.paths[model], opening, seed=self.seed, with_copy=with_copy)
        self._begun.append(self._stack.enter_context(made))
        return made

    def finish(self, model: str, session: Profiled, *, keep: bool = False) -> None:
        """End the use of a session, or keep it for timing."""
        self._begun.remove(session)
        if keep:
            self._kept[model] = session
        else:
            session.drop()

    def timed(self, model: str, opening: Opening) -> ort.InferenceSession:
        """Return a session for timing, no longer kept here: a kept one if its options are the same.

        Raises:
            ModelError: ONNX Runtime cannot load the model.
        """
        kept = self._kept.pop(model, None)
        if kept is None or kept.opening != opening:
            return timed_session(self.paths[model], opening)
        session = kept.session
        kept.drop()
        return session


def may_create_beside(nodes: int) -> bool:
    """Tell whether to create a session of a model with this many nodes beside other work.

    It pays if the creation takes a while and a core is free.
    """
    return nodes >= MANY_NODES and (os.cpu_count() or 1) > 1


def may_copy(model: ir.Model, loaded: LoadedModel) -> bool:
    """Tell whether a graph made from a file may be written to a temporary file.

    Its weights must be few, and none may lie in other files.
    """
    values = model.graph.initializers.values()
    weights = sum(v.const_value.nbytes for v in values if v.const_value is not None)
    return weights <= MAX_COPY_BYTES and not loaded.has_external_data


def holds_run(path: Path, run: Run) -> bool:
    """Tell whether a file's nodes are in the order in which the session that wrote it ran them."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return [node.name for node in nodes] == [event.name for event in run]


def may_stay(runs: Sequence[Run]) -> bool:
    """Tell whether a session may stay while others run: enough memory is free beside the bytes that
    it holds."""
    held = [event.held for run in runs for event in run if event.held is not None]
    available = available_bytes()
    return bool(held) and (available is None or _TIMES_HELD * max(held) <= available)
