"""The table of targets: names, anchors by type, and what a model adds to a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import planner
from planner.errors import ModelError, UsageError
from planner.graph.model import Category, Tensor, TensorId
from planner.lower.order.anchors import anchor_operator
from planner.pipeline.target.targeting import (
    check_target,
    fit_target,
    kept_on_cpu,
    target_metadata,
)
from planner.runtime.device.predict.table import kernel_table
from planner.targets import HOST, TARGETS, Device, devices, target_named
from planner.targets.backend import Backend, backend_of
from planner.targets.cuda import CUDA
from planner.targets.keys import OPTIONS_KEY, TARGET_KEY
from planner.targets.webgpu import WEBGPU


def tensor(dtype: str, rank: int) -> Tensor:
    return Tensor(
        id=TensorId(0),
        name="t",
        dtype=dtype,
        shape=(2,) * rank,
        bytes=4,
        category=Category.ACTIVATION,
        buffer=TensorId(0),
        producer=None,
        consumers=(),
    )


def test_each_row_has_its_own_name_and_provider() -> None:
    assert list(TARGETS) == [*get_args(Device)] == ["cpu", "webgpu", "cuda", "any"]
    assert len({t.provider for t in TARGETS.values()}) == 3
    assert [t.name for t in TARGETS.values() if not t.own_memory] == ["cpu", "any"]
    with pytest.raises(UsageError, match="cpu, webgpu, cuda or any, not 'tpu'"):
        target_named("tpu")


@pytest.mark.parametrize(
    ("dtype", "rank", "operator"),
    [
        ("float", 2, "GatherND"),
        ("float16", 1, "GatherND"),
        ("float", 0, "Neg"),
        ("bool", 0, "Not"),
        ("int64", 1, None),
        ("bool", 2, None),
    ],
)
def test_webgpu_reads_one_element_where_it_has_a_kernel(
    dtype: str, rank: int, operator: str | None
) -> None:
    assert anchor_operator(WEBGPU, tensor(dtype, rank), 17, on_host=False) == operator
    assert anchor_operator(WEBGPU, tensor(dtype, rank), 17, on_host=True) == "Size"


@pytest.mark.parametrize(
    ("dtype", "rank", "opset", "operator"),
    [
        ("float", 2, 17, "Size"),
        ("bool", 0, 18, "Size"),
        ("float16", 2, 18, "OptionalHasElement"),
        ("float16", 2, 17, "GatherND"),
        ("bfloat16", 2, 18, "GatherND"),
        ("bfloat16", 0, 18, "Sign"),  # a session refuses a Size of one
    ],
)
def test_the_cpu_has_no_kernel_of_size_for_half_types(
    dtype: str, rank: int, opset: int, operator: str
) -> None:
    for on_host in (False, True):  # a cast would be put before it
        assert anchor_operator(HOST, tensor(dtype, rank), opset, on_host=on_host) == operator


@pytest.mark.parametrize(("opset", "operator"), [(18, "OptionalHasElement"), (17, "Size")])
def test_half_copies_on_the_host_are_anchored_where_cuda_has_no_kernel(
    opset: int, operator: str
) -> None:
    assert anchor_operator(CUDA, tensor("float16", 2), opset, on_host=True) == operator
    assert anchor_operator(CUDA, tensor("bfloat16", 2), opset, on_host=True) == "Size"
    assert anchor_operator(CUDA, tensor("float", 2), opset, on_host=True) == "Size"


def pooled(outputs: list[str], name: str) -> ir.Model:
    node = h.make_node("MaxPool", ["x"], outputs, name, kernel_shape=[2, 2])
    x = h.make_tensor_value_info("x", T.FLOAT, [1, 1, 4, 4])
    y = h.make_tensor_value_info("y", T.FLOAT, [1, 1, 3, 3])
    graph = h.make_graph([node], "pool", [x], [y])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return ir.from_proto(model)


def test_what_a_provider_claims_and_cannot_run_is_kept_on_the_cpu() -> None:
    fitted = fit_target(WEBGPU, pooled(["y", "indices"], "pool"))
    assert kept_on_cpu(fitted) == ("pool",)
    assert fitted.options == {**WEBGPU.options, "forceCpuNodeNames": "pool"}
    assert fit_target(WEBGPU, pooled(["y"], "pool")) is WEBGPU
    assert fit_target(CUDA, pooled(["y", "indices"], "pool")) is CUDA
    with pytest.raises(ModelError, match="'y' has no name by which to keep it on the CPU"):
        fit_target(WEBGPU, pooled(["y", "indices"], ""))


def test_a_file_says_what_it_was_written_for_and_is_taken_for_nothing_else() -> None:
    model = pooled(["y"], "pool")
    check_target(model, Path("m.onnx"), CUDA)  # not planner's
    model.metadata_props.update(target_metadata(WEBGPU))
    assert model.metadata_props[TARGET_KEY] == "webgpu"
    assert "NCHW" in model.metadata_props[OPTIONS_KEY]
    check_target(model, Path("m.onnx"), WEBGPU)
    with pytest.raises(
        ModelError, match=r"m\.onnx was written by planner for webgpu, not for cuda"
    ):
        check_target(model, Path("m.onnx"), CUDA)


def saved_with(folder: Path, props: dict[str, str]) -> Path:
    """A small model with these entries in its metadata."""
    graph = h.make_graph(
        [h.make_node("Neg", ["x"], ["y"], name="n")],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [1])],
        [h.make_tensor_value_info("y", T.FLOAT, [1])],
    )
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    h.set_model_props(proto, props)
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


def test_a_file_that_names_no_device_says_which_entry_it_is(tmp_path: Path):
    path = saved_with(tmp_path, {TARGET_KEY: "toaster"})
    with pytest.raises(ModelError, match=rf"'toaster'.*remove the entry '{TARGET_KEY}'"):
        check_target(ir.load(path), path, HOST)
    with pytest.raises(UsageError, match="'toaster'"):
        planner.session_options(path)


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"a": 1}', "[" * 100_000])
def test_provider_options_that_are_none_are_refused(text: str, tmp_path: Path):
    path = saved_with(tmp_path, {OPTIONS_KEY: text})
    with pytest.raises(UsageError, match=OPTIONS_KEY):
        planner.session_options(path)


NAMED = re.compile(r"(?<!reports/)(cuda|webgpu)", re.I)
"""A target's name in code; the name of a document (`reports/cuda.md`) is none."""
HOST_NAMES = {HOST.name, HOST.provider}


