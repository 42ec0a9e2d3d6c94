"""The WebGPU target on the software device, and on no GPU of the machine's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from planner.targets.backend import ByteCounter
from planner.targets.webgpu.backend import WebGpu
from tests.swiftshader import device
from tests.swiftshader.counting import DRIVER_VARIABLE, Counter


class SoftwareWebGpu(WebGpu):
    """Sessions on SwiftShader."""

    def find(self) -> None:
        device.find_device()

    def is_hardware(self) -> bool:
        return False

    def start(
        self, command: Sequence[str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return device.start(command, device.find_device(), timeout_s=timeout_s)

    def counter(self) -> ByteCounter | None:
        return Counter() if DRIVER_VARIABLE in os.environ else None


BACKEND = SoftwareWebGpu
