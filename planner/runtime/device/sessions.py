"""Sessions on a target: one way to create them, in the worker and nowhere else.

A provider that is a plugin (WebGPU) is registered with the process first, and its device picked. ONNX
Runtime falls back to the CPU without a word where a provider cannot start; here that is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.runtime.profile import create_session
from planner.targets import Target

if TYPE_CHECKING:
    import onnxruntime as ort

_registered: set[str] = set()


def create(
    target: Target,
    model: Path,
    options: ort.SessionOptions,
    more: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """A session whose first provider is the target's.

    Args:
        more: provider options beside those of the target.

    Raises:
        UsageError: the provider or its device is missing here, with what to do.
        ModelError: the model does not load.
    """
    settings = {**target.options, **(more or {})}
    if target.plugin:
        options.add_provider_for_devices(_devices(target)[:1], settings)
        session = create_session(model, options, ())
    else:
        session = create_session(
            model, options, [(target.provider, settings), "CPUExecutionProvider"]
        )
    if target.provider not in session.get_providers():
        raise UsageError(
            f"--device {target.name}: {target.provider} could not start and ONNX Runtime fell back to "
            f"{', '.join(session.get_providers())}; check the device's driver"
        )
    return session


def check_provider(target: Target) -> None:
    """Raise UsageError where the installed onnxruntime lacks the provider, or it sees no device."""
    import onnxruntime as ort

    if target.plugin:
        _devices(target)
    elif target.provider not in ort.get_available_providers():
        raise UsageError(missing(target, str(ort.__version__)))
    elif hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # CUDA and cuDNN from the packages of PyTorch or of NVIDIA


def missing(target: Target, version: str) -> str:
    """What to do where the provider is not installed."""
    return (
        f"--device {target.name} needs {target.provider}, which this onnxruntime {version} does not "
        f'have: install "planner[{target.extra}]"'
        + ("" if target.plugin else " instead of planner[cpu], on a machine with its driver")
    )


def _devices(target: Target) -> list[Any]:
    import onnxruntime as ort

    try:
        plugin = importlib.import_module(target.plugin)
    except ImportError:
        raise UsageError(missing(target, str(ort.__version__))) from None
    if target.plugin not in _registered:
        ort.register_execution_provider_library(target.name, plugin.get_library_path())
        _registered.add(target.plugin)
    found = [d for d in ort.get_ep_devices() if d.ep_name == target.provider]
    if not found:
        raise UsageError(
            f"--device {target.name}: {target.provider} sees no device here; install its driver, or "
            "a software one (PLANNER_WEBGPU=software with Debian's chromium)"
        )
    return found
