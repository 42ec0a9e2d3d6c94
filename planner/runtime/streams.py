"""Copies on streams of their own: ONNX Runtime's partition of nodes into streams, and why not to use it.

A session takes a partition from the file that `session.node_partition_config_file` names; where there
is no such file, it writes its own one there:

    {"type": "DeviceBasedPartitioner",
     "streams": [["f0", "f1"], ["out0"], ["in0"], ["size"]],
     "devices": ["1", "1", "1", "0"]}                          "0" is the CPU, "1" a GPU

Every node is in it, by its name after ONNX Runtime's optimizers and copies of its own. `separate` puts
the copies of each device into two streams, one for each way.

It works, and results are the same on a software device (`reports/overlap.md`), but ONNX Runtime's own
source says that they need not be on a GPU with real streams, and on an H100 none of 300 steps gave them
(`reports/cuda.md`). Names are of ONNX Runtime 1.2x-1.31:

- A buffer is released on the host when its last reader was *issued* (`GenerateDeallocationPlan` in
  core/framework/allocation_planner.cc counts readers, `RecycleNodeInputs` in
  core/framework/stream_execution_context.cc frees). A copy out may still be reading it then.
- The arena hands a free chunk to the stream that it was allocated on without a wait (`safe_to_use` in
  `FindChunkPtr` of core/framework/bfc_arena.cc, and of the CUDA plugin's cuda_arena.cc): the next
  operation writes where the copy out still reads. A swapped-in tensor is the same the other way round.
- Another stream gets the chunk if it waited for an event after the chunk was *allocated*, not after it
  was last read (`stream_sync_id` there, stamped when a chunk is taken): the copy in writes where an
  operation still reads. No node in the file can mend that: what a copy in waits for is its one input.
- A copy in does wait for its copy out, on the host (`BuildExecutionPlan` in allocation_planner.cc takes
  the wait of a tensor in host memory; cuda_stream_handle.cc, `WaitCudaNotificationOnHost`).
- In its default mode one thread issues all streams, each as far as it can before the next one begins
  (`RunSince` and `ScheduleDownstream` without a thread pool): copies out are issued only when the
  operations wait for something, so the memory that they are to free is freed late.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.files.reading import read_bytes, shown
from planner.files.structuring import parse_json
from planner.files.temporary import temporary_folder
from planner.onnxio.texts import check_texts
from planner.targets import (
    LEVEL_KEY,
    OPTIONS_KEY,
    TARGET_KEY,
    TARGETS,
    Target,
    target_named,
)

if TYPE_CHECKING:
    import onnxruntime as ort

PARTITION_ENTRY = "session.node_partition_config_file"
CPU = "0"
OPERATIONS, COPIES_OUT, COPIES_IN = "operations", "MemcpyToHost", "MemcpyFromHost"
UNSAFE = (
    "copies on streams of their own: ONNX Runtime may reuse a buffer while a copy still reads or "
    "writes it, and frees swapped tensors later than planned"
)
_TYPE = "DeviceBasedPartitioner"

MakeSession = Callable[["ort.SessionOptions"], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Names of nodes by stream, in the order in which they run there, and the device of each stream."""

    streams: tuple[tuple[str, ...], ...]
    devices: tuple[str, ...]

    def text(self) -> str:
        """The file that ONNX Runtime reads."""
        streams = [list(names) for names in self.streams]
        return json.dumps({"type": _TYPE, "streams": streams, "devices": list(self.devices)}) + "\n"


