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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.files.temporary import temporary_folder

if TYPE_CHECKING:
    import onnxruntime as ort

    from planner.runtime.opened import MakeSession

PARTITION_ENTRY = "session.node_partition_config_file"
CPU = "0"
OPERATIONS, COPIES_OUT, COPIES_IN = "operations", "MemcpyToHost", "MemcpyFromHost"
UNSAFE = (
    "copies on streams of their own: ONNX Runtime may reuse a buffer while a copy still reads or "
    "writes it, and frees swapped tensors later than planned"
)
_TYPE = "DeviceBasedPartitioner"


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


def _op_types(model: Path) -> dict[str, str]:
    import onnx_ir as ir

    return {str(node.name): node.op_type for node in ir.load(model).graph}
