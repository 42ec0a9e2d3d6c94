"""onnxruntime-gpu's own provider in planner's pool: the pages that are predicted, a refusal by name.

It runs where that wheel is installed without NVIDIA's libraries, for which `stand_in.py` stands. That
shows what ONNX Runtime asks for, and nothing of a GPU, of kernels' workspace or of numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from tests.gpu_wheel.stand_in import made

ROOT = Path(__file__).parents[2]
PROVIDER = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"

pytestmark = pytest.mark.skipif(
    not PROVIDER.is_file() or any(PROVIDER.parents[2].glob("nvidia/*/lib/*.so*")),
    reason="onnxruntime-gpu is not installed, or NVIDIA's libraries are",
)

STEPS = """
import gc, json, sys
import onnxruntime as ort
import planner
from planner import native
from planner.native import DEVICE_PAGE_BYTES
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.paged import device_pool_bytes

model, output, budget, more = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
made = planner.optimize(
    model, budget=budget, output=output, device="cuda", hardware="h200", verify=False,
    time_limit_s=1, **more
)
need = device_pool_bytes(made.after.graph, made.after.timeline.order)
fits = made.plan.pool.bytes <= made.plan.budget_bytes
feeds, found = make_inputs(model, 0)[0], []
for size in (["plan"] if fits else []) + [f"{need}B", f"{need - DEVICE_PAGE_BYTES}B"]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = planner.open_session(output, options, pool=size)
        assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
        for _ in range(3):
            session.run(None, feeds)
        found.append(native.pool(device=True).pages_most * DEVICE_PAGE_BYTES)
    except Exception as error:
        found.append(str(error))
    session = None
    gc.collect()
print(json.dumps([need, fits, native.counts().swaps_in, found]))
"""


@pytest.mark.parametrize(
    ("name", "budget", "more"),
    [
        ("mlp_adamw", "60%", {}),
        ("gpt", "80%", {}),
        ("mlp_adamw", "60%", {"budget_of": "live", "swap": "only", "copies": "overlapped"}),
        ("gpt", "60%", {"budget_of": "live", "swap": "only", "copies": "overlapped"}),
    ],
)
def test_a_plan_takes_the_pages_that_are_predicted_and_is_refused_a_page_less(
    name: str, budget: str, more: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "cuda").mkdir()
    model, output = ROOT / "models" / "zoo" / f"{name}.onnx", tmp_path / "planned.onnx"
    child = {
        "LD_LIBRARY_PATH": str(made(tmp_path / "cuda", PROVIDER)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, "-c", STEPS, model, output, budget, json.dumps(more)]
    done = subprocess.run(
        [*map(str, words)],
        env=os.environ | child,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    need, fits, swaps, found = json.loads(done.stdout.splitlines()[-1])
    *ran, refused = found
    assert ran == [need] * (1 + fits), found
    assert (swaps > 0) == bool(more)
    assert "node. Name:'" in refused and "bytes were asked for; the pool has" in refused, refused
