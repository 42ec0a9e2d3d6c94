"""A device with memory of its own and no hardware: the WebGPU plug-in on chromium's software Vulkan.

It wants `onnxruntime-ep-webgpu`, Debian's chromium (its SwiftShader), and root: the plug-in looks for a
GPU in /sys/class/drm, which a mount namespace of the process shows it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/lib/chromium")
_DRIVER = CHROMIUM / "vk_swiftshader_icd.json"

_SHOW_A_GPU = """\
mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/drm/card0/device || exit 77
cd /sys/class/drm/card0/device && echo 0x1ae0 > vendor && echo 0xc0de > device && echo 0x030200 > class
cd "$OLDPWD"; exec "$@"
"""
NO_NAMESPACE = 77
"""Exit code of a run whose namespace could not be made."""


def why_not() -> str:
    """What is missing here; "" where the device can be had."""
    if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
        return "onnxruntime-ep-webgpu is not installed"
    if not _DRIVER.exists():
        return f"chromium's software Vulkan is not there ({_DRIVER})"
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return "a mount namespace needs unshare and root"
    return ""


def run_on_device(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` in a process that sees the device; `folder` is for its scratch."""
    settings = {
        "VK_ICD_FILENAMES": str(_DRIVER),
        "XDG_RUNTIME_DIR": str(folder),
        "LD_LIBRARY_PATH": str(CHROMIUM),
    }
    command = ["unshare", "-m", "bash", "-c", _SHOW_A_GPU, "--", sys.executable, *arguments]
    environment = {**os.environ, **settings}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def add_device(options: Any) -> None:
    """Put the device into session options; within a process that sees it."""
    import onnxruntime as ort
    import onnxruntime_ep_webgpu as plugin  # pyright: ignore[reportMissingImports]

    name = plugin.get_ep_name()
    if not [d for d in ort.get_ep_devices() if d.ep_name == name]:
        ort.register_execution_provider_library("webgpu", plugin.get_library_path())
    devices = [d for d in ort.get_ep_devices() if d.ep_name == name]
    options.add_provider_for_devices(devices[:1], {})
