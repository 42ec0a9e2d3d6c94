"""Sessions on a target: one way to create them, in the worker and nowhere else.

ONNX Runtime falls back to the CPU without a word where a provider cannot start; here that is an error.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import ModelError, UsageError
from planner.runtime.device.webgpu.provider import webgpu_devices, webgpu_session
from planner.runtime.messages import explain
from planner.runtime.swapping import register_for
from planner.targets import Target

if TYPE_CHECKING:
    import onnxruntime as ort


def create(
    target: Target, model: Path, options: ort.SessionOptions, settings: Mapping[str, str]
) -> ort.InferenceSession:
    """A session whose first provider is the target's.

    Args:
        settings: provider options, all of them.

    Raises:
        UsageError: the provider does not come up, with what to do.
        ModelError: the model does not load.
    """
    import onnxruntime as ort

    register_for(options, model)
    if target.plugin:
        return webgpu_session(model, options, settings)
    providers = [(target.provider, dict(settings)), "CPUExecutionProvider"]
    try:
        session = ort.InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    except Exception as error:
        raise ModelError(f"{model}: {explain(str(error))}") from error
    if target.provider not in session.get_providers():
        raise UsageError(
            f"--device {target.name}: {target.provider} does not come up, and ONNX Runtime fell back "
            f"to {', '.join(session.get_providers())}; check the device's driver and libraries"
        )
    return session


def check_provider(target: Target) -> None:
    """Raise UsageError where the installed onnxruntime lacks the provider, or it sees no device."""
    import onnxruntime as ort

    if not is_installed(target):
        raise UsageError(why_missing(target))
    if target.plugin:
        webgpu_devices()
    elif hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # CUDA and cuDNN from the packages of PyTorch or of NVIDIA


def is_installed(target: Target) -> bool:
    """Whether the provider is part of what is installed here; a device may still be missing."""
    import onnxruntime as ort

    if target.plugin:
        return importlib.util.find_spec(target.plugin) is not None
    return target.provider in ort.get_available_providers()


def why_missing(target: Target) -> str:
    """What to do where the provider is not installed."""
    import onnxruntime as ort

    beside = "" if target.plugin else " instead of onnx-planner[cpu], on a machine with its driver"
    return (
        f"--device {target.name} needs {target.provider}, which this onnxruntime {ort.__version__} "
        f'does not have: install "onnx-planner[{target.extra}]"{beside}'
    )
