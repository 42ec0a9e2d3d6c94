"""Bind parameters and optimizer state to buffers that stay in place between steps of a training loop.

    values of a name     first step     second step     third step
    one buffer           read           written         read
    the other            written        read            written

A graph reads its state as inputs and writes the new state as outputs. Both buffers are allocated once: on
the device where the session reads that input there, page-locked on the host where a session on a device
reads it there, and as NumPy arrays elsewhere. ONNX Runtime reads and writes these buffers directly,
and no step copies the state. A plan counts both, as the file has them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from planner.errors import ModelError, UsageError
from planner.files.reading import closest
from planner.runtime.arrays import storable, to_numpy
from planner.runtime.messages import first_line
from planner.targets import HOST, devices

if TYPE_CHECKING:
    import onnxruntime as ort

Array = npt.NDArray[Any]
Place = Literal["device", "page-locked", "host"]

UPDATED = "_new"
"""The suffix that an input's name gets to name the output with its next value."""

_HOST = HOST.memory.lower()


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
    _check_known(values, inputs, "input")
    if updates is None:
        updates = {name: name + UPDATED for name in values if name + UPDATED in outputs}
    _check_known(updates, values, "kept input")
    _check_known(updates.values(), outputs, "output")
    if results is None:
        results = [name for name in outputs if name not in updates.values()]
    _check_known(results, outputs, "output")
    given = {name: inputs[name].checked(value) for name, value in values.items()}
    for name, update in updates.items():
        outputs[update].check_updates(inputs[name], given[name].shape)
    places, made_in = _places(session)
    kept = {
        name: _Kept(
            kind=inputs[name],
            update=updates.get(name),
            buffers=_buffers(array, places.get(name, _ON_HOST), count=1 + (name in updates)),
        )
        for name, array in given.items()
    }
    stays = {
        name: _Kept(
            kind=kind,
            update=None,
            buffers=_buffers(kind.empty(), made_in.get(name, _ON_HOST), count=1),
        )
        for name, kind in outputs.items()
        if name not in results and name not in updates.values()
    }
    shown = {name: outputs[name] for name in results}
    return Bound(session, kept, {n: k for n, k in needed.items() if n not in kept}, shown, stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedKind:
    """Name, type and shape of an input or output.

    Attributes:
        onnx_type: ONNX's number of its element type.
        dims: its dims; an open one is a name, or None.
    """

    name: str
    onnx_type: int
    dims: tuple[int | str | None, ...]

    @staticmethod
    def of(item: Any) -> FeedKind:
        """Return the kind of a session's input or output.

        Raises:
            UsageError: `item` is no tensor of numbers.
        """
        text = item.type.removeprefix("tensor(").removesuffix(")")
        number = getattr(TensorProto, text.upper(), None)
        if not item.type.startswith("tensor(") or number in (None, TensorProto.STRING):
            raise UsageError(
                f"{item.name!r} is {item.type}: planner.bind keeps tensors of numbers; use session.run"
            )
        return FeedKind(name=item.name, onnx_type=number, dims=tuple(item.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of an array of this kind."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.onnx_type))

    def empty(self) -> Array:
        """Allocate an array of this kind.

        Raises:
            UsageError: the kind has open dims.
        """
        shape = [dim for dim in self.dims if isinstance(dim, int)]
        if len(shape) < len(self.dims):
            raise UsageError(
                f"the output {self.name!r} has open dims {list(self.dims)}: name it among the results"
            )
        return np.empty(shape, self.dtype)

    def checked(self, value: Array) -> Array:
        """Return the value as a contiguous array.

        Raises:
            UsageError: the value is no array of this type and shape.
        """
        array = np.asarray(value)
        if array.dtype != self.dtype:
            raise UsageError(
                f"{self.name!r} is an array of {array.dtype}, and the session reads {self.dtype}: "
                f"convert it (.astype({str(self.dtype)!r}))"
            )
        if len(array.shape) != len(self.dims) or any(
            isinstance(dim, int) and dim != size
            for dim, size in zip(self.dims, array.shape, strict=True)
        ):
            raise UsageError(
                f"{self.name!r} has the shape {list(array.shape)}, and the session reads "
                f"{list(self.dims)}"
            )
        return array if array.flags.c_contiguous else np.array(array, order="C")

    def check_updates(self, before: FeedKind, shape: Sequence[int]) -> None:
        """Raise UsageError unless an output like this can be fed as the input `before` of this shape."""
        fits = len(self.dims) == len(shape) and all(
            not isinstance(dim, int) or dim == size
            for dim, size in zip(self.dims, shape, strict=False)
        )
        if self.onnx_type != before.onnx_type or not fits:
            raise UsageError(
                f"the output {self.name!r} ({self.dtype}, {list(self.dims)}) cannot be the next value of "
                f"the input {before.name!r} ({before.dtype}, {list(shape)}): name the pairs (updates=)"
            )


@dataclass(slots=True, kw_only=True)
class _Buffer:
    """Memory of one value.

    `owner` keeps it alive: an array, or a value on a device. `device` is the device's name and
    number, as in a binding.
    """

    place: Place
    device: tuple[str, int]
    shape: tuple[int, ...]
    owner: Any

    @property
    def pointer(self) -> int:
        """The address of the memory."""
        return self.owner.data_ptr() if self.place == "device" else self.owner.ctypes.data

    def write(self, array: Array) -> None:
        """Copy an array of its type and shape into it."""
        if self.place == "device":
            self.owner.update_inplace(storable(array))
        else:
            self.owner[...] = array

    def read(self, dtype: np.dtype[Any]) -> Array:
        """Return a copy of its elements."""
        found = self.owner.numpy() if self.place == "device" else self.owner.copy()
        return found.view(dtype)


@dataclass(slots=True, kw_only=True)
class _Kept:
    """An input that stays in place; `update` is the output with its next value, or None."""

    kind: FeedKind
    update: str | None
    buffers: list[_Buffer]


@dataclass(slots=True)
class Bound:
    """A session whose parameters and state stay in place; `planner.bind` makes it.

    Steps run one at a time, whatever the number of threads. A step that fails leaves the values
    unchanged.
    """

    session: ort.InferenceSession
    _kept: dict[str, _Kept]
    _feeds: dict[str, FeedKind]
    _results: dict[str, FeedKind]
    _stays: dict[str, _Kept]
    _bindings: list[Any] = field(init=False)
    _turn: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._bindings = [self.session.io_binding() for _ in range(2)]
        for turn, binding in enumerate(self._bindings):
            for name, kept in self._kept.items():
                now, then = kept.buffers[turn % len(kept.buffers)], kept.buffers[turn - 1]
                kind = kept.kind.onnx_type
                binding.bind_input(name, *now.device, kind, now.shape, now.pointer)
                if kept.update is not None:
                    binding.bind_output(kept.update, *then.device, kind, then.shape, then.pointer)
            for name, left in self._stays.items():
                (to,) = left.buffers
                binding.bind_output(name, *to.device, left.kind.onnx_type, to.shape, to.pointer)

    @property
    def places(self) -> dict[str, Place]:
        """The place of each kept input, and of each output that stays."""
        return {name: kept.buffers[0].place for name, kept in {**self._kept, **self._stays}.items()}

    def step(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; its updates are the next step's inputs.

        Args:
            feeds: all inputs that are not kept. They are not copied.

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
        _check_known(feeds, self._feeds, "input")
        missing = next((name for name in self._feeds if name not in feeds), None)
        if missing is not None:
            raise UsageError(
                f"the input {missing!r} is neither kept nor fed: give it to step(), or to planner.bind"
            )
        given = {name: kind.checked(feeds[name]) for name, kind in self._feeds.items()}
        with self._lock:
            return self._run(given)

    def _run(self, given: dict[str, Array]) -> dict[str, Array]:
        from planner.native import drain, is_built

        binding = self._bindings[self._turn]
        for name, array in given.items():
            kind, pointer = self._feeds[name].onnx_type, array.ctypes.data
            binding.bind_input(name, _HOST, 0, kind, array.shape, pointer)
        made: dict[str, Array] = {}
        for name, kind in self._results.items():
            if all(isinstance(dim, int) for dim in kind.dims):
                array = made[name] = kind.empty()
                binding.bind_output(name, _HOST, 0, kind.onnx_type, array.shape, array.ctypes.data)
            else:
                binding.bind_output(name, _HOST)
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:
            if is_built():  # copies of the run may still read the feeds, and write the buffers
                drain(here=True)
            raise ModelError(f"ONNX Runtime does not run the step: {first_line(error)}") from error
        self._turn = 1 - self._turn
        if len(made) == len(self._results):
            return made
        names = [kept.update for kept in self._kept.values() if kept.update is not None]
        found = dict(
            zip([*names, *self._stays, *self._results], binding.get_outputs(), strict=True)
        )
        return {n: made[n] if n in made else to_numpy(found[n]) for n in self._results}

    def values(self) -> dict[str, Array]:
        """Return copies of the values that the next step reads, by the names of their inputs."""
        with self._lock:
            return {
                name: kept.buffers[self._turn % len(kept.buffers)].read(kept.kind.dtype)
                for name, kept in self._kept.items()
            }

    def output(self, name: str) -> Array:
        """Return a copy of an output of the last step that is neither returned nor an update.

        Raises:
            UsageError: `name` is no such output.
        """
        _check_known([name], self._stays, "output that stays")
        with self._lock:
            return self._stays[name].buffers[0].read(self._stays[name].kind.dtype)

    def put(self, values: Mapping[str, Array]) -> None:
        """Set kept inputs, as from a checkpoint, for the next step.

        Raises:
            UsageError: a name is not kept, or its value is of another type or shape.
        """
        _check_known(values, self._kept, "kept input")
        given = {name: self._kept[name].kind.checked(value) for name, value in values.items()}
        with self._lock:
            for name, array in given.items():
                buffers = self._kept[name].buffers
                now = buffers[self._turn % len(buffers)]
                if array.shape != now.shape:
                    raise UsageError(
                        f"{name!r} has the shape {list(array.shape)}, and was bound with "
                        f"{list(now.shape)}"
                    )
                now.write(array)


def _check_known(names: Any, known: Mapping[str, Any], what: str) -> None:
    strange = next((name for name in names if name not in known), None)
    if strange is not None:
        close = closest(strange, list(known), "are", most=3)
        raise UsageError(f"there is no {what} {strange!r}{close}")


_Where = tuple[Place, tuple[str, int]]
_Places = dict[str, _Where]
_ON_HOST: _Where = ("host", (_HOST, 0))


def _places(session: ort.InferenceSession) -> tuple[_Places, _Places]:
    """Return the places of a device session's inputs and outputs.

    An initializer that is kept is read on the host. Both results are empty where the device's memory
    cannot be bound.
    """
    found = session.get_providers()
    memory = next((row.memory for row in devices() if row.memory and row.provider in found), "")
    if not memory:
        return {}, {}
    optional = session.get_overridable_initializers()
    read: _Places = {item.name: ("page-locked", (_HOST, 0)) for item in optional}
    read |= _told(session.get_inputs(), session.get_input_memory_infos(), memory)
    return read, _told(session.get_outputs(), session.get_output_memory_infos(), memory)


def _told(items: Sequence[Any], infos: Sequence[Any], memory: str) -> _Places:
    return {
        item.name: ("device", (memory.lower(), info.device_id))
        if info.name == memory
        else ("page-locked", (_HOST, 0))
        for item, info in zip(items, infos, strict=True)
    }


def _buffers(array: Array, where: _Where, *, count: int) -> list[_Buffer]:
    """Allocate `count` buffers like an array; the first gets its elements."""
    place, device = where
    made: list[_Buffer] = []
    for i in range(count):
        if place == "device":
            import onnxruntime as ort

            owner: Any = ort.OrtValue.ortvalue_from_numpy(storable(array), *device)
        else:
            owner = _page_locked(array) if place == "page-locked" else None
            place = "host" if owner is None else "page-locked"
            owner = np.empty_like(array, subok=False) if owner is None else owner
        made.append(_Buffer(place=place, device=device, shape=array.shape, owner=owner))
        if i == 0 and place != "device":
            made[0].write(array)
    return made


def _page_locked(array: Array) -> Array | None:
    """Return a page-locked array like `array`; None where there is none."""
    from planner.native import is_built, page_locked

    memory = page_locked(array.nbytes) if is_built() and array.nbytes else None
    return None if memory is None else np.ndarray(array.shape, array.dtype, memory)
