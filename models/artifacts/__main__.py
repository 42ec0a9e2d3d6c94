"""`python -m models.artifacts NAME FOLDER`: write the artifacts of a net."""

from __future__ import annotations

import sys
from pathlib import Path

from models.artifacts.generate import FILES, generate
from models.artifacts.nets import NETS


def main(arguments: list[str]) -> int:
    """Run the command line; return 0, or 2 for wrong arguments."""
    if len(arguments) != 2 or arguments[0] not in NETS:
        print(f"usage: python -m models.artifacts {{{','.join(NETS)}}} FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    generate(NETS[arguments[0]](), folder)
    for name in FILES:
        print(f"{(folder / name).stat().st_size:>10,} {folder / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
