"""What a file's metadata may ask of a session, when somebody else wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.runtime.opened import needs_of
from planner.targets import OPTIONS_KEY, TARGET_KEY
from reports.reliability.graphs import diamond, proto, save


def written_for(path: Path, target: str, options: str) -> Path:
    model = proto(diamond())
    model.metadata_props.add(key=TARGET_KEY, value=target)
    model.metadata_props.add(key=OPTIONS_KEY, value=options)
    save(model, path)
    return path


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


@pytest.mark.parametrize("content", [b"\xff" * 100, b"text"])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a model"):
        needs_of(path)
