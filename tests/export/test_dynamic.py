"""Named symbolic dimensions: the graph of one example at other sizes beside autograd, and planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.check import distance, run
from models.nets import GPT
from models.recipes import language_loss
from planner import optimize
from planner.errors import UsageError
from planner.export.errors import ExportError
from planner.export.inputs import draw_inputs
from planner.export.training import export_training_graph

TEXT = {0: "batch", 1: "sequence"}
Inputs = dict[str, Tensor]


def ids(batch: int, steps: int) -> Tensor:
    return torch.arange(batch * steps).reshape(batch, steps) % 40 + 3


class Attention(nn.Module):
    """Causal attention with shared keys, a running sum, the last two steps, and a mean over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.query, self.both = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        batch, steps, _ = x.shape
        q = self.query(x).view(batch, steps, 4, 4).transpose(1, 2)
        k, v = self.both(x).view(batch, steps, 2, 2, 4).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = y.transpose(1, 2).reshape(batch, steps, 16)
        places = torch.arange(steps).unsqueeze(1) / steps
        y = y.cumsum(1) * places + y[:, -2:].sum(1, keepdim=True) + y[:, :1]
        return self.last(y.mean(1))


def attention() -> tuple[nn.Module, Callable[..., Tensor]]:
    return Attention(), F.cross_entropy


def gpt() -> tuple[nn.Module, Callable[..., Tensor]]:
    return GPT(vocabulary=50, positions=16, width=32, heads=2, layers=1), language_loss


def bert() -> tuple[nn.Module, Callable[..., Tensor]]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    module = transformers.BertForSequenceClassification(config)
    return module, lambda result, labels: F.cross_entropy(result.logits, labels)


CASES: Mapping[str, tuple[Callable[[], Any], Callable[[int, int], tuple[Inputs, Inputs]]]] = {
    "attention": (attention, lambda b, s: ({"tokens": ids(b, s)}, {"labels": torch.arange(b) % 5})),
    "gpt": (gpt, lambda b, s: ({"tokens": ids(b, s)}, {"targets": ids(b, s) + 0})),
    "bert": (
        bert,
        lambda b, s: (
            {"input_ids": ids(b, s), "attention_mask": (ids(b, s) % 7 > 0).long()},
            {"labels": torch.arange(b) % 3},
        ),
    ),
}
"""Module and loss; inputs and targets of a size."""


def open_axes(*groups: Inputs) -> dict[str, dict[int, str]]:
    both = {name: tensor for group in groups for name, tensor in group.items()}
    return {name: dict(list(TEXT.items())[: tensor.dim()]) for name, tensor in both.items()}


@pytest.mark.parametrize("name", ["attention", "bert"])
def test_other_sizes(name: str) -> None:
    make, sized = CASES[name]
    torch.manual_seed(0)
    module, loss = make()
    module.train()
    inputs, targets = sized(4, 6)
    graph = export_training_graph(
        module, inputs, loss, targets=targets, dynamic=open_axes(inputs, targets)
    )
    dims = {d.dim_param for i in graph.model.graph.input for d in i.type.tensor_type.shape.dim}
    assert dims - {""} == {"batch", "sequence"}
    for batch, steps in ((3, 9), (6, 4)):
        inputs, targets = sized(batch, steps)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        tensors |= inputs | targets
        feeds = {i.name: tensors[i.name].detach().numpy() for i in graph.model.graph.input}
        actual = run(graph.model, feeds)
        module.zero_grad()
        expected = loss(module(**inputs), *targets.values())
        expected.backward()
        assert distance(actual["loss"], expected.detach().numpy()) < 1e-5
        for key, parameter in module.named_parameters():
            # a key's bias adds the same to every score: its gradient is rounding errors alone
            if parameter.grad is not None and parameter.grad.abs().max() > 1e-6:
                assert distance(actual[f"{key}_grad"], parameter.grad.numpy()) < 5e-5, key


