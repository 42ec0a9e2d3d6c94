"""What a rewritten model keeps in host memory: what lives there, and copies of what was swapped out.

A tensor that lives on the host is there for the whole run, or, where the step makes it, from then to the
end. A copy that a swap-out makes is there until the last swap-in has read it. What a file holds is
mapped into memory, not copied (ONNX Runtime maps external data: core/framework/session_state_utils.cc),
and counts apart.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from planner.graph.model import OpId, Role, TrainingGraph

GRANULARITY_BYTES = 256
"""ONNX Runtime's arenas round every buffer up to this, those of pinned memory too (bfc_arena.h,
`kMinAllocationSize`)."""

_MADE = (Role.SWAP_OUT, Role.PAGE_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes on the host, buffers rounded up as the arena does.

    Attributes:
        peak_bytes: the most at once.
        file_bytes: of initializers that live in files; in no other figure.
    """

    peak_bytes: int
    file_bytes: int


def host_memory(
    graph: TrainingGraph, order: Sequence[OpId], in_files: Set[str] = frozenset()
) -> HostMemory:
    """What is on the host while a graph runs.

    Args:
        graph: with the copies that planner added, by their roles.
        order: of all its operations.
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
        elif graph.operations[tensor.producer].role in _MADE:
            reads = [step_of[op] + 1 for op in tensor.consumers]
            stays = tensor.is_output or not reads
            change[step_of[tensor.producer]] += size
            change[steps if stays else max(reads)] -= size
    held = np.cumsum(change)[:steps] + resident
    return HostMemory(
        peak_bytes=int(held.max(initial=resident)),
        file_bytes=in_file,
    )
