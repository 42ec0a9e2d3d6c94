"""The WebGPU provider's buffers against a model of them that is written buffer by buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph.schedule import default_order
from planner.targets.webgpu.buckets import (
    LIMITS,
    StorageRange,
    bucket_bytes,
    forecast_buckets,
    live_ranges,
    predict,
    submits,
)
from tests.runtime.device.support import graph_of
from tests.runtime.support import model_of, op, random_model, tensor


@pytest.mark.parametrize(
    ("asked", "given_"),
    [(1, 64), (64, 64), (65, 128), (513, 2048), (8388609, 12582912), (167772160, 167772160)],
)
def test_a_request_is_rounded_up_to_its_bucket(asked: int, given_: int) -> None:
    assert bucket_bytes(asked) == given_


def test_a_request_above_the_largest_bucket_is_rounded_to_16_bytes() -> None:
    assert bucket_bytes(167772161) == 167772176


def test_a_freed_buffer_serves_its_own_bucket_only() -> None:
    same = [StorageRange(bytes=100, start=0, end=1), StorageRange(bytes=65, start=1, end=3)]
    other = [StorageRange(bytes=100, start=0, end=1), StorageRange(bytes=64, start=1, end=3)]
    assert predict(same).held_bytes == 128
    assert predict(other).held_bytes == 192


def test_a_buffer_above_the_buckets_exists_until_the_next_submit() -> None:
    big = 200 << 20
    ranges = [StorageRange(bytes=big, start=k, end=k + 1) for k in range(4)]
    assert predict(ranges, runs=1).held_bytes == 4 * big
    assert predict(ranges, submits={1, 2}, runs=1).held_bytes == 2 * big


def test_what_is_freed_beyond_a_limit_is_destroyed_at_a_submit() -> None:
    ranges = [StorageRange(bytes=64, start=0, end=1) for _ in range(3)]
    ranges += [StorageRange(bytes=128, start=2, end=3)]
    kept = predict(ranges, limits={64: 3, 128: 9}, submits={1}, runs=1)
    destroyed = predict(ranges, limits={64: 1, 128: 9}, submits={1}, runs=1)
    assert kept.held_bytes == 3 * 64 + 128
    assert destroyed.held_bytes == max(3 * 64, 1 * 64 + 128)


def test_feeds_take_buckets_and_initializers_do_not() -> None:
    found = predict([StorageRange(bytes=10, start=0, end=1)], fed=[100], initializers=[100])
    assert found.held_bytes == 64 + 128 + 112


@dataclass
class _Driver:
    """Every buffer, by name, in one of four states."""

    limits: dict[int, int]
    size: dict[int, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    kept: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    made: int = 0

    def take(self, size: int) -> int:
        for name in self.kept:
            if self.size[name] == size:
                self.kept.remove(name)
                self.used.add(name)
                return name
        self.made += 1
        self.size[self.made] = size
        self.used.add(self.made)
        return self.made

    def has_room(self, size: int) -> bool:
        return sum(self.size[n] == size for n in self.kept) < self.limits.get(size, 0)

    def free(self, name: int) -> None:
        self.used.remove(name)
        (self.kept if self.has_room(self.size[name]) else self.waiting).append(name)

    def submit(self) -> None:
        for name in self.waiting:
            if self.has_room(self.size[name]):
                self.kept.append(name)
            else:
                del self.size[name]
        self.waiting = []

    def total(self) -> int:
        return sum(self.size.values())


def _brute_force(
    ranges: list[StorageRange], fed: list[int], limits: dict[int, int], at: set[int], runs: int
) -> int:
    driver, peak = _Driver(limits), 0
    steps = max((r.end for r in ranges), default=0)
    for _ in range(runs):
        held: list[tuple[int, int]] = []
        for size in fed:
            held.append((driver.take(bucket_bytes(size)), steps))
            peak = max(peak, driver.total())
            driver.submit()
        for step in range(steps):
            for r in ranges:
                if r.start == step:
                    held.append((driver.take(bucket_bytes(r.bytes)), r.end))
                    peak = max(peak, driver.total())
            if step in at:
                driver.submit()
            for name, end in held:
                if end == step + 1 and end < steps:
                    driver.free(name)
        driver.submit()
        for name, end in held:
            if end == steps:
                driver.free(name)
    return peak


_RANGES = st.lists(
    st.builds(
        lambda size, start, length: StorageRange(bytes=size, start=start, end=start + length),
        st.sampled_from([1, 64, 65, 128, 300, 512, 600]),
        st.integers(0, 9),
        st.integers(1, 5),
    ),
    max_size=20,
)


@settings(max_examples=75, deadline=None, derandomize=True)
@given(
    ranges=_RANGES,
    fed=st.lists(st.sampled_from([1, 100, 700]), max_size=3),
    limits=st.fixed_dictionaries({size: st.integers(0, 3) for size in (64, 128, 512)}),
    at=st.sets(st.integers(0, 9)),
    runs=st.integers(1, 3),
)
def test_the_prediction_is_what_the_buffers_do(
    ranges: list[StorageRange], fed: list[int], limits: dict[int, int], at: set[int], runs: int
) -> None:
    found = predict(ranges, fed=fed, limits=limits, submits=at, runs=runs)
    assert found.held_bytes == _brute_force(ranges, fed, limits, at, runs)
    assert found.in_use_bytes <= found.held_bytes


@pytest.mark.parametrize("seed", range(8))
def test_while_no_limit_is_reached_each_bucket_takes_its_own_peak(seed: int) -> None:
    model = random_model(seed, 20)
    graph = graph_of(model)
    order = default_order(graph)
    unlimited = dict.fromkeys(LIMITS, 1000)
    fed = [t.bytes for t in graph.tensors if t.is_input and t.consumers]
    initializers = [t.bytes for t in graph.tensors if t.is_initializer and t.consumers]
    ranges = live_ranges(graph, order)
    found = predict(ranges, fed=fed, initializers=initializers, limits=unlimited)
    assert forecast_buckets(graph, order) == found  # no limit is reached
    by_bucket: dict[int, int] = {}
    for size in {bucket_bytes(r.bytes) for r in ranges}:
        alike = [r for r in ranges if bucket_bytes(r.bytes) == size]
        by_bucket[size] = max(sum(r.start <= k < r.end for r in alike) for k in range(len(order)))
    taken = sum(size * count for size, count in by_bucket.items())
    taken += sum(bucket_bytes(size) for size in fed) + sum(-(-b // 16) * 16 for b in initializers)
    assert found.held_bytes == taken


def test_commands_are_submitted_every_16_dispatches_and_at_copies() -> None:
    x = tensor("x", 4)
    nodes = [op("n0", "Relu", x, shape=(4,))]
    for k in range(1, 40):
        kind = "MemcpyToHost" if k == 20 else "MemcpyFromHost" if k == 21 else "Relu"
        nodes.append(op(f"n{k}", kind, nodes[-1].outputs[0], shape=(4,)))
    model = model_of([x], [nodes[-1].outputs[0]], nodes)
    graph = graph_of(model)
    order = [operation.id for operation in graph.operations]
    assert submits(graph, order) == {15, 20, 21, 37}
