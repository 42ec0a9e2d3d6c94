"""Sessions in planner's pool: ONNX Runtime runs in exactly the bytes that are predicted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import native
from planner.cli.main import main
from planner.errors import UsageError
from planner.graph.model import OpId
from planner.results import OptimizeResult
from planner.runtime.memory.paged import PAGE_BYTES, pool_bytes
from planner.runtime.options import most_threads
from tests.process import PLANNER

pytestmark = pytest.mark.skipif(not native.is_built(), reason="the native library is not built")

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
LOOP = """
import json, sys
import numpy as np
import onnxruntime as ort
import planner
from planner import native
from planner.errors import UsageError
from planner.runtime.feeds.inputs import make_inputs

original, planned, how, size = sys.argv[1:5]
feeds = make_inputs(original, seed=3)[0]
plain = ort.InferenceSession(original)
wanted = plain.run(None, feeds)
given = ort.SessionOptions()
if how == "open":
    session = planner.open_session(planned, pool=size)
elif how == "options":
    session = ort.InferenceSession(planned, planner.session_options(planned, pool=size))
elif how == "given":
    session = planner.open_session(planned, given, pool=size)
    del session
    session = planner.open_session(planned, given, pool=size)
else:
    session = ort.InferenceSession(planned)
said = ""
try:
    for _ in range(3):
        found = session.run(None, feeds)
        same = all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted))
        if how == "options":
            del found  # it lies in the pool
except Exception as error:
    said, same = str(error), False
pool = native.pool()
again = ort.InferenceSession(original, given).run(None, feeds)[0] if how == "given" else None
now = native.pool()
is_apart = now.pages_most == pool.pages_most
print(json.dumps([said, same, pool.pool_bytes, pool.pages_most * pool.page_bytes, is_apart]))
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> OptimizeResult:
    return planner.optimize(
        MODEL,
        budget="80%",
        budget_of="live",
        output=tmp_path_factory.mktemp("pool") / "planned.onnx",
        time_limit_s=0.5,
        verify=False,
    )


@pytest.fixture(scope="module")
def least(planned: OptimizeResult) -> int:
    order = [OpId(op) for op in planned.after.timeline.order]
    return pool_bytes(planned.after.graph, order, threads=most_threads())


def run(how: str, planned: OptimizeResult, size: str, *command: str | Path) -> list[Any]:
    """[what the session said, whether bits are the original's, the pool, its most pages, whether these
    stay when the original is opened with the script's options]."""
    start = [sys.executable, *(command or ("-c", LOOP))]
    words = [*start, MODEL, str(planned.output_path), how, size]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("how", ["open", "options", "given"])
def test_a_loop_runs_in_exactly_the_pages_that_are_predicted(
    how: str, planned: OptimizeResult, least: int
) -> None:
    assert run(how, planned, f"{least}B") == ["", True, least, least, True]
    assert least < planned.plan.budget_bytes


def test_a_page_less_is_refused_by_node_and_bytes(planned: OptimizeResult, least: int) -> None:
    said, same, *_ = run("open", planned, f"{least - PAGE_BYTES}B")
    assert not same
    assert "node. Name:'" in said and f"the pool has {least - PAGE_BYTES}" in said, said


def test_planner_run_opens_the_file_in_a_pool(
    planned: OptimizeResult, least: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    words = (*PLANNER, "run", "--pool", f"{least}B", script)
    assert run("plain", planned, "", *words) == ["", True, least, least, True]


def test_sizes_and_devices_that_are_none_are_refused(
    planned: OptimizeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(planned.output_path)
    with pytest.raises(UsageError, match="an arena or a pool, not both"):
        planner.session_options(path, arena="1GB", pool="1GB")
    with pytest.raises(UsageError, match="pool"):
        planner.session_options(path, pool="much")
    with pytest.raises(UsageError, match="less than a page"):
        planner.session_options(path, pool="1KB")
    with pytest.raises(UsageError, match="files that planner wrote"):
        planner.open_session(MODEL, pool="1GB")
    assert main(["run", "--pool", "much", "train.py"]) == 2
    assert "--pool" in capsys.readouterr().err
