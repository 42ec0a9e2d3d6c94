"""A software WebGPU device for the tests of this folder, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.errors import UsageError
from planner.targets.webgpu.software import WebGpuDevice, find_device


@pytest.fixture(scope="session")
def webgpu_device() -> Iterator[WebGpuDevice]:
    """SwiftShader, on machines with a GPU too: its bytes are counted, its numbers the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANNER_WEBGPU", "software")
        find_device.cache_clear()
        try:
            device = find_device()
        except UsageError as error:
            pytest.skip(str(error))
        yield device
    find_device.cache_clear()


@pytest.fixture(scope="session")
def counted_device(webgpu_device: WebGpuDevice) -> WebGpuDevice:
    """The same, where there is a C compiler to build the driver that counts."""
    if not webgpu_device.counts:
        pytest.skip(webgpu_device.why_not_counted)
    return webgpu_device
