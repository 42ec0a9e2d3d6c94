"""Build the samples: `python -m models.zoo [FOLDER]`; the folder is this one by default."""

from __future__ import annotations

import sys
from pathlib import Path

from models import zoo
from models.build import main

COMMANDS = {
    "mlp_adamw": "mlp --batch 1024 --layers 6 --optimizer adamw",
    "resnet18": "resnet18 --batch 32 --width 16 --image-size 64 --classes 10",
    "gpt": "gpt2 --batch 8 --seq 128 --width 128 --layers 4 --heads 4 --vocabulary 512",
}
"""The arguments of `models.build`, by sample."""


def rebuild(folder: Path) -> None:
    """Write every sample and its sidecar into `folder`."""
    for name in zoo.NAMES:
        output = folder / zoo.path(name).name
        if main([*COMMANDS[name].split(), "--sidecar", "-o", str(output)]):
            raise SystemExit(f"{name} was not built")


if __name__ == "__main__":
    rebuild(Path(sys.argv[1]) if len(sys.argv) > 1 else zoo.path(zoo.NAMES[0]).parent)
