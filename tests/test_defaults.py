"""What is meant where nothing is said: devices, copies, and the memory of a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import analyze, fit_devices, optimize, sweep
from planner.cost.hardware import hardware_names, load_hardware
from planner.defaults import ASIDE_BYTES, card_budget, card_of, meant, set_aside
from planner.errors import UsageError
from planner.pipeline.prepare.settings import SHARED
from planner.report.remarks import that_matter
from tests.pipeline.test_devices import device

ROOT = Path(__file__).parents[1]
MLP = ROOT / "models" / "zoo" / "mlp_adamw.onnx"
CARDS = sorted(name for name in hardware_names() if not load_hardware(name).is_host)


def decided(**said) -> tuple[str, str]:
    """Device and swap, where the rest is left out."""
    rest = {"device": None, "hardware": "cpu", "swap": None, "resident": None}
    found = meant(**{**rest, **said})
    return found.device, found.swap


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, ("cpu", "none")),
        ({"device": "cpu"}, ("cpu", "none")),
        ({"resident": "device"}, ("cpu", "none")),
        ({"swap": "auto"}, ("cpu", "auto")),
        ({"swap": "only"}, ("cpu", "only")),
        ({"resident": "auto"}, ("cpu", "auto")),
        ({"resident": "host"}, ("cpu", "auto")),
        ({"copies": "overlapped"}, ("cpu", "auto")),
        ({"swap": "none", "resident": "host"}, ("cpu", "none")),
        ({"device": "cuda"}, ("cuda", "auto")),
        ({"device": "cuda", "swap": "none"}, ("cuda", "none")),
        ({"device": "webgpu"}, ("webgpu", "auto")),
        ({"device": "any"}, ("any", "auto")),
        ({"device": "cpu", "hardware": "t4"}, ("cpu", "auto")),
        ({"hardware": "t4", "is_written": False}, ("cpu", "auto")),
    ],
)
def test_a_cpu_has_no_copies_unless_they_are_asked_for(said, found):
    assert decided(**said) == found


@pytest.mark.parametrize("name", CARDS)
def test_a_profile_of_a_gpu_says_nothing_of_what_a_file_is_for(name):
    with pytest.raises(UsageError, match=f"^{name} is a GPU .*--device cuda .*--device cpu "):
        decided(hardware=name)


def test_a_profile_of_ones_own_is_asked_about_too(tmp_path):
    path = device(tmp_path, "mine", 1 << 30)
    with pytest.raises(UsageError, match=r"mine\.toml has a memory of its own .*is_host = true"):
        optimize(MLP, budget="60%", hardware=path, dry_run=True)
    host = Path(path).read_text().replace('name = "mine"', 'name = "mine"\nis_host = true')
    Path(path).write_text(host)
    assert decided(hardware=path) == ("cpu", "none")


@pytest.mark.parametrize("name", CARDS)
def test_of_every_card_the_same_is_set_aside(name):
    card = load_hardware(name)
    size, said = card_budget(card)
    assert size == card.memory_bytes - ASIDE_BYTES == card.memory_bytes - set_aside(card)
    assert said.startswith(f"memory of {name}, ") and "reports/cuda.md" in said
    assert card_budget(card, "2GB")[0] == card.memory_bytes - 2_000_000_000
    assert card_budget(card, "25%")[0] == card.memory_bytes * 3 // 4
    assert "--reserve" in card_budget(card, "2GB")[1]
    with pytest.raises(UsageError, match="takes all memory"):
        card_budget(card, "100%")


def test_what_is_set_aside_is_what_was_measured():
    """Of each process on a card that was looked at, what it had there beside ONNX Runtime's arena."""
    rows = json.loads((ROOT / "reports" / "cuda_large.json").read_text())
    beside = [
        row["driver_original"][-1] - row["held"]["original, default"][1]
        for row in rows
        if row.get("driver_original")
    ]
    assert len(beside) >= 5
    assert max(beside) <= ASIDE_BYTES < 1.25 * max(beside)


def test_on_a_small_device_it_is_a_tenth_and_said_to_be_assumed(tmp_path):
    small = load_hardware(device(tmp_path, "small", 64 << 20))
    size, said = card_budget(small)
    assert size == small.memory_bytes - (64 << 20) // 10
    assert "assumed" in said and "measured" not in said


def test_only_a_device_with_a_memory_of_its_own_has_a_budget():
    assert card_of(None, "t4") is None
    assert card_of("cpu", "t4") is None
    assert card_of("cuda", "cpu") is None
    for name in ("cuda", "webgpu", "any"):
        card = card_of(name, "t4")
        assert card is not None and card.name == "t4"


def test_optimize_and_fit_have_the_same_budget(tmp_path):
    path = device(tmp_path, "board", 9 << 20)
    options = {"dry_run": True, "time_limit_s": 1.0}
    plan = optimize(MLP, device="cuda", hardware=path, **options).plan
    (fit,) = fit_devices(MLP, [path], time_limit_s=1.0).devices
    assert plan.budget_bytes == fit.budget_bytes < 9 << 20
    assert plan.planned.peak_bytes <= plan.budget_bytes < plan.baseline.peak_bytes
    assert plan.reserve_bytes == 0 and plan.budget_text.startswith("memory of board, ")
    # what was typed stays as it was
    typed = optimize(MLP, device="cuda", hardware=path, budget="9MiB", **options).plan
    assert typed.budget_bytes == 9 << 20 and typed.reserve_bytes == 0
    other = optimize(MLP, device="cuda", hardware=path, reserve="5%", **options).plan
    assert other.budget_bytes == (9 << 20) - int((9 << 20) / 20)


def test_a_plan_for_the_cpu_copies_nothing_and_one_with_copies_says_what_they_are_worth():
    options = {"budget": "80%", "dry_run": True, "time_limit_s": 1.0}
    plan = optimize(MLP, **options).plan
    assert plan.swap_mode == "none" and not plan.resident
    assert not plan.planned.swap_in_bytes and SHARED not in plan.assumptions
    plan = optimize(MLP, resident="host", **options).plan
    assert plan.swap_mode == "auto" and plan.resident
    assert SHARED in that_matter(plan.assumptions)


def test_predictions_need_no_device_and_have_copies_for_a_gpu():
    """Nothing is written, so that nothing has to be asked."""
    options = {"time_limit_s": 1.0, "calibrate": False}
    here = analyze(MLP, **options)
    there = analyze(MLP, hardware="t4", **options)
    assert here.levers == ("recompute",) and here.on_host is None
    assert there.levers == ("recompute", "swaps") and there.on_host is not None
    assert here.least_peak_bytes is not None and there.least_peak_bytes is not None
    assert there.least_peak_bytes < here.least_peak_bytes
    assert SHARED not in {*here.assumptions, *there.assumptions}
    assert SHARED in that_matter(analyze(MLP, swap="auto", **options).assumptions)
    modes = [
        sweep(MLP, points=2, hardware=name, jobs=1, **options).swap_mode for name in ("cpu", "t4")
    ]
    assert modes == ["none", "auto"]


def test_a_cpu_among_devices_has_no_copies(tmp_path):
    both = fit_devices(MLP, ["cpu", "t4"], time_limit_s=1.0)
    hows = [[way.how for way in found.ways] for found in both.devices]
    assert hows[0] == ["as it is", "recompute"]
    assert hows[1] == ["as it is", "recompute", "copies", "copies overlapped"]
    assert both.least.on_host is not None
    alone = fit_devices(MLP, ["cpu"], time_limit_s=1.0)
    assert alone.least.on_host is None
    assert alone.least.on_device.peak_bytes > both.least.on_device.peak_bytes
