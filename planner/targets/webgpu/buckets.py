"""Predict the storage buffers that ONNX Runtime's WebGPU provider takes for a step.

The provider has no arena: each tensor is a buffer of the driver, and freed ones are kept for the next
tensor of their size class (BucketCacheManager in onnxruntime/core/providers/webgpu/buffer_manager.cc,
the default of `ep.webgpuexecutionprovider.storageBufferCacheMode`):

    size      a request is rounded up to the next bucket, of 64 bytes to 160 MiB; a larger one to 16
              bytes, and such a buffer is never kept
    reuse     a freed buffer is available at once, to requests of the same bucket only
    limit     each bucket keeps a limited number of free buffers; a buffer freed beyond that waits,
              allocated but not available, until the provider next submits its commands
    submit    every 16 dispatches, at each copy to or from the host and at the end of a run
              (`Flush` in onnxruntime/core/providers/webgpu/webgpu_context.cc, Upload and Download in
              buffer_manager.cc): a waiting buffer goes to its bucket if that has room now, and is
              destroyed if not

Feeds take buckets like any tensor, for the whole run. Initializers are rounded to 16 bytes and kept
apart, for the life of the session (`InitializerBufferManager`). A session with the provider turns memory
patterns off (onnxruntime/core/session/inference_session.cc).
Read at 1.25.0 (commit 735e69a396af). With onnxruntime-ep-webgpu 0.4.0 the driver's own count of storage
buffers was this forecast to the byte, for the zoo's MLP and GPT in the executed order. Staging buffers
of copies and uniforms are not storage buffers and not counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.graph.model import OpId, TrainingGraph
from planner.graph.rules import COPIES
from planner.results import ArenaForecast
from planner.runtime.device.predict.bfc_device import fed_bytes, initializer_bytes
from planner.runtime.memory.allocation import StorageKind, place

LIMITS: Mapping[int, int] = {
    64: 250,
    128: 200,
    256: 200,
    512: 200,
    2048: 230,
    4096: 200,
    8192: 50,
    16384: 50,
    32768: 50,
    65536: 50,
    131072: 50,
    262144: 50,
    524288: 50,
    1048576: 50,
    2097152: 30,
    4194304: 20,
    8388608: 10,
    12582912: 10,
    16777216: 10,
    26214400: 15,
    33554432: 22,
    44236800: 2,
    58982400: 6,
    67108864: 6,
    134217728: 6,
    167772160: 6,
}
"""The number of free buffers that each bucket keeps, by the bucket's size in bytes."""

DISPATCHES_PER_SUBMIT = 16

_SIZES = tuple(LIMITS)
_GRAIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRange:
    """A tensor's storage: requested bytes, and the half-open range of steps in which it is held."""

    bytes: int
    start: int
    end: int


def bucket_bytes(size: int) -> int:
    """Return the bytes of the buffer that a request of `size` gets."""
    at = bisect_left(_SIZES, size)
    return _SIZES[at] if at < len(_SIZES) else plain_bytes(size)