def read_partition(path: Path) -> Partition:
    """A partition file.

    Raises:
        UsageError: it is none.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["type"] != _TYPE or len(data["streams"]) != len(data["devices"]):
            raise ValueError(f"not a {_TYPE}")
        return Partition(
            streams=tuple(tuple(names) for names in data["streams"]),
            devices=tuple(str(device) for device in data["devices"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is not a partition into streams ({error})") from None


def present_partition(make_session: MakeSession, options: ort.SessionOptions) -> Partition:
    """The partition that ONNX Runtime makes by itself: one stream for each device.

    Args:
        arena: "24GB": the most that ONNX Runtime's arena may hold, on the CPU or on CUDA, in one region
            whose chunks are all split. It is registered for the process. On CUDA all that is on the
            device is in it, on the CPU neither inputs nor initializers.
        make_session: opens the model with the options given.
        options: those that the model will be opened with; the partition's entry is set on them.
    """
    with temporary_folder() as folder:
        path = folder / "streams.json"
        options.add_session_config_entry(PARTITION_ENTRY, str(path))
        session = make_session(options)
        del session
        return read_partition(path)


def separate(partition: Partition, op_types: Mapping[str, str]) -> Partition:
    """Three streams for each device (operations, copies out, copies in), and one for each CPU.

    Args:
        op_types: of the nodes in the file; what ONNX Runtime added itself stays with the operations.
    """
    streams: list[tuple[str, ...]] = []
    devices: list[str] = []
    for names, device in zip(partition.streams, partition.devices, strict=True):
        parts: dict[str, list[str]] = {OPERATIONS: [], COPIES_OUT: [], COPIES_IN: []}
        for name in names:
            kind = op_types.get(name, OPERATIONS)
            parts[kind if device != CPU and kind in parts else OPERATIONS].append(name)
        found = [tuple(part) for part in parts.values() if part]
        streams += found
        devices += [device] * len(found)
    return Partition(streams=tuple(streams), devices=tuple(devices))


def streams_path(model: Path) -> Path:
    """Where the partition of a model lies: `model.streams.json` beside `model.onnx`."""
    return model.with_suffix(".streams.json")


def write_streams(model: Path, make_session: MakeSession, options: ort.SessionOptions) -> Partition:
    """Write the partition that has copies on streams of their own beside the model; the options name
    it from then on.

    Args:
        make_session: opens the model with the options given, on the device it is for.
        options: those that the model will be opened with: names of nodes depend on them.
    """
    partition = separate(present_partition(make_session, options), _op_types(model))
    path = streams_path(model)
    path.write_text(partition.text(), encoding="utf-8")
    options.add_session_config_entry(PARTITION_ENTRY, str(path))
    return partition


def session_options(
    model: Path | str,
    *,
    device: str | None = None,
    copies: str = "serial",
    order: str = "default",
    arena: str | None = None,
    make_session: MakeSession | None = None,
) -> ort.SessionOptions:
    """Options to open a rewritten model with: neither memory pattern nor reuse, which hold more than
    the plan does. A provider that is a plug-in is in them, with the options that the file asks for;
    so is the level ORT_DISABLE_ALL for a file that was planned for it.

    Args:
        model: the rewritten model.
        device: where it will run: cpu, webgpu or cuda; None for what the file says.
        copies: "serial" leaves them on the stream of the operations, as ONNX Runtime does by itself.
            "overlapped" writes `MODEL.streams.json` and applies it, for experiments: results are not
            safe, nor is the budget, and a warning says so.
        order: "priority" for a plan that was made for that execution order.
        make_session: opens the model with the options given, where `device` does not say how.

    Raises:
        UsageError: there is no device whose copies could have streams of their own; the device is not
            here; or the file was written for another one, or for another kind of processor.
    """
    from planner.runtime.device.provider import webgpu_devices
    from planner.runtime.device.sessions import check_provider
    from planner.runtime.optimizers.blocked import check_block
    from planner.runtime.options import cap_arena, hold_no_more
    from planner.runtime.options import session_options as plain_options
    from planner.units import parse_bytes

    path = Path(model)
    if copies not in ("serial", "overlapped"):
        raise UsageError(f"copies are serial or overlapped here, not {copies!r}")
    if order not in ("default", "priority"):
        raise UsageError(f"execution order is default or priority, not {order!r}")
    props = _properties(path)
    check_block(props, str(path))
    target = _target_of(path, props, device)
    options = plain_options(
        order="priority" if order == "priority" else "default",
        level="disabled" if props.get(LEVEL_KEY) == "disabled" else "all",
    )
    options.log_severity_level = 2
    hold_no_more(options)
    if arena is not None:
        if target.is_arena:
            check_provider(target)
        cap_arena(options, parse_bytes(arena, what="arena"), device=target.name)
    if target.plugin:
        check_provider(target)
        options.add_provider_for_devices(list(webgpu_devices()[:1]), dict(target.options))
    if copies == "serial":
        return options
    if make_session is None:
        if not target.own_memory:
            raise UsageError("copies overlap on a device with streams; the CPU has none")
        make_session = _opens(path, target)
    warnings.warn(UNSAFE, stacklevel=2)
    write_streams(path, make_session, options)
    return options


def _properties(path: Path) -> dict[str, str]:
    """Metadata of a model file."""
    import onnx

    data = read_bytes(path, what="a model", error=UsageError, at_most=(1 << 31) - 1)
    try:
        model = onnx.load_model_from_string(data)
        check_texts(model, str(path))
    except Exception as error:
        raise UsageError(f"{path} is not a model ({type(error).__name__})") from None
    return {p.key: p.value for p in model.metadata_props}


def _target_of(path: Path, props: Mapping[str, str], device: str | None) -> Target:
    """The target that a file was written for, with the provider options that it asks for."""
    written_for = props.get(TARGET_KEY)
    if written_for is not None and written_for not in TARGETS:
        raise UsageError(f"{path}: its metadata {TARGET_KEY} names no device: {written_for!r}")
    if device is not None and written_for not in (None, device):
        raise UsageError(f"{path} was written for {written_for}, not for {device}")
    target = target_named(device or written_for or "cpu")
    if OPTIONS_KEY not in props:
        return target
    return replace(target, options=_provider_options(props[OPTIONS_KEY], target, path))


def _provider_options(text: str, target: Target, path: Path) -> dict[str, str]:
    """The provider options that a file asks for: of those that planner writes, and no others, since
    some make a provider write files or load libraries."""
    what = f"a model with provider options that planner wrote ({OPTIONS_KEY})"
    options = parse_json(text, dict[str, str], where=str(path), what=what, error=UsageError)
    known = {*target.options, target.keep_option} - {""}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise UsageError(f"{path} is not {what}: it asks for {shown(unknown[0])}")
    return options


def _opens(model: Path, target: Target) -> MakeSession:
    from planner.runtime.device.sessions import check_provider

    check_provider(target)
    providers = (
        [] if target.plugin else [(target.provider, dict(target.options)), "CPUExecutionProvider"]
    )

    def open_it(options: ort.SessionOptions) -> object:
        import onnxruntime as ort

        return ort.InferenceSession(model, options, providers=providers or None)

    return open_it


def _op_types(model: Path) -> dict[str, str]:
    import onnx_ir as ir

    return {str(node.name): node.op_type for node in ir.load(model).graph}
