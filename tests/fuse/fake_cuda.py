"""Runs programs of planner.fused by their CUDA kernels on the CPU (`tests/native/fakes.py`)."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tests.fuse.graphs import Array
from tests.native.fakes import (
    HERE,
    compiler,
    environment,
    library_for_tests,
    python,
    shared_library,
)

Case = tuple[str | onnx.ModelProto, Mapping[str, Array]]
"""A program, or a model, and what it is fed."""


def _kernel_compiler() -> list[str]:
    return [*compiler(), "-w", "-O1", "-std=c++17", "-ffp-contract=off", "-fPIC"]


def _kernel_header(folder: Path) -> Path:
    """Copy what kernels include to a folder, compiled where the compiler takes that in its place."""
    made = Path(shutil.copy(HERE / "fake_kernel.h", folder))
    command = [*_kernel_compiler(), "-x", "c++-header", str(made), "-o", f"{made}.gch"]
    subprocess.run(command, check=False, capture_output=True)
    return made


@dataclass(frozen=True)
class Fakes:
    """The test build, the fake driver and the fake compiler, and a folder for what they make."""

    library: Path
    driver: Path
    nvrtc: Path
    header: Path
    folder: Path

    def run(self, cases: Sequence[Case], *, threads: bool = False, **more: str) -> list[Any]:
        """What each case makes on the fake device, or what its error says.

        Args:
            threads: several run each session at once, too.
            more: of the environment; "" takes a variable out.
        """
        folder = self.folder / str(len(list(self.folder.iterdir())))
        folder.mkdir()
        (folder / "cases").write_bytes(pickle.dumps(list(cases)))
        chosen = environment(self.driver) | {
            "PLANNER_TEST_NVRTC": str(self.nvrtc),
            "FAKE_NVRTC_FOLDER": str(folder),
            "FAKE_NVRTC_HEADER": str(self.header),
            "FAKE_NVRTC_COMPILER": " ".join(_kernel_compiler()),
        }
        chosen = {name: text for name, text in (chosen | more).items() if text}
        asked = [self.library, folder, *(["threads"] if threads else [])]
        done = python("-m", "tests.fuse.on_fake_cuda", *asked, seconds=240, **chosen)
        assert done.returncode == 0, done.stderr
        return pickle.loads((folder / "results").read_bytes())

    def one(self, program: str, feeds: Mapping[str, Array], **more: str) -> list[Array]:
        """What one program makes, which must not fail."""
        (found,) = self.run([(program, feeds)], **more)
        assert not isinstance(found, str), found
        return found

    @staticmethod
    def built(folder: Path, sources: Path) -> Fakes:
        """Build them in a folder, the library of its compiled sources."""
        (folder / "runs").mkdir()
        return Fakes(
            library=library_for_tests(folder, sources),
            driver=shared_library("fake_driver", folder / "driver.so"),
            nvrtc=shared_library("fake_nvrtc", folder / "nvrtc.so"),
            header=_kernel_header(folder),
            folder=folder / "runs",
        )
