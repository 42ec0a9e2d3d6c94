"""Bind parameters and optimizer state to buffers that stay in place between steps of a training loop.

    values of a name     first step     second step     third step
    one buffer           read           written         read
    the other            written        read            written

A graph reads its state as inputs and writes the new state as outputs. Both buffers are allocated once: on
the device where the session reads that input there, page-locked on the host where a session on a device
reads it there, and as NumPy arrays elsewhere. ONNX Runtime reads and writes these buffers directly,
and no step copies the state. A plan counts both, as the file has them.

A session that replays its launches (`graph_capture` of `planner.open_session`) reads and writes the
addresses of the recorded step. There all values stay in place, the feeds and the results too, and each
of the two turns has a record of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.errors import ModelError, UsageError
from planner.runtime.arrays import to_numpy
from planner.runtime.binding.buffers import (
    HOST_MEMORY,
    Buffer,
    Place,
    Where,
    buffers,
    is_captured,
    places,
)
from planner.runtime.binding.kinds import Array, FeedKind, check_known
from planner.runtime.messages import first_line

if TYPE_CHECKING:
    import onnxruntime as ort

UPDATED = "_new"
"""The suffix that an input's name gets to name the output with its next value."""

_GRAPH = "gpu_graph_id"
"""The run option that names the record of a captured session (onnxruntime_run_options_config_keys.h)."""

_RECORDS = itertools.count(1)
"""Numbers of records: a session replays by the number alone, with the addresses of whoever recorded."""

_AMONG_RESULTS = "name it among the results"
_NO_CAPTURE = "open the file without graph_capture, whose records have fixed sizes"


def bind(
    session: ort.InferenceSession,
    values: Mapping[str, Array],
    *,
    updates: Mapping[str, str] | None = None,
    results: Sequence[str] | None = None,
) -> Bound:
    """Keep parameters and state in place for a training loop on any session.

    Args:
        session: a session of any file, planner's or not.
        values: first values of the kept inputs, by name; they are copied once, here. Other inputs are fed
            at each step.
        updates: for each input, the output that has its next value; by default `NAME_new` for each NAME
            of `values` that has such an output.
        results: outputs that each step returns; by default all that are no updates. The others stay where
            the session makes them, until the next step: gradients on a device, say.

    Raises:
        UsageError: a name that the session does not have, a value of another type or shape than its
            input, an update of another type or shape than its input, or an output that stays and has open
            dims.
    """
    needed = {item.name: FeedKind.of(item) for item in session.get_inputs()}
    optional = {item.name: FeedKind.of(item) for item in session.get_overridable_initializers()}
    inputs = {**needed, **optional}
    outputs = {item.name: FeedKind.of(item) for item in session.get_outputs()}
    check_known(values, inputs, "input")
    if updates is None:
        updates = {name: name + UPDATED for name in values if name + UPDATED in outputs}
    check_known(updates, values, "kept input")
    check_known(updates.values(), outputs, "output")
    if results is None:
        results = [name for name in outputs if name not in updates.values()]
    check_known(results, outputs, "output")
    given = {name: inputs[name].checked(value) for name, value in values.items()}
    for name, update in updates.items():
        outputs[update].check_updates(inputs[name], given[name].shape)
    read_in, made_in = places(session)
    kept = {
        name: _Kept(
            update=updates.get(name),
            buffers=buffers(
                inputs[name], array, read_in.get(name, Where()), count=1 + (name in updates)
            ),
        )
        for name, array in given.items()
    }
    captures = is_captured(session)
    otherwise = _NO_CAPTURE if captures else _AMONG_RESULTS
    if captures:
        _check_on_device(read_in, [*needed, *kept])
        _check_on_device(made_in, outputs)
    given_back = {*updates.values(), *(() if captures else results)}
    left = (kind for name, kind in outputs.items() if name not in given_back)
    stays = _staying(left, made_in, otherwise)
    feeds = {name: kind for name, kind in needed.items() if name not in kept}
    fed = _staying(feeds.values(), read_in, otherwise) if captures else {}
    shown = {name: outputs[name] for name in results}
    return Bound(session, kept, feeds, shown, stays, fed)


def _staying(
    kinds: Iterable[FeedKind], where: Mapping[str, Where], otherwise: str
) -> dict[str, _Kept]:
    """Allocate a buffer for each of these; `otherwise` is the error's advice if one has open dims."""
    return {
        kind.name: _Kept(
            update=None,
            buffers=buffers(kind, kind.empty(otherwise), where.get(kind.name, Where()), count=1),
        )
        for kind in kinds
    }


def _check_on_device(where: Mapping[str, Where], names: Iterable[str]) -> None:
    """Raise UsageError where a session that replays its launches has a value on the host."""
    name = next((n for n in names if where.get(n, Where()).place != "device"), None)
    if name is not None:
        raise UsageError(
            f"{name!r} lives on the host, and a session with graph_capture replays launches alone: open "
            "the file without graph_capture, or plan it with --resident none"
        )


def _recording() -> ort.RunOptions:
    """Return options of a run with a record of its own."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry(_GRAPH, str(next(_RECORDS)))
    return options


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A value that stays in place; `update` is the output with an input's next value, or None."""

    update: str | None
    buffers: list[Buffer]

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.buffers[0].place

    def now(self, turn: int) -> Buffer:
        """Return the buffer that a turn reads."""
        return self.buffers[turn % len(self.buffers)]


