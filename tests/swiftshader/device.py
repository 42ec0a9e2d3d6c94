"""SwiftShader, a GPU in software, as the WebGPU device of a process.

ONNX Runtime finds a machine's GPUs in `/sys/class/drm`, and its WebGPU plugin reaches them through
Vulkan. SwiftShader is a Vulkan driver in software, which comes with chromium. The plugin runs on it
unchanged once two things are arranged, both before the process starts:

    the Vulkan loader   is told of one driver only, by the environment: that of `counting`, which
                        counts and forwards to SwiftShader
    /sys/class/drm      shows one GPU, in a mount namespace that no other process sees

Tensors then lie in storage buffers apart from the host's, copies between the two are real, and the
driver counts every byte and can refuse requests as a full device would. Only its times say nothing about
a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import UsageError
from planner.files.keeping import keep
from planner.processes.children import run_child
from planner.targets.webgpu import WEBGPU, provider
from tests.swiftshader.counting import DRIVER_VARIABLE, compiled_driver

PLUGIN = WEBGPU.plugin
ROOT = Path(__file__).parents[2]

FOLDERS = (
    "/usr/lib/chromium",
    "/usr/lib/chromium-browser",
    "/snap/chromium/current/usr/lib/chromium-browser",
    "/opt/google/chrome",
)
"""The folders of SwiftShader on Debian, Ubuntu and in Google's package, with a Vulkan loader beside
it."""

SWIFTSHADER = "libvk_swiftshader.so"
LOADER = "libvulkan.so.1"

# the folder is named like an address on the PCI bus, without which ONNX Runtime warns
_ONE_GPU = """\
set -e
mount -t tmpfs tmpfs /sys/class
gpu=/sys/class/0000:00:00.0
mkdir -p $gpu /sys/class/drm/card0
ln -s $gpu /sys/class/drm/card0/device
echo 0x1ae0 > $gpu/vendor
echo 0xc0de > $gpu/device
echo 0x030200 > $gpu/class
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareDevice:
    """The way to start a process in which ONNX Runtime's WebGPU plugin sees SwiftShader.

    Attributes:
        prefix: words before the command.
        environment: variables to set, in addition to the process's own.
        why_not_counted: one line on why `counting.Counter` does not work in the process; "" where it
            does.
    """

    prefix: tuple[str, ...]
    environment: Mapping[str, str]
    why_not_counted: str = ""


def start(
    argv: Sequence[str], device: SoftwareDevice, *, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `argv` to its end in a process that has `device`, and capture its output as text.

    Raises:
        subprocess.TimeoutExpired: it ran longer than `timeout_s`.
    """
    return run_child([*device.prefix, *argv], environment=device.environment, timeout_s=timeout_s)


@functools.cache
def find_device() -> SoftwareDevice:
    """Return SwiftShader, after a session has run on it.

    The environment variable PLANNER_SWIFTSHADER names its library where it is not in one of
    `FOLDERS`.

    Raises:
        UsageError: names what is missing, and what to install.
    """
    if importlib.util.find_spec(PLUGIN) is None:
        raise UsageError(
            'ONNX Runtime\'s WebGPU plugin is not installed: pip install "onnx-planner[webgpu]"'
        )
    device = _arranged()
    done = start([sys.executable, "-m", provider.__name__], device)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UsageError(f"ONNX Runtime does not run on SwiftShader here: {said}")
    return device


def _arranged() -> SoftwareDevice:
    swiftshader = _swiftshader()
    environment = _loader_environment(swiftshader) | {"PYTHONPATH": _python_path()}
    prefix = _namespace()
    driver, why_not_counted = swiftshader, ""
    try:
        driver = compiled_driver()
        environment |= {"PLANNER_VK_DRIVER": str(swiftshader), DRIVER_VARIABLE: str(driver)}
    except UsageError as error:
        why_not_counted = str(error)
    manifest = str(_manifest(driver))
    # loaders older than 1.3.207 know only the second name
    environment |= {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}
    return SoftwareDevice(prefix=prefix, environment=environment, why_not_counted=why_not_counted)


def _python_path() -> str:
    """Return where the process finds this package, by which planner counts there."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _swiftshader() -> Path:
    named = os.environ.get("PLANNER_SWIFTSHADER")
    if named:
        if Path(named).is_file():
            return Path(named).resolve()
        raise UsageError(f"PLANNER_SWIFTSHADER names no file: {named}")
    for folder in FOLDERS:
        path = Path(folder) / SWIFTSHADER
        if path.is_file():
            return path
    raise UsageError(
        "there is no SwiftShader: apt-get install chromium, or name its libvk_swiftshader.so in "
        "PLANNER_SWIFTSHADER"
    )


def _loader_environment(swiftshader: Path) -> dict[str, str]:
    """Return variables by which the plugin finds a Vulkan loader: the one beside SwiftShader, or the
    system's."""
    if (swiftshader.parent / LOADER).is_file():
        others = os.environ.get("LD_LIBRARY_PATH")
        folders = [str(swiftshader.parent), *([others] if others else [])]
        return {"LD_LIBRARY_PATH": ":".join(folders)}
    try:
        ctypes.CDLL(LOADER)
    except OSError:
        raise UsageError(
            f"there is no Vulkan loader ({LOADER}), neither the system's nor beside "
            f"{swiftshader}: apt-get install libvulkan1"
        ) from None
    return {}


def _namespace() -> tuple[str, ...]:
    """Return a command prefix that shows one GPU to the command after it, and to no other process."""
    unshare = shutil.which("unshare")
    if unshare is None:
        raise UsageError("a software device needs the program unshare: apt-get install util-linux")
    ways = [["-m"]] if os.geteuid() == 0 else []
    ways.append(["-r", "-m"])  # a user namespace, in which anyone may mount
    reason = ""
    for way in ways:
        prefix = (unshare, *way, "sh", "-c", _ONE_GPU, "sh")
        done = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
        if not done.returncode:
            return prefix
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
    raise UsageError(
        "a software device needs a private mount namespace, which takes root or user namespaces "
        f"(kernel.unprivileged_userns_clone=1, or a container with CAP_SYS_ADMIN): {reason}"
    )


def _manifest(driver: Path) -> Path:
    """Return the file that tells the Vulkan loader of `driver`."""
    icd = {"library_path": str(driver), "api_version": "1.3.0"}
    content = json.dumps({"file_format_version": "1.0.0", "ICD": icd}).encode()
    return keep(f"vulkan-driver-{hashlib.sha256(content).hexdigest()[:16]}.json", content)
