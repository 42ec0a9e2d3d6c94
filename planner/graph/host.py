"""Host memory of a rewritten model: tensors that live there, and copies of swapped tensors.

A tensor that lives on the host occupies it for the whole run, or, if the step produces it, from its
producer to the end. The copy of a swap-out lasts until the last swap-in has read it. A copy beside
the operations occupies a slot of whole pages until SwapInDone frees the slot for another tensor of
the same size (planner/native/swap/slots.h). The slots of one size are as many as are in use at once, and
stay allocated. With swaps to a disk (`planner.disk`), slots lie in a file, and the bytes here are
the file's.

ONNX Runtime maps the external data of a model into memory instead of copying it
(core/framework/session_state_utils.cc); `HostMemory.file_bytes` counts these bytes separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from planner.graph.model import Operation, OpId, Role, TrainingGraph
from planner.graph.rules import SWAP_DOMAIN, SWAP_OUT, SWAP_TOKENS
from planner.onnxio.kinds import GRANULARITY_BYTES

SLOT_PAGE_BYTES = 4096
"""Page size of slots (planner/native/swap/slots.h, `kSlotPageBytes`)."""

_COPIES_OUT = (Role.SWAP_OUT, Role.PAGE_OUT, Role.STORE_TO)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes on the host, with buffers rounded up as the arena rounds them.

    Attributes:
        peak_bytes: the most at once.
        file_bytes: initializers that live in files; in no other figure.
    """

    peak_bytes: int
    file_bytes: int


def host_memory(graph: TrainingGraph, order: Sequence[OpId], in_files: Set[str]) -> HostMemory:
    """Compute the host memory of a graph in a given order.

    Args:
        graph: with the copies that planner added, marked by their roles.
        order: a topological order of all its operations.
        in_files: names of initializers that live in files.
    """
    step_of = {op: step for step, op in enumerate(order)}
    steps = len(order)
    change = np.zeros(steps + 1, dtype=np.int64)
    resident = in_file = 0
    for tensor in graph.tensors:
        size = -(-tensor.bytes // GRANULARITY_BYTES) * GRANULARITY_BYTES
        if tensor.producer is None:
            paged = any(graph.operations[op].role is Role.PAGE_IN for op in tensor.consumers)
            if tensor.on_host and paged and tensor.name in in_files:
                in_file += size
            elif tensor.on_host and paged:
                resident += size
        elif (maker := graph.operations[tensor.producer]).role in _COPIES_OUT:
            if maker.op_type in SWAP_TOKENS:
                continue
            reads = [step_of[op] + 1 for op in tensor.consumers]
            stays = tensor.is_output or not reads
            change[step_of[tensor.producer]] += size
            change[steps if stays else max(reads)] -= size
    resident += _slot_bytes(graph, step_of)
    held = np.cumsum(change)[:steps] + resident
    return HostMemory(
        peak_bytes=int(held.max(initial=resident)),
        file_bytes=in_file,
    )


def _slot_bytes(graph: TrainingGraph, step_of: Mapping[OpId, int]) -> int:
    """Sum the bytes of the slots for copies beside the operations.

    Each slot size counts as often as slots of that size are in use at once.
    """
    changes: dict[int, dict[int, int]] = {}
    for op in graph.operations:
        if op.op_type != SWAP_OUT:
            continue
        pages = -(-graph.tensors[op.inputs[0]].bytes // SLOT_PAGE_BYTES)
        of_size = changes.setdefault(pages * SLOT_PAGE_BYTES, {})
        for step, change in ((step_of[op.id], 1), (_given_back(graph, op, step_of), -1)):
            of_size[step] = of_size.get(step, 0) + change
    return sum(
        size * max(accumulate(of_size[step] for step in sorted(of_size)))
        for size, of_size in changes.items()
    )


def _given_back(graph: TrainingGraph, op: Operation, step_of: Mapping[OpId, int]) -> int:
    """Return the step after the SwapInDone that frees a SwapOut's slot.

    The path runs through SwapOutDone and SwapIn.
    """
    tensors = graph.tensors
    for _ in range(3):
        readers = (graph.operations[c] for c in tensors[op.outputs[0]].consumers)
        op = next(reader for reader in readers if reader.domain == SWAP_DOMAIN)
    return step_of[op.id] + 1