@dataclass(slots=True)
class Bound:
    """A session whose parameters and state stay in place; `planner.bind` makes it.

    Steps run one at a time, whatever the number of threads; ONNX Runtime's CUDA provider has a record of
    its own for each thread. A step that fails leaves the values unchanged.
    """

    session: ort.InferenceSession
    _kept: dict[str, _Kept]
    _feeds: dict[str, FeedKind]
    _results: dict[str, FeedKind]
    _stays: dict[str, _Kept]
    _fed: dict[str, _Kept]
    _bindings: list[Any] = field(init=False)
    _options: list[ort.RunOptions] = field(init=False)
    _turn: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._bindings = [self.session.io_binding() for _ in range(2)]
        self._options = [_recording() for _ in self._bindings]
        for turn, binding in enumerate(self._bindings):
            for name, kept in (*self._kept.items(), *self._fed.items()):
                kept.now(turn).bind(binding, name, is_output=False)
                if kept.update is not None:
                    kept.now(turn - 1).bind(binding, kept.update, is_output=True)
            for name, left in self._stays.items():
                left.now(turn).bind(binding, name, is_output=True)

    @property
    def places(self) -> dict[str, Place]:
        """The place of each kept input, and of each output that stays."""
        return {name: kept.place for name, kept in {**self._kept, **self._stays}.items()}

    def step(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; its updates are the next step's inputs.

        Args:
            feeds: all inputs that are not kept. They are not copied, but by a session that replays its
                launches.

        Returns:
            The results, each in memory of its own.

        Raises:
            UsageError: a feed is missing, is of no input, or is of another type or shape than its input.
            ModelError: ONNX Runtime fails; the values are unchanged.
        """
        kept = next((name for name in feeds if name in self._kept), None)
        if kept is not None:
            raise UsageError(
                f"{kept!r} is kept from step to step: set it with put({{{kept!r}: ...}})"
            )
        check_known(feeds, self._feeds, "input")
        missing = next((name for name in self._feeds if name not in feeds), None)
        if missing is not None:
            raise UsageError(
                f"the input {missing!r} is neither kept nor fed: give it to step(), or to planner.bind"
            )
        given = {name: kind.checked(feeds[name]) for name, kind in self._feeds.items()}
        with self._lock:
            return self._run(given)

    def _run(self, given: dict[str, Array]) -> dict[str, Array]:
        binding = self._bindings[self._turn]
        made = self._bind(binding, given)
        self._issue(binding)
        self._turn = 1 - self._turn
        made |= {n: self._stays[n].buffers[0].read() for n in self._results if n in self._stays}
        if len(made) == len(self._results):
            return made
        names = [kept.update for kept in self._kept.values() if kept.update is not None]
        found = dict(
            zip([*names, *self._stays, *self._results], binding.get_outputs(), strict=True)
        )
        return {n: made[n] if n in made else to_numpy(found[n]) for n in self._results}

    def _bind(self, binding: Any, given: dict[str, Array]) -> dict[str, Array]:
        """Feed a step, and return the arrays that its results are written to.

        Feeds are read where they are, but for those that stay in place, which are copied there.
        """
        for name, array in given.items():
            if name in self._fed:
                self._fed[name].buffers[0].write(array)
                continue
            kind, pointer = self._feeds[name].onnx_type, array.ctypes.data
            binding.bind_input(name, HOST_MEMORY, 0, kind, array.shape, pointer)
        made: dict[str, Array] = {}
        for name, kind in self._results.items():
            if name in self._stays:
                continue
            if kind.is_open:
                binding.bind_output(name, HOST_MEMORY)
                continue
            array = made[name] = kind.empty()
            pointer = array.ctypes.data
            binding.bind_output(name, HOST_MEMORY, 0, kind.onnx_type, array.shape, pointer)
        return made

    def _issue(self, binding: Any) -> None:
        from planner.native import drain, is_built

        try:
            self.session.run_with_iobinding(binding, self._options[self._turn])
        except Exception as error:
            if is_built():  # copies of the run may still read the feeds, and write the buffers
                drain(here=True)
            raise ModelError(f"ONNX Runtime does not run the step: {first_line(error)}") from error

    def values(self) -> dict[str, Array]:
        """Return copies of the values that the next step reads, by the names of their inputs."""
        with self._lock:
            return {name: kept.now(self._turn).read() for name, kept in self._kept.items()}

    def output(self, name: str) -> Array:
        """Return a copy of an output of the last step that is neither returned nor an update.

        Raises:
            UsageError: `name` is no such output.
        """
        check_known([name], self._stays, "output that stays")
        with self._lock:
            return self._stays[name].buffers[0].read()

    def put(self, values: Mapping[str, Array]) -> None:
        """Set kept inputs, as from a checkpoint, for the next step.

        Raises:
            UsageError: a name is not kept, or its value is of another type or shape.
        """
        check_known(values, self._kept, "kept input")
        given = {name: self._kept[name].buffers[0].kind.checked(v) for name, v in values.items()}
        with self._lock:
            for name, array in given.items():
                now = self._kept[name].now(self._turn)
                if array.shape != now.shape:
                    raise UsageError(
                        f"{name!r} has the shape {list(array.shape)}, and was bound with "
                        f"{list(now.shape)}"
                    )
                now.write(array)
