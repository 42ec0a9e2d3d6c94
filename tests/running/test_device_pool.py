"""A device's pool in a session's options: the plan's size, and the pages that its requests take there.

No card is here: a step's requests are made through the functions that the provider's options name, on the
fake driver. Nothing here is a claim about a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

import planner
from planner.errors import UsageError
from planner.native import DEVICE_PAGE_BYTES
from planner.results import OptimizeResult
from planner.running import asked as merging
from planner.running.asked import Asked, merged
from planner.runtime.device.predict.bfc_device import device_demand
from planner.runtime.memory.arena import run_step
from planner.runtime.memory.paged import device_pool_bytes
from planner.runtime.opened import needs_of
from planner.targets import HOST
from planner.targets.cuda import CUDA
from planner.targets.cuda.backend import Cuda
from planner.targets.keys import POOL_KEY
from tests.native.fakes import (
    environment,
    library_for_tests,
    python,
    shared_library,
    shared_sources,
)

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
PROVIDER = "CUDAExecutionProvider"

STEPS = """
import ctypes, json, sys
from pathlib import Path
from planner import native
native.library_path = lambda: Path(sys.argv[1])
import planner
import onnxruntime as ort
from planner.targets.cuda.backend import Cuda
Cuda.check = lambda self: None
path, size, requests = sys.argv[2], sys.argv[3], json.loads(Path(sys.argv[4]).read_text())
seen = {}
if sys.argv[5] == "options":
    ort.SessionOptions.add_provider = lambda self, name, given: seen.update({name: given})
    planner.session_options(path, pool=size)
else:
    class Session:
        def __init__(self, model, options, providers, *_, **kwargs):
            seen.update(providers[:1])
            assert [name for name, _ in providers[1:]] == ["CPUExecutionProvider"]
            assert not options.enable_mem_pattern and not options.enable_mem_reuse
    ort.InferenceSession = Session
    planner.open_session(path, pool=size)
given = seen["CUDAExecutionProvider"]
alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(given["gpu_external_alloc"]))
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(given["gpu_external_free"]))
assert int(given["gpu_external_empty_cache"])
there = {}
for number, size in requests:
    if size:
        there[number] = alloc(size)
    else:
        free(there.pop(number))
facts = native.pool(device=True)
print(json.dumps([facts.pool_bytes, facts.page_bytes, facts.pages_most, given["arena_extend_strategy"]]))
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> OptimizeResult:
    """A plan for CUDA, made without one."""
    return planner.optimize(
        MODEL,
        budget="90%",
        reserve="1MiB",
        device="cuda",
        output=tmp_path_factory.mktemp("planned") / "planned.onnx",
        time_limit_s=0.5,
        verify=False,
    )


class Recorded:
    """Numbers each buffer, and notes when it is taken, by its size, and given back, by 0."""

    requested = in_use = held = 0

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.taken = 0

    def allocate(self, size: int, /) -> int:
        self.taken += 1
        self.requests.append((self.taken, size))
        return self.taken

    def release(self, block: int, /) -> None:
        self.requests.append((block, 0))


@pytest.fixture(scope="module")
def requests(planned: OptimizeResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two steps ask for, initializers and inputs first."""
    graph, order = planned.after.graph, planned.after.timeline.order
    demand, to = device_demand(graph, order), Recorded()
    for size in demand.reserved:
        to.allocate(size)
    for _ in range(2):
        fed = [to.allocate(size) for size in demand.fed]
        run_step(order, graph, demand, to)
        for block in fed:
            to.release(block)
    made = tmp_path_factory.mktemp("requests") / "requests.json"
    made.write_text(json.dumps(to.requests))
    return made


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The library's test build, and the fake driver."""
    folder = tmp_path_factory.mktemp("fakes")
    made = library_for_tests(folder, shared_sources(tmp_path_factory))
    return made, shared_library("fake_driver", folder / "driver.so")


def test_the_plan_has_a_pool_with_its_rounding_and_its_reserve(planned: OptimizeResult) -> None:
    plan, path = planned.plan, planned.output_path
    assert path is not None and plan.pool is not None and plan.arena is not None
    need = device_pool_bytes(planned.after.graph, planned.after.timeline.order)
    assert plan.planned.peak_bytes <= need < plan.planned.peak_bytes + 4 * DEVICE_PAGE_BYTES
    whole = plan.budget_bytes // DEVICE_PAGE_BYTES * DEVICE_PAGE_BYTES
    assert plan.pool.bytes == max(whole, need + plan.reserve_bytes)
    needs = needs_of(path)
    assert needs.pool is None and needs.arena == plan.arena  # unless the session asks
    assert needs.in_pool("1GB").arena is None
    if plan.pool.bytes > plan.budget_bytes:
        with pytest.raises(
            UsageError, match=rf"takes {plan.pool.bytes} bytes, more than the budget"
        ):
            needs.in_pool("plan")
    else:
        asked = needs.in_pool("plan")
        assert asked.pool is not None and asked.pool.bytes == plan.pool.bytes


@pytest.mark.parametrize("how", ["options", "open"])
def test_a_step_takes_the_pages_that_the_plan_counts(
    how: str, planned: OptimizeResult, requests: Path, fakes: tuple[Path, Path]
) -> None:
    library, driver = fakes
    need = device_pool_bytes(planned.after.graph, planned.after.timeline.order)
    words = (library, str(planned.output_path), f"{need}B", requests, how)
    done = python("-c", STEPS, *words, **environment(driver))
    assert done.returncode == 0, done.stderr
    pages = need // DEVICE_PAGE_BYTES
    assert json.loads(done.stdout) == [need, DEVICE_PAGE_BYTES, pages, "kSameAsRequested"]
    less = (library, str(planned.output_path), f"{need - DEVICE_PAGE_BYTES}B", requests, how)
    refused = python("-c", STEPS, *less, **environment(driver))
    assert refused.returncode != 0
    assert f"bytes were asked for; the pool has {need - DEVICE_PAGE_BYTES}" in refused.stderr


def test_only_sessions_whose_provider_can_be_told_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cuda, "check", lambda _: None)
    file = merging.Needs(where="m.onnx", target=CUDA, props={}).in_pool("1GB")
    for providers in (None, [PROVIDER, HOST.provider], [(PROVIDER, {"device_id": "0"})]):
        assert merged(Asked(model="m", providers=providers), file).pool == file.pool
    for odd in (
        Asked(model="m", providers=[(PROVIDER, {"enable_cuda_graph": "1"})]),
        Asked(model="m", providers=[HOST.provider]),
        Asked(model="m", providers=[PROVIDER], has_arena=True),
        Asked(model="m", module_device="cuda"),
    ):
        assert merged(odd, file).pool is None


def test_a_file_without_a_pool_and_a_device_that_is_not_here_are_said(
    planned: OptimizeResult, tmp_path: Path
) -> None:
    model = onnx.load(planned.output_path)
    (key,) = (prop for prop in model.metadata_props if prop.key == POOL_KEY)
    model.metadata_props.remove(key)
    onnx.save(model, none := tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="its plan has no pool: name a size"):
        planner.session_options(none, pool="plan")
    if PROVIDER not in ort.get_available_providers():
        with pytest.raises(UsageError, match=r"onnx-planner\[gpu\]"):
            planner.session_options(str(planned.output_path), pool="1GB")