def plain_bytes(size: int) -> int:
    """Round `size` up to the 16 bytes of a buffer outside the buckets."""
    return -(-size // _GRAIN) * _GRAIN


def predict(
    ranges: Sequence[StorageRange],
    *,
    fed: Sequence[int] = (),
    initializers: Sequence[int] = (),
    submits: Collection[int] = (),
    limits: Mapping[int, int] = LIMITS,
    runs: int = 2,
) -> ArenaForecast:
    """Predict the peak bytes of storage buffers over `runs` runs in a row.

    Args:
        ranges: storage ranges of a run, by step; those of one step in the order of their requests.
        fed: sizes of graph inputs on the device.
        initializers: sizes of initializers on the device.
        submits: steps in which commands are submitted, after their outputs are allocated and before
            their last reads are freed.
        limits: free buffers that each bucket keeps.
    """
    end = max((r.end for r in ranges), default=0)
    starting: dict[int, list[int]] = defaultdict(list)
    ending: dict[int, list[int]] = defaultdict(list)
    for r in ranges:
        if r.bytes > 0 and r.start < r.end:
            starting[r.start].append(bucket_bytes(r.bytes))
            ending[r.end].append(bucket_bytes(r.bytes))
    feeds = [bucket_bytes(size) for size in fed if size > 0]
    cache = _BufferCache(limits, sum(plain_bytes(size) for size in initializers))
    held, most = cache.exist, cache.in_use

    def take(sizes: Sequence[int]) -> None:
        nonlocal held, most
        for size in sizes:
            cache.take(size)
        held, most = max(held, cache.exist), max(most, cache.in_use)

    for _ in range(runs):
        for size in feeds:
            take([size])
            cache.submit()
        for step in range(end):
            take(starting[step])
            if step in submits:
                cache.submit()
            if step + 1 < end:  # outputs are fetched before they are freed
                for size in ending[step + 1]:
                    cache.free(size)
        cache.submit()
        for size in (*ending[end], *feeds):
            cache.free(size)
    return ArenaForecast(options="default", in_use_bytes=most, held_bytes=held)


class _BufferCache:
    """Free buffers by size: buffers of one size are alike."""

    def __init__(self, limits: Mapping[int, int], apart: int) -> None:
        self.exist = apart
        self.in_use = apart
        self._limits = limits
        self._kept: Counter[int] = Counter()
        self._waiting: Counter[int] = Counter()

    def take(self, size: int) -> None:
        self.in_use += size
        if self._kept[size]:
            self._kept[size] -= 1
        else:
            self.exist += size

    def free(self, size: int) -> None:
        self.in_use -= size
        held = self._kept if self._kept[size] < self._limits.get(size, 0) else self._waiting
        held[size] += 1

    def submit(self) -> None:
        for size, count in self._waiting.items():
            fits = min(count, self._limits.get(size, 0) - self._kept[size])
            self._kept[size] += fits
            self.exist -= size * (count - fits)
        self._waiting.clear()


def live_ranges(graph: TrainingGraph, order: Sequence[OpId]) -> tuple[StorageRange, ...]:
    """Return the storage that a run of `order` allocates on the device, in the order of its requests.

    A freed tensor's buffer goes to one of the same shape (`enable_mem_reuse`).
    """
    placement = place(graph, order, reuse=True, host_in_arena=False)
    freed = {
        tensor: step + 1 for step, tensors in enumerate(placement.freed_after) for tensor in tensors
    }
    return tuple(
        StorageRange(bytes=graph.tensors[t].bytes, start=step, end=freed.get(t, len(order)))
        for step, op in enumerate(order)
        for t in graph.operations[op].outputs
        if placement.kind[t] is not StorageKind.SHARED
    )


def submits(graph: TrainingGraph, order: Sequence[OpId]) -> frozenset[int]:
    """Return the steps in which the provider submits its commands, if each device node is one
    dispatch.

    Some kernels are several dispatches: submits come at least this often.
    """
    found: set[int] = set()
    pending = 0
    for step, op in enumerate(order):
        operation = graph.operations[op]
        if operation.op_type in COPIES:
            found.add(step)
            pending = 0
        elif not operation.is_view:
            pending += 1
            if pending == DISPATCHES_PER_SUBMIT:
                found.add(step)
                pending = 0
    return frozenset(found)


def forecast_buckets(graph: TrainingGraph, order: Sequence[OpId]) -> ArenaForecast:
    """Predict the storage buffers of a session of `graph` on WebGPU that runs its nodes in `order`.

    Every tensor without `on_host` counts as on the device: the caller marks outputs of CPU nodes, and
    inputs and initializers that only the host reads.
    """
    return predict(
        live_ranges(graph, order),
        fed=fed_bytes(graph),
        initializers=initializer_bytes(graph),
        submits=submits(graph, order),
    )
