"""The library, built where it is not."""

from __future__ import annotations

import pytest

from tests.fuse.fake_cuda import Fakes
from tests.native.fakes import shared_sources


@pytest.fixture(scope="package", autouse=True)
def built(native_library: None) -> None:
    """Every test of this folder needs it."""


@pytest.fixture(scope="package")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """CUDA without a card."""
    return Fakes.built(tmp_path_factory.mktemp("fakes"), shared_sources(tmp_path_factory))
