"""The one function from a module to a training graph: how it takes things, what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import planner
from models.check import run
from planner.errors import UsageError
from planner.export.errors import (
    DataDependentControlFlow,
    ExportError,
    InvalidLoss,
    ModuleFailure,
    UnsupportedType,
)
from planner.export.inputs import draw_inputs, read_specs
from planner.export.training import ExportedGraph, ModeWarning, export_training_graph


class Pair(nn.Module):
    """Takes two tensors and an option."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(4, 3)
        self.register_buffer("shift", torch.full((3,), 0.5))

    def forward(self, a: Tensor, b: Tensor, negate: bool = False) -> Tensor:
        y = torch.tanh(self.left(a) + self.right(b) + self.shift)
        return -y if negate else y


A, B = torch.randn(5, 6), torch.randn(5, 4)
LABELS = torch.arange(5) % 3


def input_names(graph: ExportedGraph) -> list[str]:
    return [info.name for info in graph.model.graph.input]


def check(graph: ExportedGraph, module: nn.Module, loss: Tensor, **inputs: Tensor) -> None:
    """The graph on the module's values gives this loss and its gradients."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **inputs}
    feeds = {name: tensors[name].detach().numpy() for name in input_names(graph)}
    actual = run(graph.model, feeds)
    module.zero_grad()
    loss.backward()
    np.testing.assert_allclose(actual["loss"], loss.detach().numpy(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(
            actual[f"{name}_grad"], parameter.grad.numpy(), rtol=1e-4, atol=1e-6
        )


class Frozen(nn.Sequential):
    """Keeps its normalization's statistics in every mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize("kind", [nn.Sequential, Frozen])
def test_parts_in_evaluation_mode_stay_so(kind: type[nn.Sequential]) -> None:
    """As fine-tuning has them: statistics that stay, and a dropout that is off; scales are trained."""
    layers = (nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    module = kind(*layers).train()
    module[1].running_mean.normal_()
    module[1].running_var.uniform_(0.5, 2)
    for part in module[1:3]:
        part.eval()
    with pytest.warns(ModeWarning, match="are exported so: 1, 2; call module"):
        graph = export_training_graph(module, A, F.cross_entropy, targets=LABELS)
    assert graph.unchecked == "" and [part.training for part in module] == [
        True,
        False,
        False,
        True,
    ]
    outputs = [output.name for output in graph.model.graph.output]
    assert not [name for name in outputs if name.endswith("_new")]
    check(graph, module, F.cross_entropy(module(A), LABELS), input=A, target=LABELS)
    # a module in evaluation mode is trained as a whole
    whole = export_training_graph(module.eval(), A, F.cross_entropy, targets=LABELS)
    assert "Dropout" in {node.op_type for node in whole.model.graph.node}
    changed = any(name.endswith("_new") for name in (o.name for o in whole.model.graph.output))
    assert changed == (kind is nn.Sequential)


# -- how it takes inputs and targets ---------------------------------------------------------------


def test_positional_inputs_are_named_as_the_module_names_them() -> None:
    module = Pair()
    graph = export_training_graph(module, (A, B), F.cross_entropy, targets=LABELS)
    assert graph.inputs == ("a", "b", "target")
    check(graph, module, F.cross_entropy(module(A, B), LABELS), a=A, b=B, target=LABELS)


def test_inputs_by_keyword_with_a_constant() -> None:
    module = Pair()
    inputs = {"b": B, "a": A, "negate": True}
    graph = export_training_graph(module, inputs, F.cross_entropy, targets={"labels": LABELS})
    assert graph.inputs == ("b", "a", "labels")
    loss = F.cross_entropy(module(A, B, negate=True), LABELS)
    check(graph, module, loss, a=A, b=B, labels=LABELS)


def test_module_that_returns_its_loss() -> None:
    class WithLoss(Pair):
        def forward(self, a: Tensor, b: Tensor, negate: bool = False) -> Tensor:
            return super().forward(a, b, negate).square().mean()

    module = WithLoss()
    graph = planner.export_training_graph(module, (A, B))
    check(graph, module, module(A, B), a=A, b=B)


def test_targets_never_share_a_name_with_an_input() -> None:
    def loss(result: Tensor, input: Tensor) -> Tensor:
        return F.mse_loss(result, input)

    graph = export_training_graph(nn.Linear(6, 3), A, loss, targets=torch.randn(5, 3))
    assert graph.inputs == ("input", "target_input")


def test_buffers_that_the_step_only_reads_are_stored() -> None:
    graph = export_training_graph(Pair(), (A, B), F.cross_entropy, targets=LABELS)
    assert "shift" not in input_names(graph)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in graph.model.graph.initializer}
    np.testing.assert_array_equal(stored["shift"], np.full(3, 0.5, np.float32))
    with torch.device("meta"):
        module = Pair()
    graph = export_training_graph(module, (A, B), F.cross_entropy, targets=LABELS)
    assert "shift" in input_names(graph)


