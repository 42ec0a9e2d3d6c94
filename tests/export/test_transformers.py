"""Models of Hugging Face's transformers, built from a configuration, against autograd.

Small sizes, the structure is the real one. Dropout is off where numbers are compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
import transformers
from torch import nn

from models.check import run, verify_structure
from planner.export.errors import UnsupportedOperator
from planner.export.training import ExportedGraph, export_training_graph
from planner.micro.shares import kinds_by_rules
from planner.micro.sink import values_to_add_up
from planner.onnxio.load import load_model
from planner.pipeline.levers.dividing import divisible
from planner.request import Request

TOLERANCE = 1e-4

Step = tuple[nn.Module, dict[str, torch.Tensor]]


def tokens(batch: int, seq: int = 8) -> torch.Tensor:
    return torch.randint(0, 50, (batch, seq))


def bert(batch: int) -> Step:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    mask = torch.ones(batch, 8, dtype=torch.int64)
    mask[:, 6:] = 0  # padding
    labels = torch.arange(batch) % 2
    module = transformers.BertForSequenceClassification(config)
    return module, {"input_ids": tokens(batch), "attention_mask": mask, "labels": labels}


def gpt2(batch: int) -> Step:
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=32,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    ids = tokens(batch)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def llama(batch: int) -> Step:
    """Four heads share two heads of keys and values."""
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    ids = tokens(batch)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def vit(batch: int) -> Step:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    images = torch.randn(batch, 3, 16, 16)
    module = transformers.ViTForImageClassification(config)
    return module, {"pixel_values": images, "labels": torch.arange(batch) % 3}


MAKERS: dict[str, Callable[[int], Step]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
}


def results(graph: ExportedGraph, module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs of the graph, fed with the module's own tensors."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **inputs}
    names = [info.name for info in graph.model.graph.input]
    return run(graph.model, {name: tensors[name].detach().numpy() for name in names})


def check_gradients(module: nn.Module, inputs: dict[str, Any], actual: dict[str, Any]) -> None:
    """Each output against autograd's: the norm of the difference, over the larger of the norms of
    this gradient and a thousandth of all of them (a key's bias has a true gradient of zero)."""
    module.zero_grad()
    loss = module(**inputs).loss
    loss.backward()
    assert actual["loss"] == pytest.approx(loss.item(), rel=1e-6)
    expected = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    assert {f"{name}_grad" for name in expected} == actual.keys() - {"loss"}
    whole = np.sqrt(sum(float(np.sum(grad.astype(np.float64) ** 2)) for grad in expected.values()))
    for name, grad in expected.items():
        difference = float(np.linalg.norm(actual[f"{name}_grad"] - grad))
        assert difference <= TOLERANCE * max(float(np.linalg.norm(grad)), 1e-3 * whole), name


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_agree_with_autograd(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = MAKERS[name](3)
    graph = export_training_graph(module, inputs)
    verify_structure(graph.model)
    check_gradients(module, inputs, results(graph, module, inputs))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_symbolic_batch_takes_another_batch(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = MAKERS[name](3)
    graph = export_training_graph(module, inputs, dynamic_batch=True, check=False)
    verify_structure(graph.model, static=False)
    _, others = MAKERS[name](5)
    check_gradients(module, others, results(graph, module, others))


@pytest.mark.parametrize(
    ("name", "dynamic_batch"), [("bert", True), ("gpt2", False), ("vit", True)]
)
def test_without_weights_the_graph_is_the_same(name: str, dynamic_batch: bool) -> None:
    """BERT takes the way through `torch.export`, since it looks at its mask."""
    module, inputs = MAKERS[name](3)
    stored = {key for key, _ in module.named_buffers()}
    options = {"dynamic_batch": dynamic_batch, "check": False}
    expected = export_training_graph(module, inputs, **options).model.graph
    bare = {key: tensor.to("meta") for key, tensor in inputs.items()}
    with torch.device("meta"):
        empty = type(module)(module.config)
    found = export_training_graph(empty, bare, dynamic_batch=dynamic_batch).model.graph
    assert list(found.node) == list(expected.node)
    assert list(found.output) == list(expected.output)
    known = {info.name for info in expected.input}
    assert {info.name for info in found.input} - known <= stored  # their values are nowhere


def test_dropout_is_drawn_and_its_masks_are_tensors() -> None:
    module, inputs = gpt2(2)
    config = module.config
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1
    module = type(module)(config)
    graph = export_training_graph(module, inputs)
    drops = [node for node in graph.model.graph.node if node.op_type == "Dropout"]
    assert len(drops) == 1 + 3
    read = {name for node in graph.model.graph.node for name in node.input}
    assert all(node.output[1] in read for node in drops)
    onnx.checker.check_model(graph.model, full_check=True)


def test_refusal_names_the_line_behind_the_export() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert, _ = bert(2)

        def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
            return torch.i0(self.bert(**inputs).loss)

    with pytest.raises(UnsupportedOperator, match=r"test_transformers\.py:\d+ in forward"):
        export_training_graph(Odd(), bert(2)[1])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_operators_tell_how_the_totals_of_micro_batches_add_up(name: str, tmp_path: Path) -> None:
    module, inputs = MAKERS[name](4)
    path = tmp_path / f"{name}.onnx"
    export_training_graph(module, inputs, None, "adamw", dynamic_batch=True, check=False).save(
        path, sidecar=True
    )
    loaded = load_model(path, dims={"batch": 8})
    found = divisible(loaded, Request(model=path, dims={"batch": 8}), lambda _: None)
    names = values_to_add_up(loaded.model, found.flow)
    told = kinds_by_rules(loaded.model, found.flow, names).of
    assert {n: told[n] for n in names if n not in found.kinds.assumed} == {
        n: found.kinds.of[n] for n in names if n not in found.kinds.assumed
    }


class Experts(nn.Module):
    """Rows by the matrix of their expert, by the operator of transformers' own that MoE models call under
    torch.export (`use_cache=False`): as called, and as an exported program calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([1, 4, 6], dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        once = product(x, self.weight, offs=ends)
        return (once * product.default(x.tanh(), self.weight, ends)).square().mean()


def test_the_librarys_own_grouped_product() -> None:
    assert importlib.import_module("transformers.integrations.moe")  # registers it
    assert not export_training_graph(Experts(), torch.randn(6, 4)).unchecked
