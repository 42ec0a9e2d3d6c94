"""Memory of values that stay in place: where a session reads or writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from planner.runtime.arrays import storable
from planner.runtime.binding.kinds import Array, FeedKind
from planner.targets import HOST, devices

if TYPE_CHECKING:
    import onnxruntime as ort

Place = Literal["device", "page-locked", "host"]
HOST_MEMORY = HOST.memory.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where a session reads or writes a value.

    Attributes:
        info: ONNX Runtime's description of a plug-in's memory, whose values have no address; None
            elsewhere.
        device: name and number of the device, as in a binding.
    """

    place: Place = "host"
    device: tuple[str, int] = (HOST_MEMORY, 0)
    info: Any = None


_PAGE_LOCKED = Where(place="page-locked")


@dataclass(slots=True, kw_only=True)
class Buffer:
    """Memory of one value; `owner` keeps it alive: an array, or a value on a device."""

    where: Where
    kind: FeedKind
    shape: tuple[int, ...]
    owner: Any

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.where.place

    def bind(self, binding: Any, name: str, *, is_output: bool) -> None:
        """Have a binding read an input, or write an output, in this memory."""
        put = binding.bind_output if is_output else binding.bind_input
        if self.where.info is not None:
            put = binding.bind_ortvalue_output if is_output else binding.bind_ortvalue_input
            put(name, self.owner)
            return
        on_device = self.place == "device"
        pointer = self.owner.data_ptr() if on_device else self.owner.ctypes.data
        put(name, *self.where.device, self.kind.onnx_type, self.shape, pointer)

    def write(self, array: Array) -> None:
        """Copy an array of its type and shape into it."""
        if self.place == "device":
            self.owner.update_inplace(storable(array))
        else:
            self.owner[...] = array

    def read(self) -> Array:
        """Return a copy of its elements."""
        found = self.owner.numpy() if self.place == "device" else self.owner.copy()
        return found.view(self.kind.dtype)


def buffers(kind: FeedKind, array: Array, where: Where, *, count: int) -> list[Buffer]:
    """Allocate `count` buffers like an array; the first gets its elements."""
    made = [_buffer(kind, array, where) for _ in range(count)]
    if where.place != "device" or where.info is not None:  # there it is copied as it is made
        made[0].write(array)
    return made


def _buffer(kind: FeedKind, array: Array, where: Where) -> Buffer:
    if where.place == "device":
        owner: Any = _on_device(kind, array, where)
    else:
        owner = _page_locked(array) if where.place == "page-locked" else None
        where = Where() if owner is None else where
        owner = np.empty_like(array, subok=False) if owner is None else owner
    return Buffer(where=where, kind=kind, shape=array.shape, owner=owner)


def _on_device(kind: FeedKind, array: Array, where: Where) -> Any:
    import onnxruntime as ort

    if where.info is None:
        return ort.OrtValue.ortvalue_from_numpy(storable(array), *where.device)
    make = ort.OrtValue.ortvalue_from_shape_and_type
    return make(array.shape, kind.onnx_type, memory_info=where.info)


def _page_locked(array: Array) -> Array | None:
    """Return a page-locked array like `array`; None where there is none."""
    from planner.native import is_built, page_locked

    memory = page_locked(array.nbytes) if is_built() and array.nbytes else None
    return None if memory is None else np.ndarray(array.shape, array.dtype, memory)


def places(session: ort.InferenceSession) -> tuple[dict[str, Where], dict[str, Where]]:
    """Return where a device session reads its inputs and writes its outputs.

    An initializer that is kept is read on the host. Both results are empty where the session is on no
    device.
    """
    found = session.get_providers()
    row = next((row for row in devices() if row.memory and row.provider in found), None)
    if row is None:
        return {}, {}
    is_plugin = bool(row.plugin)
    read = {item.name: _PAGE_LOCKED for item in session.get_overridable_initializers()}
    read |= _told(session.get_inputs(), session.get_input_memory_infos(), row.memory, is_plugin)
    made = _told(session.get_outputs(), session.get_output_memory_infos(), row.memory, is_plugin)
    return read, made


def _told(
    items: Sequence[Any], infos: Sequence[Any], memory: str, is_plugin: bool
) -> dict[str, Where]:
    def where(info: Any) -> Where:
        if info.name != memory:
            return _PAGE_LOCKED
        device = (memory.lower(), info.device_id)
        return Where(place="device", device=device, info=info if is_plugin else None)

    return {item.name: where(info) for item, info in zip(items, infos, strict=True)}


def is_captured(session: ort.InferenceSession) -> bool:
    """Tell whether a session replays the launches of a step (`planner.open_session`,
    `graph_capture`)."""
    options = session.get_provider_options()
    return any(
        options.get(row.provider, {}).get(row.capture) == "1" for row in devices() if row.capture
    )
