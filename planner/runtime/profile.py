"""Read ONNX Runtime's profile of a run: executed order, times and bytes per node.

Meaning of a node's memory fields, measured on onnxruntime 1.31, CPU (reports/ort_facts.md):

- they are read when the kernel has returned: the node's outputs are allocated, its inputs are not
  yet released, even where this was their last use; the kernel's own temporary workspace is gone;
- `requested_in_use` counts bytes as requested, `in_use` with the arena's rounding (and remainders
  that could not be split off a chunk);
- feeds are not in the arena. Nor are initializers, except weights that a kernel packs when the
  session is created (a constant MatMul weight, say): these are counted from the first node on;
- graph outputs are counted until the caller drops them, in the next run too if they are kept;
- with the memory pattern, the whole block is in use from the start of the second run;
- `in_use_peak` is the largest `in_use` since the session was created. It is the only field in which
  a kernel's workspace shows, and only where it raises that maximum;
- `..._delta` is the change during the kernel: its outputs (and the arena's growth) only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from planner.errors import ModelError
from planner.files.reading import MAX_BYTES, shown
from planner.files.structuring import read_json
from planner.runtime.arrays import run_arrays
from planner.runtime.messages import explain, first_line
from planner.runtime.swapping import register_for
from planner.targets import HOST

if TYPE_CHECKING:
    import onnxruntime as ort

_KERNEL = "_kernel_time"
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})
_MAX_DIGITS = 20
Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """One kernel, as ONNX Runtime recorded it. Bytes are None where the provider reports none.

    Attributes:
        start_us, duration_us: microseconds; start counts from the creation of the session.
        requested_in_use: bytes requested and not yet freed when the kernel has returned.
        in_use, held: the same with the arena's rounding; bytes the arena has taken.
        in_use_peak: largest `in_use` since the session was created, workspace included.
        requested_delta, in_use_delta: change during the kernel.
        output_bytes: bytes of the node's outputs; output_shapes: dims of each that is there.
        inner_requested: for a node with bodies, the largest `requested_in_use` of the nodes in them; None
            where none of them ran.
    """

    name: str
    op_type: str
    provider: str
    start_us: int
    duration_us: int
    requested_in_use: int | None = None
    in_use: int | None = None
    held: int | None = None
    in_use_peak: int | None = None
    requested_delta: int | None = None
    in_use_delta: int | None = None
    output_bytes: int | None = None
    output_shapes: tuple[tuple[int, ...], ...] = ()
    inner_requested: int | None = None


Run = tuple[NodeEvent, ...]


def create_session(model: Path | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    """Create a session on the CPU, or raise a `ModelError` that names the operator or node that
    prevents it.

    Args:
        model: a path, or the serialized model, for which `options` are not changed.
    """
    import onnxruntime as ort

    if isinstance(model, bytes):
        source, where = model, ""
    else:
        register_for(options, model)
        source, where = str(model), f"{model}: "
    try:
        return ort.InferenceSession(source, options, providers=[HOST.provider])
    except Exception as error:
        raise ModelError(f"{where}{explain(str(error))}") from error


def run_session(
    session: ort.InferenceSession, inputs: Feeds, run_options: ort.RunOptions | None = None
) -> list[npt.NDArray[Any]]:
    """Run a session once; an error of ONNX Runtime becomes a `ModelError` with its first line."""
    try:
        results: list[Any] = run_arrays(session, inputs, run_options=run_options)
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime could not run the model: {first_line(error)}; where other inputs run it, give "
            "them with --inputs"
        ) from error
    return results


def read_profile(path: Path, names: Collection[str] = ()) -> tuple[Run, ...]:
    """Read the node events of a profile file, one tuple per run, in executed order.

    Nodes within a node (the body of a Loop) are left out. An event is written when its node is done:
    events of a body precede their node's event in the file, and start after it.

    Args:
        names: names of the graph's own nodes. They tell a node from one of its body where both start
            in the same microsecond.

    Raises:
        ModelError: the file is no profile of ONNX Runtime.
    """
    wanted = "a profile written by ONNX Runtime (SessionOptions.enable_profiling)"
    entries = read_json(Path(path), list[dict[str, Any]], what=wanted)
    try:
        nodes = [e for e in entries if e.get("cat") == "Node" and e["name"].endswith(_KERNEL)]
        starts = sorted(_count(e["ts"]) for e in entries if e.get("name") == "model_run")
        events = sorted(_outer([_event(e) for e in nodes], names), key=lambda e: e.start_us)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{path} is not {wanted}: {error}") from None
    if not starts:
        return (tuple(events),) if events else ()
    runs: list[list[NodeEvent]] = [[] for _ in starts]
    current = 0
    for event in events:
        while current + 1 < len(starts) and event.start_us >= starts[current + 1]:
            current += 1
        runs[current].append(event)
    return tuple(tuple(run) for run in runs)


def _outer(events: Sequence[NodeEvent], names: Collection[str]) -> list[NodeEvent]:
    """Return events in the order of the file, without those of nodes in bodies."""
    found: list[NodeEvent] = []
    for event in events:
        if event.op_type in _WITH_BODIES:
            inner: list[NodeEvent] = []
            while found and _is_within(found[-1], event, names):
                inner.append(found.pop())
            held = [e.inner_requested or e.requested_in_use or 0 for e in inner]
            event = replace(event, inner_requested=max(held, default=None))
        found.append(event)
    return found


def _is_within(earlier: NodeEvent, event: NodeEvent, names: Collection[str]) -> bool:
    """Tell whether an earlier event ran in a body of an event's node."""
    if earlier.start_us == event.start_us:
        return earlier.name not in names
    return earlier.start_us > event.start_us


def _event(entry: Mapping[str, Any]) -> NodeEvent:
    args = entry["args"]

    def number(key: str) -> int | None:
        return _count(args[key], negative=key.endswith("_delta")) if key in args else None

    return NodeEvent(
        name=entry["name"].removesuffix(_KERNEL),
        op_type=args["op_name"],
        provider=args.get("provider", ""),
        start_us=_count(entry["ts"]),
        duration_us=_count(entry["dur"]),
        requested_in_use=number("mem_bytes_requested_in_use"),
        in_use=number("mem_bytes_in_use"),
        held=number("mem_arena_held"),
        in_use_peak=number("mem_in_use_peak"),
        requested_delta=number("mem_requested_in_use_delta"),
        in_use_delta=number("mem_in_use_delta"),
        output_bytes=number("output_size"),
        output_shapes=_shapes(args.get("output_type_shape", ())),
    )


def _shapes(entries: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    """Return the dims of a node's outputs from `[{"float": [2, 3]}, ...]`."""
    return tuple(tuple(_count(d) for d in dims) for e in entries for dims in e.values())


def _count(value: Any, *, negative: bool = False) -> int:
    """Return a whole number of a profile, in which some are texts.

    Raises:
        ValueError: the value is none, or beyond `MAX_BYTES`, or below 0 without `negative`.
    """
    number = int(value) if isinstance(value, str) and len(value) <= _MAX_DIGITS else value
    if type(number) is float and 0 <= number <= MAX_BYTES:  # traces have parts of microseconds
        number = int(number)
    if type(number) is not int or abs(number) > MAX_BYTES or (number < 0 and not negative):
        raise ValueError(f"{shown(value)} is no count of bytes or microseconds")
    return number