def test_planned_for_one_size_and_run_at_others(tmp_path: Path) -> None:
    make, sized = CASES["gpt"]
    module, loss = make()
    inputs, targets = sized(4, 6)
    dims = open_axes(inputs, targets)
    graph = export_training_graph(module, inputs, loss, targets=targets, dynamic=dims)
    path, planned = tmp_path / "m.onnx", tmp_path / "p.onnx"
    graph.save(path, sidecar=True)
    result = optimize(
        path,
        budget="75%",
        budget_of="live",
        output=planned,
        dims={"batch": 4, "sequence": 16},
        swap="none",
        time_limit_s=1,
    )
    assert result.verification is not None and result.verification.passed
    assert all(output.identical for output in result.verification.outputs)
    assert any("__recompute_" in node.name for node in onnx.load(planned).graph.node)
    recipes = {
        name: replace(recipe, shape=(3, 9)) if name in dims else recipe
        for name, recipe in graph.recipes.items()
    }
    feeds = draw_inputs(recipes)
    before, after = (run(onnx.load(file), feeds) for file in (path, planned))
    assert all(np.array_equal(before[key], after[key]) for key in before)


class Pooled(nn.Module):
    """Windows over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(50, 8), nn.Conv1d(8, 5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.conv(self.table(tokens).transpose(1, 2)).mean(2)


class Stepwise(nn.Module):
    """Python that counts the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return sum((x[:, i] * i for i in range(x.shape[1])), start=x[:, 0])


def test_what_does_not_hold_is_named() -> None:
    dims = {"tokens": TEXT, "labels": {0: "batch"}}
    given = {"targets": {"labels": torch.arange(4)}, "dynamic": dims}
    with pytest.raises(
        ExportError, match=r"sequence of input 'tokens'.*aten\.convolution_backward"
    ):
        export_training_graph(Pooled(), ids(4, 6), F.cross_entropy, **given)
    with pytest.raises(ExportError, match=r"sequence of input 'tokens'.*test_dynamic\.py:\d+ in"):
        export_training_graph(Stepwise(), ids(4, 6), F.cross_entropy, **given)


class Square(nn.Module):
    """Adds a table to its transpose: as many rows as columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x + x.t()) * self.weight


def test_dimensions_that_are_one() -> None:
    with pytest.raises(ExportError, match=r"requires them to be equal"):
        export_training_graph(
            Square(), torch.ones(4, 4), torch.sum, dynamic={"x": {0: "rows", 1: "columns"}}
        )


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        ({"other": {0: "batch"}}, "no input 'other'; there are 'x'"),
        ({"x": {2: "batch"}}, r"no axis 2: \[4, 4\]"),
        ({"x": {0: "2 b"}}, "no name for axis 0"),
        ({"x": {0: "batch"}, "target": {0: "batch"}}, "one name is one size"),
    ],
)
def test_axes_that_are_wrong(dynamic: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        export_training_graph(
            Square(),
            torch.ones(4, 4),
            F.mse_loss,
            targets={"target": torch.ones(3)},
            dynamic=dynamic,
        )


def test_a_batch_beside_named_axes() -> None:
    with pytest.raises(UsageError, match="dynamic_batch"):
        export_training_graph(
            Square(), torch.ones(4, 4), torch.sum, dynamic_batch=True, dynamic={"x": {0: "batch"}}
        )


class Chosen(nn.Module):
    """Computes something else from some rows on."""

    def __init__(self, most: int, *, refuses: bool = False) -> None:
        super().__init__()
        self.linear, self.most, self.refuses = nn.Linear(6, 3), most, refuses

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] <= self.most:
            return self.linear(x).sum()
        if self.refuses:
            raise ValueError("too many rows")
        return self.linear(x * 2).sum()


@pytest.mark.parametrize("most", [3, 60])
def test_a_choice_by_a_size_is_refused(most: int) -> None:
    """On either side of the example's."""
    with pytest.raises(ExportError, match=rf"at rows = .*, where .*{most}.* does not hold, the"):
        export_training_graph(Chosen(most), torch.randn(8, 6), dynamic={"x": {0: "rows"}})


def test_sizes_that_the_module_refuses_are_not_compared() -> None:
    module = Chosen(60, refuses=True)
    graph = export_training_graph(module, torch.randn(8, 6), dynamic={"x": {0: "rows"}})
    assert not graph.unchecked
