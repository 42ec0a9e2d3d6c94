"""Count the bytes of a software device, by a Vulkan driver between the loader and the real one.

`counting_driver.c` is compiled on first use and kept in the user's cache folder under the digest of
its source. Files are written under another name and renamed: two processes may begin at once.

In the process that has the device, `Counter` opens the same file. The dynamic linker keeps one copy
of a library in a process: these are the counters that the Vulkan loader's calls advance.
`DriverStats.devices` is 0 as long as no call came through.

The counters, on SwiftShader under ONNX Runtime's WebGPU provider 0.4:

    storage   tensors, feeds and outputs included; also buffers that the provider keeps for reuse
    other     staging to and from the host, and uniforms
    memory    device memory behind both; small buffers share blocks of 8 MiB

All three are 0 again when the last session is gone.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

from planner.errors import PlannerError, UsageError
from planner.files.keeping import cache_folder
from planner.files.temporary import temporary_folder

SOURCE = Path(__file__).with_name("counting_driver.c")
DRIVER_VARIABLE = "PLANNER_VK_COUNTER"
"""The environment variable with the compiled driver that this process's Vulkan loader loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStats:
    """The driver's counters, in its order. Peaks are since the start or the last `reset_peak`.

    Attributes:
        memory_now, memory_peak: bytes of device memory taken.
        storage_now, storage_peak: bytes of storage buffers, which hold tensors.
        other_now, other_peak: bytes of all other buffers.
        buffers: buffers made since the start.
        refused: storage buffers refused by the cap since the start.
        submits: batches of work submitted since the start.
        devices: devices made since the start; while it is 0, nothing has been counted.
    """

    memory_now: int
    memory_peak: int
    storage_now: int
    storage_peak: int
    other_now: int
    other_peak: int
    buffers: int
    refused: int
    submits: int
    devices: int


_FIELDS = tuple(field.name for field in fields(DriverStats))


class Counter:
    """The counting driver of this process, which `device.start` gave a counted device."""

    def __init__(self) -> None:
        """Raises:
        PlannerError: the process was started without a counted device.
        """
        path = os.environ.get(DRIVER_VARIABLE)
        if not path:
            raise PlannerError(f"{DRIVER_VARIABLE} is not set: the process has no counted device")
        self._driver = ctypes.CDLL(path)
        self._driver.planner_vk_cap.argtypes = [ctypes.c_uint64]

    def stats(self) -> DriverStats:
        """Return the counters, all read at one moment."""
        values = (ctypes.c_uint64 * len(_FIELDS))()
        self._driver.planner_vk_stats(values)
        return DriverStats(**dict(zip(_FIELDS, values, strict=True)))

    def peak_bytes(self) -> int:
        """Return the bytes of storage buffers at their peak."""
        return self.stats().storage_peak

    def refused(self) -> int:
        """Return the number of storage buffers that the cap refused."""
        return self.stats().refused

    def reset_peak(self) -> None:
        """Restart the peaks from the bytes that are held now."""
        self._driver.planner_vk_reset_peak()

    def cap(self, cap_bytes: int) -> None:
        """Refuse storage buffers beyond `cap_bytes` bytes from now on; 0 for no cap.

        A session whose initializers are refused is created without an error, and a run goes on to
        its end before it fails ("[Invalid Buffer (unlabeled)] is invalid"): `DriverStats.refused`
        tells at once. Later runs of the session fail as well, even without a cap, since the provider
        has kept the buffer for reuse: open a new session.
        """
        self._driver.planner_vk_cap(cap_bytes)


def compiled_driver() -> Path:
    """Return the path of the counting driver, and compile it where the cache does not have it yet.

    Raises:
        UsageError: there is no C compiler, or it fails.
    """
    source = SOURCE.read_bytes()
    # machines with different processors may share a home folder
    digest = hashlib.sha256(platform.machine().encode() + source).hexdigest()[:16]
    path = cache_folder() / f"counting-driver-{digest}.so"
    if path.exists():
        return path
    compiler = shutil.which("cc")
    if compiler is None:
        raise UsageError("there is no C compiler (cc) to build the counting driver: install gcc")
    with temporary_folder(path.parent) as folder:
        built = folder / path.name
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE)]
        done = subprocess.run(
            [*command, "-ldl", "-lpthread"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
            raise UsageError(f"the C compiler did not build the counting driver: {reason}")
        os.replace(built, path)
    return path
