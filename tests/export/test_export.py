"""What the exporter promises beyond numbers: names, ties, unused parameters, refusals, files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.build import build, main
from models.check import compare, draw_rough, materialize, run
from models.nets import GPT, MLP
from models.recipes import RECIPES, Step, language_loss
from planner.errors import UsageError
from planner.export.errors import (
    DataDependentControlFlow,
    InvalidLoss,
    UnsupportedOperator,
)
from planner.export.inputs import InputSpec, draw_inputs, read_specs
from planner.export.write.files import save

FEATURES = InputSpec(shape=(4, 6), dtype="float32", kind="normal")
LABELS = InputSpec(shape=(4,), dtype="int64", kind="randint", high=3)


def step(module: nn.Module, loss=torch.sum) -> Step:
    return Step(module=module, inputs={"x": FEATURES}, loss=loss)


def output_names(model: onnx.ModelProto) -> list[str]:
    return [output.name for output in model.graph.output]


def input_names(model: onnx.ModelProto) -> list[str]:
    return [info.name for info in model.graph.input]


# -- parameters ------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One matrix, used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_tied_weights_are_one_input_with_one_gradient() -> None:
    tied = step(Tied())
    graph, _ = build(tied, "tied")
    assert input_names(graph.model) == ["x", "first.weight"]
    assert output_names(graph.model) == ["loss", "first.weight_grad"]
    assert compare(tied).worst[1] < 1e-6


class Partial(nn.Module):
    """`unused` is never read, `frozen` is read but not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 3)
        self.unused = nn.Linear(6, 3)
        self.frozen = nn.Parameter(torch.empty(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.used(x) * self.frozen)


def test_parameters_without_gradient() -> None:
    partial = step(Partial())
    graph, _ = build(partial, "partial")
    assert sorted(input_names(graph.model)) == ["frozen", "used.bias", "used.weight", "x"]
    assert graph.parameters == ("used.weight", "used.bias")
    assert graph.buffers == ("frozen",)
    assert compare(partial).worst[1] < 1e-6


class Sum(nn.Module):
    """Both parameters receive the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(6))
        self.b = nn.Parameter(torch.empty(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * (self.a + self.b))


def test_shared_gradient_is_given_twice() -> None:
    graph, _ = build(step(Sum()), "sum")
    assert output_names(graph.model) == ["loss", "a_grad", "b_grad"]
    assert [node.op_type for node in graph.model.graph.node].count("Identity") == 1
    assert compare(step(Sum())).worst[1] < 1e-6


def test_batch_norm_gives_its_new_buffers() -> None:
    norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    graph, _ = build(step(norm, lambda y: (y**3).sum()), "norm")
    names = ["1.running_mean_new", "1.running_var_new", "1.num_batches_tracked_new"]
    assert output_names(graph.model)[-3:] == names


# -- refusals --------------------------------------------------------------------------------------


class Calls(nn.Module):
    """A linear map, then any function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def inverse(x: Tensor) -> Tensor:
    return torch.special.bessel_y0(x.detach()) * x


def test_unsupported_operator_is_named() -> None:
    with pytest.raises(UnsupportedOperator) as caught:
        build(step(Calls(inverse)), "net")
    assert caught.value.operator == "aten.special_bessel_y0.default"
    assert re.search(
        r"float32\[4, 6\]\), called from .*test_export\.py:\d+ in inverse", str(caught.value)
    )


def test_unsupported_form_says_why() -> None:
    module = Calls(lambda x: torch.histc(x.detach(), 3).sum() * x)
    with pytest.raises(UnsupportedOperator, match="the range follows from the values"):
        build(step(module), "net")


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def test_data_dependent_branch_is_located() -> None:
    with pytest.raises(DataDependentControlFlow, match=r"test_export\.py:\d+ in branch"):
        build(step(Calls(branch)), "net")


@pytest.mark.parametrize("loss", [torch.tanh, torch.argmax, lambda y: y.detach().sum()])
def test_loss_must_be_a_differentiable_scalar(loss) -> None:
    with pytest.raises(InvalidLoss):
        build(step(nn.Linear(6, 3), loss), "net")


def test_size_that_a_network_does_not_have() -> None:
    with pytest.raises(UsageError, match="no seq"):
        RECIPES["mlp"].sized(seq=4)


# -- dropout ---------------------------------------------------------------------------------------


def test_dropout_keeps_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of one run, applied in PyTorch, give the same loss and gradients."""
    with torch.device("meta"):
        module = GPT(vocabulary=50, positions=8, width=16, heads=2, layers=2, dropout=0.25)
    tokens = InputSpec(shape=(2, 8), dtype="int64", kind="randint", high=50)
    net = Step(module=module, inputs={"tokens": tokens, "targets": tokens}, loss=language_loss)
    graph, specs = build(net, "gpt")
    drops = [node for node in graph.model.graph.node if node.op_type == "Dropout"]
    assert len(drops) == 1 + 2 * 3
    assert len({node.attribute[0].i for node in drops}) == len(drops), "seeds repeat"

    shown = onnx.ModelProto()
    shown.CopyFrom(graph.model)
    shown.graph.output.extend(onnx.ValueInfoProto(name=node.output[1]) for node in drops)
    feeds = {name: draw_rough(name, spec) for name, spec in specs.items()}
    results = run(shown, feeds)
    masks = [torch.from_numpy(results[node.output[1]]) for node in drops]
    assert 0.15 < 1 - np.mean([mask.float().mean() for mask in masks]) < 0.35

    queue = iter(masks)

    def replay(x: Tensor, probability: float, training: bool) -> Tensor:
        assert training
        return x * next(queue) / (1 - probability)

    monkeypatch.setattr(F, "dropout", replay)
    materialize(module, feeds)
    loss = language_loss(
        module(torch.from_numpy(feeds["tokens"])), torch.from_numpy(feeds["targets"])
    )
    loss.backward()
    assert results["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(
            results[f"{name}_grad"], parameter.grad.numpy(), rtol=1e-3, atol=1e-6
        )


# -- the shape of the graph ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt2"])
def test_graph_is_lean(name: str) -> None:
    """No dead node, no copies, no reshape of a reshape, no transpose of a transpose."""
    sizes = {
        "mlp": {"batch": 4},
        "resnet18": {"batch": 2, "width": 4, "image_size": 32},
        "gpt2": {"seq": 8, "width": 8, "heads": 2, "layers": 1, "vocabulary": 20},
    }
    recipe = RECIPES[name]
    graph, _ = build(recipe.step(recipe.sized(**sizes[name])), name)
    nodes = graph.model.graph.node
    made_by = {result: node.op_type for node in nodes for result in node.output}
    read = {operand for node in nodes for operand in node.input} | set(output_names(graph.model))
    assert len({node.name for node in nodes}) == len(nodes)
    for node in nodes:
        assert not read.isdisjoint(node.output), f"{node.name} is dead"
        assert node.op_type != "Identity"
        if node.op_type in {"Reshape", "Transpose"}:
            assert made_by.get(node.input[0]) != node.op_type
    stored = [(t.data_type, tuple(t.dims), t.raw_data) for t in graph.model.graph.initializer]
    assert len(set(stored)) == len(stored)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
def test_stored_parameters_give_the_same_loss(tmp_path: Path, external: bool) -> None:
    recipe = RECIPES["mlp"]
    size = recipe.sized(batch=4, width=64)
    open_graph, specs = build(recipe.step(size), "mlp")
    expected = run(open_graph.model, draw_inputs(specs))
    stored, few = build(recipe.step(size), "mlp", store_parameters=True)
    assert list(few) == ["features", "labels"]
    save(stored.model, tmp_path / "net.onnx", external=external)
    assert (tmp_path / "net.onnx.data").exists() == external
    actual = run(onnx.load(tmp_path / "net.onnx"), draw_inputs(few))
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mlp.onnx"
    options = ["--batch", "4", "--width", "8", "--optimizer", "sgd", "--sidecar"]
    assert main(["mlp", *options, "-o", str(output)]) == 0
    assert "8 parameters" in capsys.readouterr().out
    model = onnx.load(output)
    assert "layers.0.weight_new" in output_names(model)
    assert list(read_specs(output.with_suffix(".inputs.json"))) == input_names(model)


def test_command_line_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mlp", "--heads", "2", "-o", str(tmp_path / "x.onnx")]) == 2
    assert "no heads" in capsys.readouterr().err
    assert not (tmp_path / "x.onnx").exists()


def test_tracing_needs_no_memory_for_the_parameters() -> None:
    """A network of 40 GB is traced in a moment: nothing is allocated, nothing is run."""
    with torch.device("meta"):
        module = MLP(inputs=6, hidden=100_000, classes=3, layers=3)
    inputs = {"x": FEATURES, "labels": LABELS}
    graph, _ = build(Step(module=module, inputs=inputs, loss=F.cross_entropy), "wide")
    assert len(graph.parameters) == 6
