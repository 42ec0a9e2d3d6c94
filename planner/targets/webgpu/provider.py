"""ONNX Runtime's WebGPU provider, a plug-in: register it once, and open sessions that really use it.

Where a provider does not start or fails in a run, ONNX Runtime goes on with the CPU by default, with
no more than a warning. In sessions of this module both are errors.

ONNX Runtime finds the machine's GPUs in `/sys/class/drm`, and the plug-in reaches them through Vulkan.
Run as a program, the module tells whether its process has a WebGPU device: `python -m
planner.targets.webgpu.provider` ends with status 0, or with a reason.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import ModelError, PlannerError, UsageError
from planner.processes.children import run_child
from planner.runtime.messages import explain, first_line
from planner.targets.webgpu import WEBGPU

if TYPE_CHECKING:
    import onnxruntime as ort

_EP_FAIL = "EP_FAIL"  # the status in an error that is the provider's rather than the model's


@functools.cache
def why_no_adapter() -> str:
    """Try a session in a process of its own; return why it does not run, or "" if it does."""
    done = run_child([sys.executable, "-m", __name__])
    if not done.returncode:
        return ""
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


@functools.cache
def webgpu_devices() -> tuple[Any, ...]:
    """Return the WebGPU devices that ONNX Runtime sees in this process.

    Raises:
        UsageError: this onnxruntime takes no plugins, or no device exists.
    """
    import onnxruntime as ort

    plugin = importlib.import_module(WEBGPU.plugin)
    if not hasattr(ort, "register_execution_provider_library"):
        raise UsageError(f"onnxruntime {ort.__version__} takes no plugins: install 1.31")
    ort.register_execution_provider_library("planner-webgpu", plugin.get_library_path())
    name = plugin.get_ep_name()
    devices = tuple(device for device in ort.get_ep_devices() if device.ep_name == name)
    if not devices:
        raise UsageError("ONNX Runtime sees no GPU")
    return devices


def add_device(options: ort.SessionOptions, settings: Mapping[str, str]) -> None:
    """Make `options` open sessions on the first WebGPU device, with the provider's options."""
    options.add_provider_for_devices(list(webgpu_devices()[:1]), dict(settings))


def webgpu_session(
    model: Path | bytes, options: ort.SessionOptions, settings: Mapping[str, str] | None = None
) -> ort.InferenceSession:
    """Open a session on the first WebGPU device, in a process that sees one.

    Args:
        model: a path, or the serialized model.
        settings: the provider's options.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
        UsageError: no device exists, or the provider does not start on it.
    """
    import onnxruntime as ort

    add_device(options, settings or {})
    source = model if isinstance(model, bytes) else str(model)
    try:
        session = ort.InferenceSession(source, options, enable_fallback=0)
    except Exception as error:
        if _EP_FAIL in str(error):
            # the reason comes after the source line and the failed condition
            reason = first_line(error).rpartition("was false. ")[2]
            raise UsageError(f"the WebGPU provider does not come up: {reason}") from error
        name = "the model" if isinstance(model, bytes) else model
        raise ModelError(f"{name}: {explain(str(error))}") from error
    if WEBGPU.provider not in session.get_providers():
        raise UsageError(f"the session has no {WEBGPU.provider}, only {session.get_providers()}")
    return session


def main() -> int:
    """Square one number on the device; return 0, or 1 with the reason on stderr."""
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["y"])], "one", [x], [y])
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = webgpu_session(model.SerializeToString(), options)
        session.run(None, {"x": np.ones(1, np.float32)})
    except PlannerError as error:
        print(error, file=sys.stderr)
    except Exception as error:
        print(first_line(error), file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
