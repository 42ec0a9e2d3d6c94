"""One file: whether ONNX Runtime runs it, and what planner makes of it."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from onnx import version_converter

from planner.errors import ModelError, PlannerError
from planner.onnxio.load import load_model
from planner.onnxio.positions import shape_dims
from reports.planned import planned

BUDGETS = ("60%", "90%")
"""Of the peak, in live bytes: what an arena holds at least is more than most of these take. Where no plan
is found within them, what the error names."""

OPSET = 17
"""What a model is brought up to where ONNX Runtime has no kernels for its own operator set."""

SIZES = {
    "livekit-plugins-silero silero_vad.onnx": {"input:0": 1, "input:1": 288, "state:1": 1},
    "rapidocr-onnxruntime ch_PP-OCRv4_rec_infer.onnx": {
        "p2o.DynamicDimension.0": 1,
        "?": 48,
        "p2o.DynamicDimension.1": 320,
    },
    "onnx simple/test_sequence_model8/model.onnx": {"n": 2},
    "silero-vad silero_vad_16k_op15.onnx": {"batch": 1, "sequence": 576},
    "silero-vad silero_vad_half.onnx": {"batch": 1, "sequence": 576},
}
"""Sizes without which a model does not run: a line of text is 48 pixels high, speech comes in 36 ms, the
lengths that are drawn for the parts of a vector add up to 2."""

_OPTIONS = re.compile(r"give them, for example with (.*)$")

Row = dict[str, Any]


def row_of(name: str, path: Path, time_limit_s: float) -> Row:
    """Measure a file; what fails is in the row, by its own message."""
    row: Row = {"file": name, "bytes": path.stat().st_size, "not_loaded": _not_loaded(path)}
    with tempfile.TemporaryDirectory() as folder:
        if row["not_loaded"]:
            newer = _brought_up(path, Path(folder))
            if newer is None:
                return {**row, "outcome": "not loaded"}
            row["brought_up"] = OPSET
            path = newer
        try:
            row["dims"] = SIZES[name] if name in SIZES else _dims(path)
        except PlannerError as error:
            return {**row, "outcome": "refused", "why": _said(error, path)}
        row |= gained(path, time_limit_s, dims=row["dims"])
    if row["not_loaded"] and "could not run" in row.get("why", ""):
        row["outcome"] = "not loaded"  # what was brought up is no model that runs
    return row


def _brought_up(path: Path, folder: Path) -> Path | None:
    """The model in a newer operator set, where ONNX Runtime loads that."""
    newer = folder / path.name
    try:
        onnx.save(version_converter.convert_version(onnx.load(path), OPSET), newer)
    except Exception:
        return None
    return None if _not_loaded(newer) else newer


def _dims(path: Path) -> dict[str, int]:
    """Sizes for the open dims: those that the error suggests."""
    try:
        load_model(path)
    except ModelError as error:
        found = _OPTIONS.search(str(error))
        if found is None:
            raise
        words = shlex.split(found[1])
        pairs = list(zip(words[::2], words[1::2], strict=True))
        named = (text.rpartition("=") for option, text in pairs if option == "--dim")
        shapes = shape_dims(text for option, text in pairs if option == "--shape")
        return {name: int(size) for name, _, size in named} | shapes
    return {}


def gained(model: Path, time_limit_s: float, **options: Any) -> Row:
    """What `reports.planned` finds, and whether the plan takes less than the model does."""
    row = planned(model, None, time_limit_s, "live", BUDGETS, **options)
    if row["plan"] == "infeasible" or row.get("planned_bytes", 0) >= row.get("peak_bytes", 1):
        return {**row, "outcome": "nothing to gain"}
    return {**row, "outcome": "refused" if row["plan"] == "failed" else row["plan"]}


def _not_loaded(path: Path) -> str:
    """Why ONNX Runtime does not load a file; "" where it does."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error).splitlines()[0].replace(str(path), path.name)
    return ""


def _said(error: Exception, path: Path) -> str:
    return str(error).replace(f"{path.parent}/", "")