def _names_in(path: Path) -> list[str]:
    """Return the places in a module, docstrings aside, that name a target."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if NAMED.search(node.value) or node.value in HOST_NAMES:
                found.append(f"{path}:{node.lineno}: {node.value!r}")
            continue
        texts = [
            getattr(node, field, None)
            for field in ("id", "attr", "name", "module", "arg", "asname")
        ]
        for text in texts:
            if isinstance(text, str) and NAMED.search(text):
                found.append(f"{path}:{getattr(node, 'lineno', 0)}: {text}")
    return found


PYTORCH = {"export", "torch"}
"""There "cpu" and "cuda" are PyTorch's names of its devices."""


def test_no_code_outside_its_folder_names_a_target() -> None:
    root = Path(planner.__file__).parent
    own = root / "targets"
    # the table; and the name of the hardware profile that is meant where none is named
    table = {own / "__init__.py", root / "choices.py"}
    modules = [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in PYTORCH
        and path not in table
        and (path.parent == own or own not in path.parents)
    ]
    assert len(modules) > 300
    assert [found for path in modules for found in _names_in(path)] == []
    assert _names_in(own / "cuda" / "__init__.py")  # the search finds what it looks for


def test_each_target_has_the_files_of_its_folder() -> None:
    for target in TARGETS.values():
        assert issubclass(type(backend_of(target)), Backend)
        assert target.snippet
    for target in devices():
        assert kernel_table(target).kernels
