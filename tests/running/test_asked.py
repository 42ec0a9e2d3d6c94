"""A script's providers and options beside what a file needs, for devices that need not be here."""

from __future__ import annotations

from dataclasses import replace

import onnxruntime as ort
import pytest

from planner.running.asked import Asked, merged
from planner.runtime.opened import Arena, Needs
from planner.targets import HOST, target_named
from planner.targets.cuda import CUDA

CUDA_FILE = Needs(where="m.onnx", target=CUDA, props={})
CPU_FILE = replace(CUDA_FILE, target=HOST)
ANYWHERE = replace(CUDA_FILE, target=target_named("any"))
BOTH = [CUDA.provider, HOST.provider]


@pytest.mark.parametrize(
    ("providers", "more"),
    [
        (BOTH, None),
        ([(CUDA.provider, {"device_id": "1"}), HOST.provider], None),
        (BOTH, [{"device_id": "1"}, {}]),
        (["AzureExecutionProvider", *BOTH], None),
    ],
)
def test_the_files_options_join_those_of_the_script(providers, more):
    found = merged(Asked(model="m", providers=providers, provider_options=more), CUDA_FILE)
    assert found.on_target and not found.against
    options = dict(found.asked.pairs())[CUDA.provider]
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert ("device_id" in options) == (more is not None or providers[0][0] == CUDA.provider)
    assert [name for name, _ in found.asked.pairs()][-2:] == BOTH


def test_an_option_of_the_script_stays_and_is_said():
    given = {"arena_extend_strategy": "kNextPowerOfTwo"}
    asked = Asked(model="m", providers=[(CUDA.provider, given), HOST.provider])
    found = merged(asked, CUDA_FILE)
    assert found.asked == asked
    (line,) = found.against
    assert "kNextPowerOfTwo" in line and "kSameAsRequested" in line


@pytest.mark.parametrize(
    ("needs", "first"),
    [
        (CUDA_FILE, HOST.provider),
        (CUDA_FILE, "TensorrtExecutionProvider"),
        (CPU_FILE, CUDA.provider),
        (CPU_FILE, "OpenVINOExecutionProvider"),
    ],
)
def test_another_provider_stays_and_is_said(needs: Needs, first: str):
    asked = Asked(model="m", providers=[first, *BOTH])
    found = merged(replace(asked, providers=[first, *BOTH]), needs)
    assert found.asked == asked and not found.on_target
    assert first in found.against[0] and needs.target.title in found.against[0]


def test_a_file_for_any_device_goes_anywhere():
    for providers in (None, BOTH, [HOST.provider]):
        assert not merged(Asked(model="m", providers=providers), ANYWHERE).against


def test_a_module_runs_where_it_says():
    assert not merged(Asked(model="m", module_device="cpu"), CPU_FILE).against
    assert merged(Asked(model="m", module_device="cuda"), CPU_FILE).against


def test_an_arena_is_for_sessions_that_have_none():
    needs = replace(CPU_FILE, arena=Arena(max_bytes=1 << 20, first_region_bytes=0))
    options = ort.SessionOptions()
    assert merged(Asked(model="m", options=options), needs).arena == needs.arena
    assert merged(Asked(model="m", module_device="cpu"), needs).arena is None
    options.enable_cpu_mem_arena = False
    found = merged(Asked(model="m", options=options), needs)
    assert found.arena is None and "1.00 MiB" in found.against[0]
    found = merged(Asked(model="m", options=ort.SessionOptions(), has_arena=True), needs)
    assert found.arena is None and not found.against


@pytest.mark.parametrize("providers", [7, [7], [("a",)], [("a", "b")]])
def test_what_onnx_runtime_will_refuse_is_left_to_it(providers):
    asked = Asked(model="m", providers=providers)
    assert merged(asked, CPU_FILE).asked == asked
