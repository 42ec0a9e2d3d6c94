"""`planner.session_options(arena=...)`: a size for the arena of a session's device."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import planner
from planner.errors import UsageError

_IN_AN_ARENA = """
import sys
import numpy as np
import onnxruntime as ort
import planner

options = planner.session_options(sys.argv[1], arena=sys.argv[2], device="cpu")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.zeros((256, 256), np.float32)})
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Six products of 256 KiB each."""
    names = ["x", *(f"p{i}" for i in range(6))]
    nodes = [helper.make_node("MatMul", [a, "x"], [b], b) for a, b in itertools.pairwise(names)]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (256, 256))
        for name in (names[0], names[-1])
    )
    path = tmp_path / "chain.onnx"
    graph = helper.make_graph(nodes, "chain", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


@pytest.mark.parametrize(("arena", "runs"), [("256KiB", False), ("4MiB", True)])
def test_an_arena_can_be_asked_for(model: Path, arena: str, runs: bool) -> None:
    """In a process of its own: it is the whole process's."""
    command = [sys.executable, "-c", _IN_AN_ARENA, str(model), arena]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == runs, done.stderr
    assert runs or "smaller than requested" in done.stderr


def test_an_arena_is_a_size_of_a_device_that_has_one(model: Path) -> None:
    with pytest.raises(UsageError, match="not an arena"):
        planner.session_options(model, arena="1GiB", device="webgpu")
    with pytest.raises(UsageError, match="arena"):
        planner.session_options(model, arena="much", device="cpu")
    with pytest.raises(UsageError, match=r"onnx-planner\[gpu\]"):
        planner.session_options(model, arena="1GiB", device="cuda")


def test_options_hold_no_more_than_what_is_alive(model: Path) -> None:
    options = planner.session_options(model)
    assert not options.enable_mem_pattern and not options.enable_mem_reuse


_REGIONS = """
import sys
from dataclasses import replace
import numpy as np
import onnxruntime as ort
from planner.runtime import options as options_of
from planner.runtime.options import Opening, buffer_model, cap_arena
from planner.targets import HOST

# the CPU's arena, opened as a device's
device = replace(HOST, own_memory=True, is_arena=True, memory="Cpu")

options_of.MAX_FIRST_REGION = int(sys.argv[1])  # in place of 2 GiB
for region in map(int, sys.argv[2:]):
    options = Opening(memory="recommended", threads=1).options()
    cap_arena(options, region, target=device)
    session = ort.InferenceSession(buffer_model(), options, providers=["CPUExecutionProvider"])
    for request in (region // 3, region - 1024, 256, region - 1024):
        session.run(None, {"size": np.array([request // 8])})
    try:
        session.run(None, {"size": np.array([region // 8 + 1])})
    except Exception as error:
        assert "smaller than requested" in str(error), error
    else:
        raise AssertionError(f"more than {region} bytes were held")

    options = Opening(memory="recommended", threads=1).options()
    cap_arena(options, region, limit_bytes=3 * region, target=device)
    session = ort.InferenceSession(buffer_model(), options, providers=["CPUExecutionProvider"])
    session.run(None, {"size": np.array([region // 8 + 1000])})  # beside the first region
"""


def test_an_arena_is_one_region_of_any_size() -> None:
    """ONNX Runtime's option for the first region is a C int; larger ones are opened by a request."""
    regions = [1 << 19, 1 << 20, (1 << 20) + 256, 3 << 20, 5_000_192, (8 << 20) + 512, 200_000_000]
    command = [sys.executable, "-c", _REGIONS, str(1 << 20), *map(str, regions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
