"""The library, built where it is not."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="package", autouse=True)
def built(native_library: None) -> None:
    """Every test of this folder needs it."""
