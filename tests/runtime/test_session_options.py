"""What a file's metadata asks of a session: set where planner writes it so, refused otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime as ort
import pytest

import planner
from planner.errors import UsageError
from planner.runtime.opened import Arena, needs_of
from planner.runtime.options import PREPACKING
from planner.targets.keys import (
    ARENA_KEY,
    LEVEL_KEY,
    OPTIONS_KEY,
    ORDER_KEY,
    PACKED_KEY,
    TARGET_KEY,
)
from tests.reliability.graphs import diamond, proto, save


def with_props(path: Path, props: dict[str, str]) -> Path:
    model = proto(diamond())
    for key, value in props.items():
        model.metadata_props.add(key=key, value=value)
    save(model, path)
    return path


def written_for(path: Path, target: str, options: str) -> Path:
    return with_props(path, {TARGET_KEY: target, OPTIONS_KEY: options})


def test_options_that_planner_writes_are_taken(tmp_path: Path):
    asked = {"preferredLayout": "NCHW", "forceCpuNodeNames": "pool"}
    path = written_for(tmp_path / "m.onnx", "webgpu", json.dumps(asked))
    assert dict(needs_of(path).target.options) == asked


@pytest.mark.parametrize(
    "options",
    ["", "[]", "3", "[" * 100_000, '{"preferredLayout": 3}', '{"ep_library_path": "/tmp/x.so"}'],
)
def test_other_options_are_refused(options: str, tmp_path: Path):
    path = written_for(tmp_path / "m.onnx", "webgpu", options)
    with pytest.raises(UsageError, match="provider options that planner wrote"):
        needs_of(path)


@pytest.mark.parametrize("content", [b"\xff" * 100, b"text", b""])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for model in (path, content):
        with pytest.raises(UsageError, match="is not a model"):
            needs_of(model)


def test_level_order_and_packing_are_set(tmp_path: Path):
    plain = planner.session_options(with_props(tmp_path / "m.onnx", {}))
    assert plain.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert plain.execution_order == ort.ExecutionOrder.DEFAULT
    with pytest.raises(RuntimeError):
        plain.get_session_config_entry(PREPACKING)
    asked = {LEVEL_KEY: "disabled", ORDER_KEY: "priority", PACKED_KEY: "0"}
    path = with_props(tmp_path / "m.onnx", asked)
    for model in (path, str(path), path.read_bytes()):
        options = planner.session_options(model)
        assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED
        assert options.get_session_config_entry(PREPACKING) == "1"
        assert not options.enable_mem_pattern and not options.enable_mem_reuse


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (LEVEL_KEY, "most"),
        (ORDER_KEY, ""),
        (PACKED_KEY, "no"),
        (ARENA_KEY, "{}"),
        (ARENA_KEY, '{"max_bytes": 0, "first_region_bytes": 0}'),
        (ARENA_KEY, '{"max_bytes": 1e9, "first_region_bytes": 0}'),
        (ARENA_KEY, '{"max_bytes": 4, "first_region_bytes": 5}'),
    ],
)
def test_other_metadata_is_refused_by_its_name(key: str, value: str, tmp_path: Path):
    with pytest.raises(UsageError, match=key):
        needs_of(with_props(tmp_path / "m.onnx", {key: value}))


def test_an_arena_is_read(tmp_path: Path):
    text = '{"max_bytes": 1000, "first_region_bytes": 256}'
    needs = needs_of(with_props(tmp_path / "m.onnx", {ARENA_KEY: text}))
    assert needs.arena == Arena(max_bytes=1000, first_region_bytes=256)
    assert needs_of(with_props(tmp_path / "m.onnx", {})).arena is None
