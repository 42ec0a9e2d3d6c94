"""The partition into streams: read, split, and applied on a device with memory of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import planner
from planner.errors import UsageError
from planner.runtime.device.software import WebGpuDevice, start
from planner.runtime.streams import Partition, read_partition, separate, streams_path
from reports import overlap


def test_copies_of_a_device_get_two_streams():
    found = separate(
        Partition(streams=(("a", "out", "b", "in", "Memcpy"), ("c", "o2")), devices=("1", "0")),
        {"a": "Exp", "out": "MemcpyToHost", "in": "MemcpyFromHost", "o2": "MemcpyToHost"},
    )
    assert found.streams == (("a", "b", "Memcpy"), ("out",), ("in",), ("c", "o2"))
    assert found.devices == ("1", "1", "1", "0")


def test_a_device_without_copies_keeps_its_stream():
    alone = Partition(streams=(("a", "b"),), devices=("1",))
    assert separate(alone, {"a": "Exp", "b": "Neg"}) == alone


@pytest.mark.parametrize("text", ["", "[]", '{"type": "other", "streams": [], "devices": []}'])
def test_what_is_no_partition_is_refused(text, tmp_path):
    path = tmp_path / "streams.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a partition"):
        read_partition(path)


_IN_AN_ARENA = """
import sys
import numpy as np
import onnxruntime as ort
import planner

options = planner.session_options(sys.argv[1], arena=sys.argv[2], device="cpu")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"x": np.zeros((256, 256), np.float32)})
"""


@pytest.mark.parametrize(("arena", "runs"), [("256KiB", False), ("4MiB", True)])
def test_an_arena_can_be_asked_for(tmp_path: Path, arena: str, runs: bool) -> None:
    """In a process of its own: it is the whole process's."""
    model = tmp_path / "chain.onnx"
    overlap.chain(model)
    command = [sys.executable, "-c", _IN_AN_ARENA, str(model), arena]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == runs, done.stderr
    assert runs or "smaller than requested" in done.stderr


def test_an_arena_is_a_size_of_a_device_that_has_one(tmp_path: Path) -> None:
    model = tmp_path / "chain.onnx"
    overlap.chain(model)
    with pytest.raises(UsageError, match="not an arena"):
        planner.session_options(model, arena="1GiB", device="webgpu")
    with pytest.raises(UsageError, match="arena"):
        planner.session_options(model, arena="much", device="cpu")
    with pytest.raises(UsageError, match=r"onnx-planner\[gpu\]"):
        planner.session_options(model, arena="1GiB", device="cuda")


def test_session_options_are_serial_unless_asked(tmp_path):
    model = tmp_path / "chain.onnx"
    overlap.chain(model)
    options = planner.session_options(model)
    assert not options.enable_mem_pattern and not options.enable_mem_reuse
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.node_partition_config_file")
    assert not streams_path(model).exists()
    with pytest.raises(UsageError, match="the CPU has none"):
        planner.session_options(model, copies="overlapped")


def test_options_with_overlap_warn_and_write_the_partition(tmp_path):
    """On the CPU, whose nodes stay on one stream."""
    import onnxruntime as ort

    model = tmp_path / "chain.onnx"
    overlap.chain(model)

    def opened(options):
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    with pytest.warns(UserWarning, match="may reuse a buffer"):
        options = planner.session_options(model, copies="overlapped", make_session=opened)
    written = read_partition(streams_path(model))
    names = {node.name for node in onnx.load(model).graph.node}
    assert {name for stream in written.streams for name in stream} == names
    assert written.devices == ("0",)
    assert opened(options).run(None, overlap.feed(0))


def test_on_the_software_device(webgpu_device: WebGpuDevice, tmp_path: Path) -> None:
    """The partition applies, copies are where it says, and outputs are the same bits."""
    model = tmp_path / "chain.onnx"
    command = [sys.executable, "-m", "reports.overlap", "--on-device", str(model), "--steps", "20"]
    done = start(command, webgpu_device)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["different"] == 0
    assert json.loads(found["ours"])["devices"] == ["1", "1", "1", "0"]
    ran = {name: [node for node, _ in rows] for name, rows in found["executed"].items()}
    assert sorted(ran["one"]) == sorted(ran["own"])
    providers = dict(found["executed"]["own"])
    assert {providers[n] for n in ran["own"] if n.startswith(("out", "in"))} == {
        "WebGpuExecutionProvider"
    }
    # why overlap is a what-if: copies out are issued when the operations wait, not where planned
    graph = onnx.load(model)
    assert ran["one"].index("out0") < ran["one"].index("f1")
    assert ran["own"].index("out0") > ran["own"].index("f5")
    assert overlap.peak_bytes(graph, ran["own"]) > overlap.peak_bytes(graph, ran["one"])
