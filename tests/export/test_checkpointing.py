"""Modules that checkpoint activations themselves: autograd's gradients, each operation once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from models.check import distance, run
from planner.export.training import ExportedGraph, export_training_graph

X, LABELS = torch.randn(5, 6), torch.arange(5) % 3


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout))
        self.options = {"use_reentrant": reentrant}

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.middle, self.first(x), **self.options)
        hidden = checkpoint_sequential(self.middle, 2, hidden, **self.options)
        return self.last(hidden)


def outputs(
    graph: ExportedGraph, module: nn.Module, inputs: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **inputs}
    return run(
        graph.model, {i.name: tensors[i.name].detach().numpy() for i in graph.model.graph.input}
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients(reentrant: bool) -> None:
    module = Checkpointed(reentrant)
    graph = export_training_graph(module, X, F.cross_entropy, targets=LABELS)
    assert [node.op_type for node in graph.model.graph.node].count("Tanh") == 2
    actual = outputs(graph, module, {"x": X, "target": LABELS})
    F.cross_entropy(module(X), LABELS).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert distance(actual[f"{name}_grad"], parameter.grad.numpy()) < 1e-5


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_inside_draws_one_mask(reentrant: bool) -> None:
    """One parameter for each element: its gradient says whether the forward pass kept the element."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(F.dropout, x * self.weight, 0.5, use_reentrant=reentrant)

    module, x = Masked(), torch.rand(64) + 1
    graph = export_training_graph(module, x, torch.sum)
    assert [node.op_type for node in graph.model.graph.node].count("Dropout") == 1
    actual = outputs(graph, module, {"x": x})
    gradient = actual["weight_grad"]
    np.testing.assert_allclose(gradient.sum(), actual["loss"], rtol=1e-6)
    assert 0 < (gradient == 0).sum() < 64


@pytest.mark.parametrize("reentrant", [True, False])
def test_transformers(reentrant: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    module = transformers.GPT2LMHeadModel(config).train()
    module.gradient_checkpointing_enable({"use_reentrant": reentrant})
    ids = torch.arange(16).reshape(2, 8)
    inputs = {"input_ids": ids, "labels": ids + 0}
    actual = outputs(export_training_graph(module, inputs), module, inputs)
    module(**inputs).loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert distance(actual[f"{name}_grad"], parameter.grad.numpy()) < 1e-5
