"""What the library declares of ONNX Runtime's C interface is what its header declares."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from planner.native.building import SOURCES, system_compiler


def agrees(declarations: Path, headers: str) -> str:
    """What the compiler says of the comparison; "" where everything agrees."""
    compiler = system_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler to compare declarations with")
    flags = ("-std=c++17", "-fsyntax-only", "-Wno-ignored-attributes")
    check = Path(__file__).with_name("abi_check.cpp")
    done = subprocess.run(
        [*compiler.command, *flags, f"-I{declarations}", f"-I{headers}", str(check)],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr


@pytest.fixture
def headers() -> str:
    """A folder with onnxruntime_c_api.h of the onnxruntime that is tested with."""
    folder = os.environ.get("PLANNER_ORT_INCLUDE", "")
    if not (Path(folder) / "onnxruntime_c_api.h").is_file():
        pytest.skip("PLANNER_ORT_INCLUDE names no folder with onnxruntime_c_api.h")
    return folder


def test_slots_signatures_and_layouts_are_those_of_the_header(headers: str, tmp_path: Path):
    assert agrees(SOURCES, headers) == ""
    declared = (SOURCES / "ort_abi.h").read_text()
    for old, new, said in (
        ("CreateValue, 82", "CreateValue, 83", "slot of CreateValue"),
        ("KernelInfo*, size_t, TypeInfo", "KernelInfo*, int, TypeInfo", "signature of KernelInfo_"),
        ("void (*KernelDestroy)(void*);", "", "place of GetInputCharacteristic"),
    ):
        assert old in declared
        (tmp_path / "ort_abi.h").write_text(declared.replace(old, new))
        assert said in agrees(tmp_path, headers)
