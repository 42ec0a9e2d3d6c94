"""`planner export`: from a callable in a file to a model, and every way in which that goes wrong."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import onnx
import onnxruntime
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from planner.cli.main import main
from planner.export.inputs import read_specs

OK, USAGE, MODEL = 0, 2, 3

SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F


def step():
    inputs = {"input": torch.randn(8, 6)}
    return nn.Linear(6, 3), inputs, F.cross_entropy, {"labels": torch.arange(8) % 3}


def trained():
    module, inputs, loss, targets = step()
    optimizer = torch.optim.Adagrad(module.parameters())

    def update():
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return {"clipped": norm}

    return module, inputs, loss, targets, update


def with_loss():
    class Loss(nn.Linear):
        def forward(self, x):
            return super().forward(x).square().mean()
    return Loss(6, 3), torch.randn(8, 6)


class Branch(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def branch():
    return Branch(6, 3), torch.randn(8, 6), torch.sum


def unsupported():
    return nn.Linear(6, 3), torch.randn(8, 6), lambda y: torch.i0(y).sum()


def vector():
    return nn.Linear(6, 3), torch.randn(8, 6), torch.tanh


def frozen():
    return nn.Linear(6, 3).requires_grad_(False), torch.randn(8, 6), torch.sum


def shapes():
    return nn.Linear(6, 3), torch.randn(8, 5), torch.sum


def fails():
    return {}["nothing"]


def number():
    return 3


VALUE = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_steps.py").write_text(SOURCE)
    return tmp_path


def refused(capsys, *arguments: str, status: int, words: tuple[str, ...]) -> None:
    before = sorted(Path().iterdir())
    assert main(["export", *arguments, "-o", "out.onnx"]) == status
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("planner: error: ")
    assert "bug in planner" not in lines[0]
    for word in words:
        assert word in lines[0], lines[0]
    assert [p for p in sorted(Path().iterdir()) if p.name != "__pycache__"] == before


def test_model_with_its_recipe(capsys) -> None:
    options = ["--optimizer", "adamw", "--dynamic-batch", "--sidecar"]
    assert main(["export", "my_steps.py:step", "-o", "m.onnx", *options]) == OK
    said = capsys.readouterr()
    assert "symbolic: batch" in said.out
    assert said.err == "planner: wrote m.onnx, m.inputs.json\n"
    model = onnx.load("m.onnx")
    onnx.checker.check_model(model, full_check=True)
    names = [info.name for info in model.graph.input]
    assert names[:4] == ["input", "labels", "weight", "bias"]
    assert list(read_specs(Path("m.inputs.json"))) == names
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert "weight_new" in {info.name for info in model.graph.output}


def test_optimizers_by_name_and_from_the_step(capsys) -> None:
    named = ["--optimizer", "sgd:lr=0.1,momentum=0.9,nesterov=true"]
    assert main(["export", "my_steps.py:step", "-o", "m.onnx", "--json", *named]) == OK
    state = json.loads(capsys.readouterr().out)["optimizer_state"]
    assert state == ["weight_momentum_buffer", "bias_momentum_buffer", "lr"]
    assert main(["export", "my_steps.py:trained", "-o", "n.onnx", "--json"]) == OK
    assert "clipped" in json.loads(capsys.readouterr().out)["graph_outputs"]
    assert main(["export", "my_steps.py:trained", "-o", "o.onnx", *named]) == USAGE
    assert "give only one of the two" in capsys.readouterr().err
    assert main(["export", "my_steps.py:step", "-o", "o.onnx", "--optimizer", "sgd:lr"]) == USAGE
    assert "NAME=VALUE" in capsys.readouterr().err


def test_named_axes_in_a_half_type(capsys) -> None:
    options = ["--dynamic", "input=rows", "--dynamic", "labels=rows", "--autocast", "bf16"]
    assert main(["export", "my_steps.py:step", "-o", "m.onnx", *options]) == OK
    said = capsys.readouterr()
    assert "symbolic: rows" in said.out
    assert "no bfloat16 kernel of Gemm" in said.err
    options += ["--cast-for-cpu", "--random", "inputs"]
    assert main(["export", "my_steps.py:step", "-o", "n.onnx", *options]) == OK
    assert capsys.readouterr().err == "planner: wrote n.onnx\n"
    onnxruntime.InferenceSession("n.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("option", ["input", "=batch", "input=,"])
def test_axes_that_are_not_written_so(option: str, capsys) -> None:
    assert main(["export", "my_steps.py:step", "-o", "m.onnx", "--dynamic", option]) == USAGE
    assert "--dynamic" in capsys.readouterr().err


def test_json(capsys) -> None:
    assert main(["export", "my_steps:with_loss", "-o", "m.onnx", "--json", "-q"]) == OK
    said = capsys.readouterr()
    assert said.err == ""
    summary = json.loads(said.out)
    assert summary["schema"] == "planner.export/1"
    assert summary["outputs"] == ["m.onnx"]
    assert summary["parameters"] == ["weight", "bias"]
    assert summary["graph_outputs"] == ["loss", "weight_grad", "bias_grad"]
    assert summary["nodes"] == len(onnx.load("m.onnx").graph.node)


def test_exported_model_can_be_planned() -> None:
    assert main(["export", "my_steps:step", "-o", "m.onnx", "--dynamic-batch", "-q"]) == OK
    assert main(["analyze", "m.onnx", "--dim", "batch=64", "-q"]) == OK


def test_existing_files_are_kept(capsys) -> None:
    for taken in ("m.onnx", "m.inputs.json", "m.onnx.data"):
        Path(taken).write_text("precious")
        options = ["--sidecar", "--external-data", "--params", "initializers"]
        assert main(["export", "my_steps:step", "-o", "m.onnx", *options]) == USAGE
        assert f"{taken} exists" in capsys.readouterr().err
        assert Path(taken).read_text() == "precious"
        Path(taken).unlink()
    Path("m.onnx").write_text("old")
    assert main(["export", "my_steps:step", "-o", "m.onnx", "-f"]) == OK
    onnx.load("m.onnx")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_steps:branch", ("value of a tensor", "my_steps.py", "in forward", "torch.where")),
        ("my_steps:unsupported", ("aten.i0.default", "my_steps.py", "other operators")),
        ("my_steps:vector", ("scalar",)),
        ("my_steps:frozen", ("no parameter to train",)),
        ("my_steps:shapes", ("fails on the example inputs",)),
    ],
)
def test_steps_that_cannot_be_exported(name, words, capsys) -> None:
    refused(capsys, name, status=MODEL, words=words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_steps", ("MODULE:CALLABLE",)),
        (":step", ("MODULE:CALLABLE",)),
        ("my_steps:", ("MODULE:CALLABLE",)),
        ("my_steps:nothing", ("no callable 'nothing'", "step")),
        ("my_steps:VALUE", ("no callable 'VALUE'",)),
        ("my_steps:fails", ("KeyError", "my_steps.py", "without arguments")),
        ("my_steps:number", ("returns int", "tuple")),
        ("none_such:step", ("no module named 'none_such'",)),
        ("none_such.py:step", ("no file none_such.py",)),
        ("broken.py:step", ("cannot be imported", "SyntaxError")),
        ("needy.py:step", ("cannot be imported", "none_such_library")),
        ("leaves.py:step", ("ends the process",)),
    ],
)
def test_callables_that_are_none(name, words, capsys) -> None:
    Path("broken.py").write_text("def step(:\n")
    Path("needy.py").write_text("import none_such_library\n")
    Path("leaves.py").write_text("raise SystemExit(1)\n")
    refused(capsys, name, status=USAGE, words=words)


def test_without_torch(capsys, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(capsys, "my_steps:step", status=USAGE, words=("pip install", "onnx-planner[torch]"))


def test_line_breaks_in_an_error_of_the_user_are_shown_escaped(capsys) -> None:
    Path("rude.py").write_text("def step():\n    raise ValueError('one\\ntwo')\n")
    refused(capsys, "rude.py:step", status=USAGE, words=("ValueError",))
