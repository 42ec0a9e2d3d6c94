"""CUDA's compiler: where it is found, what is said where it is missing or refuses a kernel, and that
NVIDIA's own, where it is installed, takes the sources of all programs, without a card.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from planner.fuse.rewrite import with_fusion
from planner.graph.schedule import default_order
from planner.native import library_path
from planner.targets.cuda import FUSED
from tests.fuse.fake_cuda import Case, Fakes
from tests.fuse.graphs import model_of, same_bits
from tests.fuse.test_cuda import HALVES, ZOO, halved
from tests.fuse.test_operators import DTYPES
from tests.fuse.test_pointwise import Drawn
from tests.graphs import graph_of
from tests.native.fakes import HERE, environment, python

PLAIN = "x = input float\nt = mul x x\noutput t"
X = {"x": np.ones(3, np.float32)}


def test_what_is_missing_is_said_with_what_to_do(fakes: Fakes):
    (said,) = fakes.run([(PLAIN, X)], PLANNER_TEST_NVRTC="")
    assert "libnvrtc.so.13 or .12 was not found" in said and "nvidia-cuda-nvrtc" in said
    (said,) = fakes.run([(PLAIN, X)], FAKE_DRIVER_CAPABILITY="70")
    assert "makes no code for compute capability 7.0" in said and "plan without --fuse" in said
    (said,) = fakes.run([(PLAIN, X)], FAKE_NVRTC_HEADER="/no/such/file.h")
    assert "refuses a kernel: NVRTC_ERROR_COMPILATION" in said and "/no/such/file.h" in said
    assert "plan without --fuse; the program:\nx = input" in said
    assert "Name:" in said  # of the node


def test_a_device_newer_than_the_compiler_gets_code_that_the_driver_compiles(fakes: Fakes):
    (found,) = fakes.one(PLAIN, X, FAKE_DRIVER_CAPABILITY="103")
    assert same_bits(found, np.ones(3, np.float32))


def test_what_two_nodes_have_alike_is_compiled_once(fakes: Fakes):
    nodes = [
        helper.make_node("Pointwise", [a], [b], domain="planner.fused", program=PLAIN)
        for a, b in (("x", "y"), ("y", "z"))
    ]
    (found,) = fakes.run([(model_of(nodes, X, ["z"]), X)])
    assert same_bits(found[0], np.ones(3, np.float32))
    newest = max(fakes.folder.iterdir(), key=lambda path: int(path.name))
    assert len(list(newest.glob("*.cu"))) == 1


WHY = """
import onnxruntime
from planner import native
print(onnxruntime.__file__, native.why_no_compiler() or "found", sep="\\n")
"""


def test_the_compiler_is_found_beside_onnxruntime(fakes: Fakes, tmp_path: Path):
    import onnxruntime

    site, libraries = tmp_path / "site", tmp_path / "lib"
    here = Path(onnxruntime.__file__).parent
    shutil.copytree(here, site / "onnxruntime", copy_function=os.symlink)
    libraries.mkdir()
    (libraries / "libcuda.so.1").symlink_to(fakes.driver)

    def why(driver: int = 13000) -> str:
        child = environment(fakes.driver, LD_LIBRARY_PATH=str(libraries))
        child |= {"PYTHONPATH": f"{site}:{HERE.parents[1]}", "FAKE_DRIVER_VERSION": str(driver)}
        done = python("-c", WHY, **child)
        assert done.returncode == 0, done.stderr
        imported, said = done.stdout.splitlines()
        assert Path(imported).is_relative_to(site)
        return said

    assert why().startswith("CUDA's compiler libnvrtc.so.13 or .12 was not found")
    for package, major in (("cu13", 13), ("cuda_nvrtc", 12)):
        folder = site / "nvidia" / package / "lib"
        folder.mkdir(parents=True)
        (folder / f"libnvrtc.so.{major}").symlink_to(fakes.nvrtc)
        assert why(1000 * major) == "found"
        assert why(1000 * major - 10).startswith("CUDA's compiler")  # older than it
    # a session on the CPU has its own kernel where there are two
    shipped = replace(fakes, library=library_path())
    (found,) = shipped.one(PLAIN, X, LD_LIBRARY_PATH=str(libraries))
    assert same_bits(found, X["x"])


def nvrtc() -> Path:
    """NVIDIA's compiler, from its package; skips where it is not installed."""
    missing = "the package nvidia-cuda-nvrtc is not installed"
    nvidia = pytest.importorskip("nvidia", reason=missing)
    found = [p for root in nvidia.__path__ for p in Path(root).glob("*/lib/libnvrtc.so.1?")]
    if not found:
        pytest.skip(missing)
    return found[0]


def programs_of(name: str) -> list[Case]:
    """The programs of a sample with operations fused, each of dims once."""
    model, graph = graph_of(onnx.load(ZOO / f"{name}.onnx"))
    made = with_fusion(model, graph, default_order(graph), only_exact=False, kernels=FUSED)
    assert made is not None
    shape_of = {t.name: t.shape for t in graph.tensors}
    found: dict[Any, Case] = {}
    for node in made.model.graph:
        if node.domain != "planner.fused":
            continue
        text = node.attributes["program"].as_string()
        kinds = [line.split()[3] for line in text.splitlines() if " = input " in line]
        shapes = [shape_of[str(value.name)] for value in node.inputs if value is not None]
        feeds = zip(kinds, shapes, strict=True)
        arrays = {f"x{i}": np.zeros(dims, DTYPES[kind]) for i, (kind, dims) in enumerate(feeds)}
        found[text, tuple(shapes)] = text, arrays
    return list(found.values())


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_nvidias_compiler_takes_the_sources(fakes: Fakes, capability: int):
    cases = [("\n".join(d.lines), d.feeds) for d in map(Drawn, range(12))]
    cases += [*programs_of("gpt"), *programs_of("mlp_adamw")]
    for dtype, (number, _) in HALVES.items():
        text = f"axes 1\nx = input {dtype}\ns = mean x\nt = exp s\noutput t keep"
        cases.append(halved(text, {"x": np.ones((3, 70), np.float32)}, number, 1))
    results = fakes.run(
        cases, PLANNER_TEST_NVRTC=str(nvrtc()), FAKE_DRIVER_CAPABILITY=str(capability)
    )
    said = [result for result in results if isinstance(result, str)]
    assert len(cases) > 30 and not said, said[0]


def test_nvidias_compiler_rounds_each_operation_by_itself(fakes: Fakes, tmp_path: Path):
    for dtype, kind in (("float", "f32"), ("double", "f64")):
        names = ["p = mul x x", "q = add p x", "r = div q x", "s = sqrt r", "output s"]
        path = tmp_path / f"{kind}.ptx"
        newer = {"FAKE_DRIVER_CAPABILITY": "999", "FAKE_DRIVER_PTX": str(path)}
        feeds = {"x": np.ones(3, DTYPES[dtype])}
        text = "\n".join([f"x = input {dtype}", *names])
        fakes.one(text, feeds, PLANNER_TEST_NVRTC=str(nvrtc()), **newer)
        ptx = path.read_text()
        for instruction in ("div.rn", "sqrt.rn", "mul(.rn)?", "add(.rn)?"):
            assert re.search(rf"{instruction}\.{kind}", ptx), (instruction, ptx)
        assert "fma" not in ptx and ".ftz" not in ptx and ".approx" not in ptx
