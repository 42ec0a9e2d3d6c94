"""The CUDA side of verification: what it needs, and a hard cap by `gpu_mem_limit`.

Not measured on a device here; written from ONNX Runtime's documented provider options. The limit
covers the provider's arena only, not the CUDA context, library handles or pinned memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.errors import ModelError, UsageError
from planner.results import CapCheck
from planner.runtime.options import session_options
from planner.runtime.profile import create_session, run_session

CUDA = "CUDAExecutionProvider"
TOLERANCE = 1e-4
"""Relative difference of an output that is put down to the order of atomic additions."""


def check_device(device: str) -> str:
    """`device`, if ONNX Runtime can run on it here.

    Raises:
        UsageError: an unknown device, or what is missing for this one.
    """
    if device == "cpu":
        return device
    if device != "cuda":
        raise UsageError(f"--device is cpu or cuda, not {device!r}")
    import onnxruntime as ort

    if CUDA not in ort.get_available_providers():
        raise UsageError(
            f"--device cuda needs {CUDA}, which this onnxruntime {ort.__version__} does not have: "
            "install planner[gpu] (onnxruntime-gpu) instead of planner[cpu], on a machine with an "
            "NVIDIA driver, CUDA and cuDNN"
        )
    return device


def providers(device: str, limit_bytes: int | None = None) -> list[Any]:
    """Execution providers for a session on `device`."""
    if device == "cpu":
        return ["CPUExecutionProvider"]
    settings = {"arena_extend_strategy": "kSameAsRequested"}
    if limit_bytes is not None:
        settings["gpu_mem_limit"] = str(limit_bytes)
    return [(CUDA, settings), "CPUExecutionProvider"]


def capped(
    paths: Mapping[str, Path],
    inputs: Mapping[str, npt.NDArray[Any]],
    budget_bytes: int,
    *,
    below_baseline: bool,
) -> tuple[CapCheck, ...]:
    """Both models with `gpu_mem_limit` at the budget, memory pattern and reuse off."""
    checks: list[CapCheck] = []
    for model, expected in (("original", False if below_baseline else None), ("rewritten", True)):
        message = ""
        try:
            options = session_options(level="extended")
            options.enable_mem_pattern = False
            options.enable_mem_reuse = False
            session = create_session(paths[model], options, providers("cuda", budget_bytes))
            for _ in range(2):
                run_session(session, inputs)
            del session
        except ModelError as error:
            message = str(error)
        checks.append(
            CapCheck(
                model=model,
                cap_bytes=budget_bytes,
                passed=not message,
                expected=expected,
                message=message,
            )
        )
    return tuple(checks)
