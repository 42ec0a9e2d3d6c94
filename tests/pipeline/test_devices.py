"""`fit_devices`: more memory never fits less, more levers are never slower, and `optimize` agrees."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from models import zoo
from planner.api import optimize
from planner.api_devices import fit_devices, profiles_of
from planner.cost.hardware import load_hardware
from planner.errors import InfeasibleBudgetError, UsageError
from planner.pipeline.answer.budgets.devices import costed_for
from planner.pipeline.prepare.prepared import prepare
from planner.report.document.fit import HOWS, DeviceRow, FitDocument
from planner.request import Costs, Request

MIB = 1 << 20


def device(folder: Path, name: str, memory_bytes: int, *, like: str = "t4") -> str:
    """A profile of a device like one that ships, with another memory."""
    from importlib import resources

    text = (resources.files("planner.cost") / "profiles" / f"{like}.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("memory_bytes =", "name"))]
    path = folder / f"{name}.toml"
    path.write_text("\n".join([f'name = "{name}"', f"memory_bytes = {memory_bytes}", *lines]))
    return str(path)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """A forward chain whose every value is read again on the way back, of a symbolic batch: 64 KiB for
    each sample of a value."""
    count, nodes = 6, []
    for i in range(count):
        nodes.append(h.make_node("Sigmoid", [f"x{i}"], [f"x{i + 1}"], name=f"up{i}"))
    for i in reversed(range(count)):
        back = "x6" if i == count - 1 else f"g{i + 1}"
        nodes.append(h.make_node("Mul", [back, f"x{i + 1}"], [f"g{i}"], name=f"down{i}"))
    graph = h.make_graph(
        nodes,
        "chain",
        [h.make_tensor_value_info("x0", T.FLOAT, ["batch", 16384])],
        [h.make_tensor_value_info("g0", T.FLOAT, ["batch", 16384])],
    )
    path = tmp_path_factory.mktemp("devices") / "chain.onnx"
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def check_rows(found: FitDocument) -> None:
    """More levers fit no less and are no slower; more memory fits no less, and is no slower.

    The devices are alike but for their memory.
    """
    for one in found.devices:
        assert [way.how for way in one.ways] == list(HOWS)
        for before, after in itertools.pairwise(one.ways):
            if not before.fits:
                continue
            assert after.fits and (after.size or 0) >= (before.size or 0)
            if after.size == before.size and before.how != "as it is":
                assert after.time_us is not None and before.time_us is not None
                assert after.time_us <= before.time_us
        for way in one.ways:
            if way.fits:
                assert way.peak_bytes is not None and way.peak_bytes <= one.budget_bytes
                assert way.slowdown is not None and way.slowdown >= 0
    ascending = sorted(found.devices, key=lambda one: one.budget_bytes)
    for smaller, larger in itertools.pairwise(ascending):
        for how in HOWS:
            assert size(smaller, how) <= size(larger, how)
            times = [one.way(how).time_us for one in (smaller, larger)]
            if size(smaller, how) == size(larger, how) >= 0:
                assert times[1] <= times[0] * (1 + 1e-12)


def size(one: DeviceRow, how) -> int:
    way = one.way(how)
    assert way is not None
    return (way.size or 0) if way.fits else -1


def test_devices_of_a_training_graph(tmp_path):
    """At 90% recompute does for mlp_adamw; below 66% of its peak nothing fits without copies; below its
    least peak on the host nothing fits at all."""
    model = zoo.path("mlp_adamw")
    peak = prepare(Request(model=model), to_rewrite=False).baseline.peak_bytes
    shares = {"whole": 1.0, "most": 0.9, "half": 0.5, "tenth": 0.1, "alike": 0.5}
    names = [device(tmp_path, name, int(share * peak)) for name, share in shares.items()]
    found = fit_devices(model, names, reserve="0B", time_limit_s=1.0)
    check_rows(found)
    whole, most, half, tenth, _ = found.devices
    assert whole.ways[0].fits and whole.ways[3].slowdown == 0
    assert not most.ways[0].fits and most.ways[1].fits
    assert not half.ways[1].fits and half.ways[1].next_is_impossible is True
    assert half.ways[2].fits
    assert not any(way.fits for way in tenth.ways)
    assert not tenth.fits and half.fits and not found.all_fit
    assert found.least.on_host is not None
    assert tenth.budget_bytes < found.least.on_host.bound_bytes <= half.budget_bytes
    assert half.budget_bytes < found.least.on_device.bound_bytes <= most.budget_bytes
    # what fit says of a device, optimize does at that budget
    for one, swap, fits in ((most, "none", True), (half, "none", False), (half, "auto", True)):
        arguments = {"device": "cpu", "hardware": one.hardware, "swap": swap}
        arguments |= {"time_limit_s": 1.0, "dry_run": True}
        budget = f"{one.budget_bytes}B"
        if not fits:
            with pytest.raises(InfeasibleBudgetError):
                optimize(model, budget=budget, **arguments)
            continue
        assert (
            optimize(model, budget=budget, **arguments).plan.planned.peak_bytes <= one.budget_bytes
        )


@pytest.mark.parametrize("sizes", [range(1, 25), ()], ids=["listed", "doubled"])
def test_the_largest_batch(sizes, chain, tmp_path):
    """The largest that fits was measured to fit, and the next one not to, where no search decides."""
    names = [device(tmp_path, name, mib * MIB) for name, mib in (("ten", 10), ("six", 6))]
    found = fit_devices(chain, names, dims={"batch": sizes}, reserve="0B", time_limit_s=1.0)
    check_rows(found)
    assert found.dim == "batch"

    def peak(batch: int) -> int:
        request = Request(model=chain, dims={"batch": batch})
        return prepare(request, to_rewrite=False).baseline.peak_bytes

    for one in found.devices:
        as_is = one.ways[0]
        assert as_is.size is not None and as_is.peak_bytes is not None and as_is.time_us is not None
        assert peak(as_is.size) == as_is.peak_bytes <= one.budget_bytes
        for way in one.ways:
            assert way.size is not None
            if way.next_size is not None:
                assert way.next_size > way.size
                assert way.how != "as it is" or peak(way.next_size) > one.budget_bytes
            else:
                assert way.size == max(sizes)
        assert size(one, "recompute") > size(one, "as it is") or one.ways[1].next_size is None
        assert one.ways[0].per_second == pytest.approx(1e6 * as_is.size / as_is.time_us)


def test_times_of_another_device_are_those_of_a_model_prepared_for_it():
    model = zoo.path("gpt")
    here = prepare(Request(model=model, costs=Costs(hardware="t4")), to_rewrite=False)
    there = prepare(Request(model=model, costs=Costs(hardware="h100")), to_rewrite=False)
    moved = costed_for(here, load_hardware("h100"))
    assert moved.duration_us == there.duration_us
    assert moved.baseline.duration_us == there.baseline.duration_us
    assert moved.graph.assumptions == there.graph.assumptions
    assert moved.cost_source == there.cost_source
    assert costed_for(here, here.hardware) is here


def test_the_reserve_is_taken_off_each_memory(tmp_path):
    model = zoo.path("mlp_adamw")
    small = device(tmp_path, "small", 100 * MIB)
    found = fit_devices(model, [small, "t4"], time_limit_s=1.0)
    assert [one.reserve_bytes for one in found.devices] == [10 * MIB, 1 << 30]
    (one,) = fit_devices(model, [small], reserve="25%", time_limit_s=1.0).devices
    assert one.budget_bytes == 75 * MIB
    with pytest.raises(UsageError, match="takes all memory"):
        fit_devices(model, [small, "t4"], reserve="1GB")


def test_profiles():
    every = dict(profiles_of(["all"]))
    assert "cpu" not in every and {"t4", "h200"} <= every.keys()
    assert [name for name, _ in profiles_of(["h100", "cpu", "h100"])] == ["h100", "cpu"]
    for names in ([], [""], ["h100", " "], ["nothing"]):
        with pytest.raises(UsageError, match="hardware"):
            profiles_of(names)
