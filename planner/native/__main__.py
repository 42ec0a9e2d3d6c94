"""Build the native library in its source folder: `python -m planner.native`."""

from __future__ import annotations

import shlex
import sys

from planner.native import library_path
from planner.native.building import SOURCES, BuildError, build


def main() -> int:
    """Build the library and print its path; return 1 where that fails."""
    try:
        compiler = build(SOURCES)
    except BuildError as error:
        print(f"planner's native library cannot be built: {error}", file=sys.stderr)
        return 1
    print(f"{library_path()} (built by {shlex.join(compiler.command)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
