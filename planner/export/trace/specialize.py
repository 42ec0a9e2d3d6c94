"""Values that a module's Python reads of tensors, taken from a run on the example inputs.

`if mask.any():` and `labels.nonzero()` decide what is computed next, and a trace on shapes has no values.
On request, the step runs once, and records each value that it reads by source line. The trace is then
given the same values, and the graph holds for inputs that give the same values. Values that depend on
parameters, or on state that the step moves, change with every step and are rejected: a run with other
parameters, and one with the buffers that the first has left, find them.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from planner.errors import UsageError
from planner.export.errors import DataDependentControlFlow, MovingRead
from planner.export.lines import line_of_user

_NUMBERS: Mapping[Any, Callable[[Any], Any]] = {
    Tensor.__bool__: bool,
    Tensor.__float__: float,
    Tensor.__index__: int,
    Tensor.__int__: int,
    Tensor.item: lambda number: number,
    torch.is_nonzero: bool,
}
"""Functions that read one number, and the conversion of that number.

One record serves all of them: inside PyTorch's tracer `bool(x)` arrives as `x.item()`.
"""

_OTHERS: frozenset[Any] = frozenset(
    {Tensor.__contains__, Tensor.equal, Tensor.tolist, torch.allclose, torch.equal}
)
"""More functions of tensors whose result is not a tensor."""

_PLACES: frozenset[Any] = frozenset(
    {
        Tensor.argwhere, Tensor.nonzero, Tensor.unique, torch.argwhere, torch.nonzero, torch.unique,
    }
)  # fmt: skip
"""Functions whose result has a length that depends on values, and no gradient."""

_MADE: frozenset[Any] = frozenset({torch.arange, torch.empty, torch.full, torch.ones, torch.zeros})
_SIZED: frozenset[Any] = frozenset(
    {
        F.interpolate, F.pad, Tensor.clamp, Tensor.expand, Tensor.narrow, Tensor.new_full,
        Tensor.new_ones, Tensor.new_zeros, Tensor.repeat, Tensor.reshape, Tensor.view, torch.clamp,
        torch.narrow, torch.reshape, torch.tile,
    }
)  # fmt: skip
"""Functions that take sizes and bounds, which may be tensors of one integer.

`_MADE` creates tensors; `_SIZED` takes a tensor as its first argument.
"""

_INTEGERS = frozenset({torch.int64, torch.int32})

_INDEXED: frozenset[Any] = frozenset({Tensor.__getitem__, Tensor.__setitem__})

_CHANGE = 0.5
"""Change of each parameter for the second run, in its own standard deviations."""

_SHOWN = 8
"""Number of elements up to which a tensor is printed in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One recorded read: its source line, the function that read, and the value."""

    line: str
    function: str
    value: Any

    def __str__(self) -> str:
        shown = self.value
        if isinstance(shown, Tensor):
            shown = shown.tolist() if shown.numel() <= _SHOWN else f"of shape {list(shown.shape)}"
        return f"{self.line.rpartition('site-packages/')[2]} ({self.function}): {shown}"


def read_in_a_run(
    run: Callable[[dict[str, Tensor]], object],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> tuple[Read, ...]:
    """Run a step; return the values that it reads of its tensors, in order.

    Args:
        run: runs the step on parameters and buffers by name, which it may change.

    Raises:
        UsageError: a tensor is on the meta device and has no values.
        DataDependentControlFlow: a value that is read changes with the parameters, or with the buffers
            that the step before left.
    """
    away = next((n for n, t in {**parameters, **buffers}.items() if t.is_meta), None)
    if away is not None:
        raise UsageError(
            f"{away!r} is on the meta device: specialize runs the step to see which values it "
            "reads; leave out specialize, or give the module values"
        )
    found, left = _run(run, parameters, buffers)
    others = {name: _changed(t) for name, t in parameters.items()}
    if (read := _other(found, _run(run, others, buffers)[0])) is not None:
        raise DataDependentControlFlow(
            read.line, f"the result of {read.function} changes with the parameters"
        )
    if (read := _other(found, _run(run, parameters, left)[0])) is not None:
        raise MovingRead(read.line, read.function)
    return found


def _other(found: Sequence[Read], again: Sequence[Read]) -> Read | None:
    """Return the first read that gives another value in another run."""
    for index, read in enumerate(found):
        if index >= len(again) or not _same(read, again[index]):
            return read
    return None


def _run(
    run: Callable[[dict[str, Tensor]], object],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> tuple[tuple[Read, ...], dict[str, Tensor]]:
    """Run a step on copies; return the values that it reads, and the buffers as it leaves them."""
    tensors = {name: tensor.detach().clone() for name, tensor in {**parameters, **buffers}.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=()), _Recording() as recording:
        torch.manual_seed(0)
        run(tensors)
    return tuple(recording.found), {name: tensors[name] for name in buffers}


def _changed(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return tensor.detach() + _CHANGE * (tensor.detach().float().std(correction=0) + 0.1) * noise


def _same(one: Read, other: Read) -> bool:
    if (one.line, one.function) != (other.line, other.function):
        return False
    if isinstance(one.value, Tensor):
        return isinstance(other.value, Tensor) and torch.equal(one.value, other.value)
    return one.value == other.value


class _Recording(TorchFunctionMode):
    """A mode that records the values that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Read] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _with_sizes(func, args, kwargs or {}, self._size)
        for mask in _masks(func, args):
            self._keep("nonzero", mask.nonzero())
        result = func(*args, **kwargs)
        if func in _NUMBERS:
            self._keep("item", args[0].item())
        elif func in _OTHERS or func in _PLACES or _is_where(func, args, kwargs):
            held = torch.stack(result, 1) if isinstance(result, tuple) else result
            self._keep(func.__name__, held)
        return result

    def _size(self, tensor: Tensor) -> Any:
        self._keep("item", tensor.item())
        return tensor.item()

    def _keep(self, function: str, value: Any) -> None:
        line = line_of_user(traceback.extract_stack())
        self.found.append(Read(line=line, function=function, value=value))


