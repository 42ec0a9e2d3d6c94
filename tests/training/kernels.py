"""Run every case of `cases` in the installed build and print, as JSON, what its kernel did.

    .venv-training/bin/python -m tests.training.kernels

For each: shapes, and those that planner infers; buffers shared, workspace, and what planner expects;
inputs that it wrote over; whether a second run on the same inputs gave the same bytes.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from planner.graph.build import build_graph
from planner.onnxio.load import ValueType, inferred_types
from planner.runtime.memory.workspace import workspace
from planner.runtime.options import Opening
from planner.runtime.profile import create_session, run_session
from tests.graph.ort_probe import Array, Case, measure_under_caps, single_model
from tests.training.cases import cases

ROUNDING = 256


def kernel_facts() -> list[dict[str, Any]]:
    """One record per case, in order."""
    listed = cases()
    measured = measure_under_caps([case for _, case in listed])
    return [
        {
            "op_type": case.op_type,
            "domain": case.domain,
            "note": note,
            "views": found.views,
            "inplace": found.inplace,
            "aliased_bytes": found.aliased_bytes,
            "workspace_bytes": found.workspace_bytes,
            **_run_twice(case),
        }
        for (note, case), found in zip(listed, measured, strict=True)
    ]


def _run_twice(case: Case) -> dict[str, Any]:
    model, feeds = single_model(case)
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        path = Path(folder) / "one.onnx"
        ir.save(model, path)
        session = create_session(path, Opening(level="disabled", threads=1).options())
        first = [np.array(r) for r in run_session(session, _copies(feeds))]
        second = run_session(session, _copies(feeds))
        ir.save(single_model(case, sized=True)[0], path)
        left = _copies(feeds)
        run_session(create_session(path, Opening(level="disabled", threads=1).options()), left)
    written = [int(n[1:]) for n, a in feeds.items() if not np.array_equal(left[n], a)]
    inferred = inferred_types(model, {})
    names = [f"y{i}" for i in range(len(first))]
    types = {str(v.name): ValueType(dtype=v.dtype, shape=_dims(v)) for v in model.graph.inputs}
    for name, value in model.graph.initializers.items():
        types[name] = ValueType(dtype=value.dtype, shape=_dims(value))
    for name, array in zip(names, first, strict=True):
        types[name] = ValueType(dtype=ir.DataType.from_numpy(array.dtype), shape=array.shape)
    needed = workspace(build_graph(model, types), threads=1).values()
    sizes = [size for one in needed for size in (*one.before, *one.after)]
    return {
        "shapes": [[str(a.dtype), list(a.shape)] for a in first],
        "inferred": [
            [d.numpy().name if d else None, None if s is None else list(s)]
            for d, s in (inferred[n] for n in names)
        ],
        "written": written,
        "repeatable": all(
            np.array_equal(a, b) for a, b in zip(first, second, strict=True) if a.size
        ),
        "expected_workspace_bytes": sum(math.ceil(s / ROUNDING) * ROUNDING for s in sizes),
    }


def _copies(feeds: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in feeds.items()}


def _dims(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(int(d) for d in value.shape)


if __name__ == "__main__":
    print(json.dumps(kernel_facts()))