def test_constant_in_a_module_with_a_symbolic_batch() -> None:
    class Constant(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            steps = torch.arange(input.shape[0]).unsqueeze(1)
            return super().forward(input) * torch.tensor([1.0, 2.0, 3.0]) + steps

    module = Constant(6, 3)
    graph = export_training_graph(
        module, A, F.cross_entropy, targets={"labels": LABELS}, dynamic_batch=True
    )
    more, labels = torch.randn(9, 6), torch.arange(9) % 3
    check(graph, module, F.cross_entropy(module(more), labels), input=more, labels=labels)


def test_stored_parameters_are_the_module_s() -> None:
    module = Pair()
    graph = export_training_graph(
        module, (A, B), F.cross_entropy, targets=LABELS, store_parameters=True
    )
    assert input_names(graph) == ["a", "b", "target"]
    check(graph, module, F.cross_entropy(module(A, B), LABELS), a=A, b=B, target=LABELS)


def test_files(tmp_path: Path) -> None:
    module = Pair()
    graph = export_training_graph(
        module, (A, B), F.cross_entropy, "adamw", targets=LABELS, store_parameters=True
    )
    path = tmp_path / "pair.onnx"
    written = graph.save(path, external_data=True, sidecar=True)
    assert {file.name for file in written} == {p.name for p in tmp_path.iterdir()}
    feeds = draw_inputs(read_specs(tmp_path / "pair.inputs.json"))
    assert set(feeds["target"]) <= {0, 1, 2}
    expected, actual = run(graph.model, feeds), run(onnx.load(path), feeds)
    assert all(np.array_equal(actual[key], expected[key]) for key in expected)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists"):
        graph.save(path)
    assert path.read_bytes() == before
    graph.save(path, force=True)
    assert len(list(tmp_path.iterdir())) == len(written), "no temporary file stays"


def test_large_tensors_alone_leave_the_model(tmp_path: Path) -> None:
    module = nn.Linear(64, 32)
    graph = export_training_graph(
        module, torch.randn(2, 64), torch.sum, store_parameters=True, name="linear"
    )
    graph.save(tmp_path / "m.onnx", external_data=True)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    external = [t.name for t in model.graph.initializer if t.data_location]
    assert external == ["weight"]
    assert (model.producer_name, model.producer_version) == ("planner", planner.__version__)
    assert (tmp_path / "m.onnx.data").stat().st_size == 64 * 32 * 4


# -- what it refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": "lion"}, "adafactor, .*adamw, .*momentum, .*sgd"),
        ({"module": torch.tanh}, "not a torch.nn.Module"),
        ({"example_inputs": ()}, "no example input"),
        ({"example_inputs": {"a": A, "shift": B}}, "'shift'"),
        ({"loss_fn": None}, "none is given"),
        ({"example_inputs": A[0, 0], "dynamic_batch": True}, "no dimensions"),
    ],
)
def test_arguments_that_are_wrong(arguments: dict, words: str) -> None:
    usual = {"module": Pair(), "example_inputs": (A, B), "loss_fn": F.cross_entropy}
    usual["targets"] = LABELS
    with pytest.raises(UsageError, match=words):
        export_training_graph(**{**usual, **arguments})


def test_symbolic_batch_of_one() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        export_training_graph(nn.Linear(6, 3), A[:1], torch.sum, dynamic_batch=True)


def test_nothing_to_train() -> None:
    module = Pair().requires_grad_(False)
    with pytest.raises(InvalidLoss, match="requires_grad=False"):
        export_training_graph(module, (A, B), torch.sum)
    with pytest.raises(InvalidLoss, match="no parameter"):
        export_training_graph(nn.Tanh(), A, torch.sum)


def test_step_that_fails_on_its_inputs() -> None:
    with pytest.raises(ModuleFailure, match=r"5x4.*test_training\.py:\d+ in forward|reduction dim"):
        export_training_graph(Pair(), (B, A), torch.sum)


def test_module_that_returns_no_loss() -> None:
    with pytest.raises(InvalidLoss, match="scalar"):
        export_training_graph(Pair(), (A, B))


def test_batch_that_becomes_a_constant() -> None:
    class Fixed(Pair):
        def forward(self, a: Tensor, b: Tensor, negate: bool = False) -> Tensor:
            return super().forward(a, b) * 2 if a.shape[0] == 5 else a

    with pytest.raises(ExportError, match="symbolic"):
        export_training_graph(Fixed(), (A, B), F.cross_entropy, targets=LABELS, dynamic_batch=True)


def test_mask_as_index() -> None:
    with pytest.raises(DataDependentControlFlow, match=r"nonzero.*torch\.where"):
        export_training_graph(Pair(), (A, B), lambda y: y[y > 0].sum())


def test_element_type_that_is_not_exported() -> None:
    eighth = torch.float8_e5m2
    with pytest.raises(UnsupportedType, match=r"float8_e5m2.*float32"):
        export_training_graph(Pair(), (A, B), lambda y: y.to(eighth).float().sum() + y.sum())


def test_errors_are_one_line_with_the_exit_code_of_a_model() -> None:
    with pytest.raises(ExportError) as caught:
        export_training_graph(Pair(), (A, B), lambda y: torch.i0(y).sum())
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