class Told(TorchFunctionMode):
    """A mode that replays the values of a recorded run, by source line and in the order of that run.

    Reads on a line without records run normally.
    """

    def __init__(self, reads: Sequence[Read]) -> None:
        super().__init__()
        by_place: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for read in reads:
            by_place[read.line, read.function].append(read.value)
        self._left: dict[tuple[str, str], Iterator[Any]] = {
            place: iter(values) for place, values in by_place.items()
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _with_sizes(func, args, kwargs or {}, self._size)
        if func in _NUMBERS:
            known, value = self._next("item")
            if known:
                return _NUMBERS[func](value)
        elif func in _OTHERS or func in _PLACES or _is_where(func, args, kwargs):
            known, value = self._next(func.__name__)
            if known and (kwargs.get("as_tuple") or _is_where(func, args, kwargs)):
                return value.unbind(1)
            if known:
                return value
        elif any(True for _ in _masks(func, args)):
            return func(args[0], self._indices(args[1]), *args[2:], **kwargs)
        return func(*args, **kwargs)

    def _size(self, tensor: Tensor) -> Any:
        known, value = self._next("item")
        return value if known else tensor

    def _next(self, function: str) -> tuple[bool, Any]:
        place = line_of_user(traceback.extract_stack()), function
        for value in self._left.get(place, iter(())):
            return True, value.clone() if isinstance(value, Tensor) else value
        return False, None

    def _indices(self, index: Any) -> Any:
        """Return an index with each mask replaced by the positions of its True elements."""
        places: list[Any] = []
        for part in index if isinstance(index, tuple) else (index,):
            _, value = self._next("nonzero") if _is_mask(part) else (False, None)
            places.extend(value.unbind(1) if value is not None else (part,))
        return tuple(places)


def _with_sizes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], size: Callable[[Tensor], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with a number for each tensor that is a size or a bound of a slice."""

    def read(part: Any) -> Any:
        if isinstance(part, tuple | list) and type(part) in (tuple, list, torch.Size):
            return tuple(read(item) for item in part)
        if isinstance(part, slice):
            return slice(read(part.start), read(part.stop), read(part.step))
        if not isinstance(part, Tensor) or part.dim() or part.dtype not in _INTEGERS:
            return part
        return size(part)

    def bounds(part: Any) -> Any:
        return read(part) if isinstance(part, slice) else part

    if func in _MADE or func in _SIZED:
        first = 0 if func in _MADE else 1
        numbers = (*args[:first], *map(read, args[first:]))
        return numbers, {name: read(part) for name, part in kwargs.items()}
    if func in _INDEXED:
        index = args[1]
        inner = tuple(map(bounds, index)) if isinstance(index, tuple) else bounds(index)
        return (args[0], inner, *args[2:]), dict(kwargs)
    return tuple(args), dict(kwargs)


def _masks(func: Any, args: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the masks in an index whose number of selected elements depends on their values.

    In an assignment, yield the mask only if it is assigned one value per selected element.
    """
    if func is Tensor.__setitem__ and _is_mask(args[1]) and isinstance(args[2], Tensor):
        each = args[2].dim() == args[0].dim() - args[1].dim() + 1 and args[2].shape[0] != 1
        yield from (args[1],) if each else ()
    if func is Tensor.__getitem__:
        index = args[1]
        yield from (p for p in (index if isinstance(index, tuple) else (index,)) if _is_mask(p))


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool and part.dim() > 0


def _is_where(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call is `torch.where(mask)`, which returns positions."""
    return func is torch.where and len(args) + len(kwargs) == 1
