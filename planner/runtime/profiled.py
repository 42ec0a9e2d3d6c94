"""Sessions that are profiled at first, and run on without a profile.

What takes long in a session of a large graph is its creation, above all ONNX Runtime's optimizers: their
time grows with the nodes times those that are ready at once (`VisitorPriorityQueue` in
core/graph/graph.cc is a sorted list). So that each session serves for all that it can show:

    outputs, executed order, bytes    from its first runs, which are profiled
    times                             from more runs, once the profile is read
    the graph that it runs            from the file that it writes, which needs no optimizers

A session is created in a thread of its own, and ONNX Runtime holds no lock of Python's meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import onnx
import onnx_ir as ir

from planner.files.temporary import temporary_folder
from planner.onnxio.load import LoadedModel
from planner.runtime.options import Opening, stop_spinning
from planner.runtime.profile import (
    Feeds,
    OutputSink,
    Run,
    create_session,
    read_profile,
    run_profiled,
)
from planner.runtime.timing import available_bytes, timed_session

if TYPE_CHECKING:
    import onnxruntime as ort

MANY_NODES = 2_000
"""From so many nodes on, the creation of a session takes a while."""

MAX_COPY_BYTES = 256 << 20
"""Weights that are written once more, with the graph that a session runs."""

_TIMES_HELD = 4
"""The other model's arena may be as large, and grow as it runs on."""


class Profiled:
    """One session of a model, from the beginning of its creation to the end of the block.

    Args:
        opening: how it is opened.
        seed: of its random numbers.
        with_copy: it writes the graph that it runs, as `copy`.
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
        """The session, waited for.

        Raises:
            ModelError: ONNX Runtime cannot load the model.
        """
        assert self._creation is not None
        return self._creation.result()

    def written(self) -> Path:
        """The graph that the session runs, waited for.

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
        on_outputs: OutputSink | None = None,
        names: Collection[str] = (),
    ) -> tuple[Run, ...]:
        """Events of each of the first runs, in executed order; see `planner.runtime.profile.profile`.

        Raises:
            ModelError: ONNX Runtime cannot load or run the model.
        """
        import onnxruntime as ort

        session = self.session
        ort.set_seed(self.seed)  # others may have drawn since it was created
        path = run_profiled(session, inputs, runs=runs, on_outputs=on_outputs)
        found = read_profile(path, names)
        path.unlink()
        return found

    def drop(self) -> None:
        """Let go of the session and what it holds; its copy stays."""
        self._creation = None


@dataclass(slots=True, kw_only=True)
class VerifyingSessions:
    """The sessions of one verification, each of which serves for as much as it can.

    Attributes:
        paths: of the models, by name; `nodes` names those of their graphs.
        ahead: one that is being created already; used where it is opened as another would be.
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
        """A session of a model; one that was begun before if it is opened alike."""
        for known in self._begun:
            if (known.path, known.opening) == (self.paths[model], opening):
                return known
        made = Profiled(self.paths[model], opening, seed=self.seed, with_copy=with_copy)
        self._begun.append(self._stack.enter_context(made))
        return made

    def finish(self, model: str, session: Profiled, *, keep: bool = False) -> None:
        """Have done with a session, or keep it to be timed."""
        self._begun.remove(session)
        if keep:
            self._kept[model] = session
        else:
            session.drop()

    def timed(self, model: str, opening: Opening) -> ort.InferenceSession:
        """A session to be timed, which nothing keeps any longer: one that was kept if it is opened alike.

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
    """Whether a session of so many nodes is created while something else is done: where that takes a
    while, and there is a core for it."""
    return nodes >= MANY_NODES and (os.cpu_count() or 1) > 1


def may_copy(model: ir.Model, loaded: LoadedModel) -> bool:
    """Whether a graph that is made of a file may be written to a temporary file: its weights are few,
    and none lie in other files."""
    values = model.graph.initializers.values()
    weights = sum(v.const_value.nbytes for v in values if v.const_value is not None)
    return weights <= MAX_COPY_BYTES and not loaded.has_external_data


def holds_run(path: Path, run: Run) -> bool:
    """Whether the nodes of a file stand in the order in which they ran in the session that wrote it."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return [node.name for node in nodes] == [event.name for event in run]


def may_stay(runs: Sequence[Run]) -> bool:
    """Whether a session may stay while others run: the free memory is a few times what it holds."""
    held = [event.held for run in runs for event in run if event.held is not None]
    available = available_bytes()
    return bool(held) and (available is None or _TIMES_HELD * max(held) <= available)
