"""The library, built where it is not."""

from __future__ import annotations

import pytest

from planner.native import SOURCES, is_built
from planner.native.building import BuildError, build


@pytest.fixture(scope="package", autouse=True)
def built() -> None:
    """The library is there; tests that need it are skipped where no compiler can make it."""
    if is_built():
        return
    try:
        build(SOURCES)
    except BuildError as error:
        pytest.skip(f"planner's native library cannot be built here: {error}")
