"""A plan that is made where its device's provider is missing is made again where it is, from the plan
file alone, and holds there; until then every door says what it rests on."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper as h

import planner
from planner.cli.main import main
from planner.errors import ModelError, UsageError
from planner.pipeline.answer.verifying import on_assumption
from planner.pipeline.record.assemble import read_plan
from planner.results.verification import Verification
from planner.running.asked import Asked, merged
from planner.runtime.opened import needs_of
from planner.targets.keys import ASSUMED_KEY, LEVEL_KEY
from planner.targets.webgpu import WEBGPU

SIDE, SOURCE = 32, "source.onnx"
ZOO = Path(__file__).parents[3] / "models" / "zoo"


@contextlib.contextmanager
def without_provider() -> Iterator[None]:
    """The provider's package cannot be imported, as on a machine that lacks it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, WEBGPU.plugin, None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`source.onnx`, and `model.onnx` and `model.plan.json`, written where there is no provider."""
    folder = tmp_path_factory.mktemp("travel")
    kinds = (
        "Exp a x",
        "Tanh k a",
        "MatMul b a k",
        "MatMul c b b",
        "MatMul d c c",
        "Mul e d a",
        "Mul y e k",
    )
    nodes = [h.make_node(kind, inputs, [out], out) for kind, out, *inputs in map(str.split, kinds)]
    x, y = (h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [SIDE, SIDE]) for name in "xy")
    graph = h.make_graph(nodes, "small", [x], [y])
    opsets = [h.make_opsetid("", 17)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=9), folder / SOURCE)
    with without_provider():
        result = planner.optimize(
            folder / SOURCE,
            budget=f"{5 * SIDE * SIDE * 4 - 256}B",
            device="webgpu",
            swap="only",
            resident="device",
            output=folder / "model.onnx",
            plan_path=folder / "model.plan.json",
            verify=False,
            time_limit_s=0.5,
        )
    assert result.plan.assumed and result.plan.planned.swapped_tensors
    return folder


def test_what_rests_on_an_assumption_says_so(folder: Path) -> None:
    model = folder / "model.onnx"
    props = {p.key: p.value for p in onnx.load(model).metadata_props}
    assert props[ASSUMED_KEY] == "1" and props[LEVEL_KEY] == "disabled"
    with without_provider():
        found = merged(Asked(model=str(model)), needs_of(model))
    assert any("planner apply MODEL PLAN" in line for line in found.against)
    said = r"made without WebGpuExecutionProvider.*planner apply"
    # there may be no device in this process
    with pytest.warns(UserWarning, match=said), contextlib.suppress(UsageError):
        planner.session_options(model)


def test_where_the_provider_is_missing_too_the_file_is_the_same(
    folder: Path, tmp_path: Path
) -> None:
    with without_provider():
        again = planner.apply(
            folder / SOURCE, folder / "model.plan.json", output=tmp_path / "again.onnx"
        )
    assert again.read_bytes() == (folder / "model.onnx").read_bytes()


def test_a_plan_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip(WEBGPU.plugin)
    other = ZOO / "gpt.onnx"
    with pytest.raises(ModelError, match="another model"):
        planner.apply(other, folder / "model.plan.json", output=tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_explain_sends_to_apply(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(WEBGPU.plugin)
    words = ["explain", str(folder / SOURCE), str(folder / "model.plan.json"), "--tensor", "a"]
    assert main(words) == 2
    assert "run planner apply" in capsys.readouterr().err


def test_where_the_provider_is_the_plan_is_made_again_and_holds(
    counted_device: object, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, output = folder / "model.plan.json", tmp_path / "model.planned.onnx"
    words = f"apply {folder / SOURCE} {plan} -o {output} --time-limit 0.5 --json -q"
    assert main(words.split()) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    check = found["verification"]
    assert check["passed"] and check["provider"] == WEBGPU.provider
    assert all(o["identical"] for o in check["outputs"])
    copies = check["copies"]
    assert copies["ran"] == copies["planned"] > 0 and copies["extra"] == []
    there, here = read_plan(plan), read_plan(output.with_suffix(".plan.json"))
    assert (here.assumed, here.ort_optimized) == (False, True)
    kept = ("budget_bytes", "reserve_bytes", "swap_mode", "recompute", "device", "model_sha256")
    assert all(getattr(here, name) == getattr(there, name) for name in kept)
    assert here.planned.peak_bytes <= there.budget_bytes
    props = {p.key for p in onnx.load(output).metadata_props}
    assert not {ASSUMED_KEY, LEVEL_KEY} & props
    # the plan of its own gives the same file, and it is not made a third time
    again = planner.apply(
        folder / SOURCE, output.with_suffix(".plan.json"), output=tmp_path / "again.onnx"
    )
    assert again.read_bytes() == output.read_bytes()


def test_verify_says_what_to_do(folder: Path) -> None:
    needs = needs_of(folder / "model.onnx")
    for passed in (True, False):
        seen = Verification(
            passed=passed,
            failures=() if passed else ("a copy did not run",),
            notes=(),
            ort_version="",
            provider=WEBGPU.provider,
            device="",
            seed=0,
            inputs_source="",
            outputs=(),
            orders=(),
            memory=(),
            caps=(),
            time=None,
        )
        found = on_assumption(seen, needs)
        said = found.notes if passed else found.failures
        assert "planner apply MODEL PLAN" in said[0] and found.passed == passed
