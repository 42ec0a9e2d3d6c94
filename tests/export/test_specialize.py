"""Modules whose Python reads values: refused, or told what the example inputs give."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.errors import UsageError
from planner.export.errors import DataDependentControlFlow
from planner.export.training import ASSUMED, ExportedGraph, export_training_graph


class Reads(nn.Module):
    """Branches on a mask, takes what it chooses, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[rows, 5], [rows] -> [chosen, 3]."""
        h = self.inside(x)
        self.mean.mul_(0.9).add_(h.mean(0).detach(), alpha=0.1)
        if mask.any():
            h = h.tanh()
        places = mask.nonzero(as_tuple=True)[0]
        return self.out(h[mask] + h[places]) / int(mask.sum())


class OfParameters(nn.Module):
    """Branches on what it has learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, 5] -> [rows, 3]."""
        y = self.inside(x)
        return y if y.sum().item() > 0 else -y


X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([True, False, True, True, False, False])


def square(y: Tensor) -> Tensor:
    """A loss."""
    return (y**2).sum()


def results(graph: ExportedGraph, module: nn.Module, **inputs: Tensor) -> dict[str, np.ndarray]:
    """What ONNX Runtime makes of the graph, by name."""
    session = ort.InferenceSession(graph.model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    held = {**dict(module.named_parameters()), **dict(module.named_buffers()), **inputs}
    feeds = {i.name: held[i.name].detach().numpy().copy() for i in session.get_inputs()}
    return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))


def test_what_is_read_is_taken_from_the_example_inputs() -> None:
    torch.manual_seed(0)
    module = Reads()
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(DataDependentControlFlow, match="specialize"):
        export_training_graph(module, (X, MASK), square)
    graph = export_training_graph(module, (X, MASK), square, specialize=True)
    assert all(torch.equal(kept[name], tensor) for name, tensor in module.state_dict().items())
    found = results(graph, module, x=X, mask=MASK)
    other = results(graph, module, x=2 * X + 1, mask=MASK)
    for inputs, ours in ((X, found), (2 * X + 1, other)):
        module.load_state_dict(kept)
        module.zero_grad()
        loss = square(module(inputs, MASK))
        loss.backward()
        np.testing.assert_allclose(ours["loss"], loss.detach(), rtol=1e-5)
        np.testing.assert_allclose(ours["mean_new"], module.mean, rtol=1e-5)
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(ours[f"{name}_grad"], parameter.grad, rtol=1e-4, atol=1e-5)


def test_it_is_said_what_was_read_and_where() -> None:
    graph = export_training_graph(Reads(), (X, MASK), square, specialize=True)
    said = {entry.key: entry.value for entry in graph.model.metadata_props}[ASSUMED]
    assert said.splitlines() == list(graph.assumed)
    for line, value in (("if mask.any()", "True"), ("nonzero(as_tuple", "[[0], [2], [3]]")):
        assert any(line in entry and entry.endswith(value) for entry in graph.assumed)


def test_nothing_is_assumed_where_nothing_is_read() -> None:
    graph = export_training_graph(nn.Linear(5, 3), X, square, specialize=True)
    assert graph.assumed == ()
    assert not graph.model.metadata_props


class Sorted(nn.Module):
    """A layer for each kind of row, as adapters for languages are written."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 3) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[rows, 5], [rows] -> [rows, 3]."""
        made = x.new_zeros(len(x), 3)
        for number, layer in enumerate(self.layers):
            chosen = mask == bool(number)
            part = x[chosen]
            made[chosen] = layer(part)
        made[mask] = made[mask] + 1
        made[~mask] *= 0.5
        return made


def test_rows_that_a_mask_chooses_may_be_assigned_to() -> None:
    module = Sorted()
    graph = export_training_graph(module, (X, MASK), square, targets=(), specialize=True)
    assert graph.unchecked == "" and graph.assumed
    loss = square(module(X, MASK))
    loss.backward()
    found = results(graph, module, x=X, mask=MASK)
    np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[f"{name}_grad"], parameter.grad, rtol=1e-4, atol=1e-5)


def test_what_changes_with_the_parameters_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(DataDependentControlFlow, match="changes with the parameters") as caught:
        export_training_graph(OfParameters(), X, square, specialize=True)
    assert "y.sum().item()" in caught.value.where


def test_a_module_without_values_cannot_be_read() -> None:
    with torch.device("meta"):
        module = Reads()
    with pytest.raises(UsageError, match="meta device"):
        export_training_graph(module, (X, MASK), square, specialize=True)


def test_a_loss_that_leaves_out_what_is_ignored() -> None:
    """The graph holds for labels that are ignored in the same places."""
    labels = torch.tensor([2, -100, 0, 1, -100, 2])

    def loss(y: Tensor, target: Tensor) -> Tensor:
        places = (target >= 0).nonzero().squeeze(1)
        return F.cross_entropy(y[places], target[places])

    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    graph = export_training_graph(
        module, {"input": X}, loss, targets={"labels": labels}, specialize=True
    )
    other = torch.where(labels >= 0, (labels + 1) % 3, labels)
    found = results(graph, module, input=X, labels=other)
    loss(module(X), other).backward()
    np.testing.assert_allclose(found["weight_grad"], module.weight.grad, rtol=1e-4, atol=1e-6)


class OfSizes(nn.Module):
    """Sizes and bounds that are tensors, and an input that it writes over for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(5, 8)

    def forward(self, x: Tensor, size: Any) -> Tensor:
        """[rows, 5], [] -> [rows + 2 size]."""
        half = size.clamp_(max=4) // 2
        h = self.inside(x)[:, 2 - half : 2 + half]
        h = h + torch.arange(size) * torch.clamp(torch.arange(5)[:size], 0, half)
        h = F.interpolate(h[None], size=[size])[0] * torch.ones([size])
        return F.pad(h.sum(1), [size, size])


def test_sizes_may_be_tensors() -> None:
    torch.manual_seed(0)
    module, size = OfSizes(), torch.tensor(4)
    graph = export_training_graph(module, (X, size), square, specialize=True)
    found = results(graph, module, x=X, size=size)
    loss = square(module(X, size))
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.detach().numpy(), rtol=1e-5)
    grad = module.inside.weight.grad
    assert grad is not None
    np.testing.assert_allclose(found["inside.weight_grad"], grad.numpy(), rtol=1e-4, atol=1e-5)


class Converts(nn.Module):
    """Converts a part of itself as it runs, to the type that this has; draws one number."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, 5] -> [rows, 3]."""
        self.inside = self.inside.to(torch.float32)
        return self.inside(x) * (torch.rand([]) < 2)


def test_a_conversion_to_the_same_type_and_a_single_random_number() -> None:
    torch.manual_seed(0)
    module = Converts()
    found = results(export_training_graph(module, (X,), square), module, x=X)
    np.testing.assert_allclose(found["loss"], square(module(X)).detach().numpy(), rtol=1e-5)


class Straight(torch.autograd.Function):
    """A sine, which lets three times the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


class Shortened(nn.Module):
    """Reads a mask where it is not traced, as the masks of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(5, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[rows, 5], [rows] -> [rows, 3]."""
        if not torch.compiler.is_exporting() and mask.all():
            return self.inside(x)
        return Straight.apply(self.inside(x)) * mask[:, None]  # pyright: ignore


def test_a_backward_of_ones_own_is_kept() -> None:
    """`torch.export` would have the gradient of what the forward computes."""
    module = Shortened()
    with pytest.raises(DataDependentControlFlow, match="--specialize"):
        export_training_graph(module, (X, MASK), square, targets=())
    options: dict[str, Any] = {"targets": (), "specialize": True, "check": False}
    graph = export_training_graph(module, (X, MASK), square, **options)
    square(module(X, MASK)).backward()
    found = results(graph, module, x=X, mask=MASK)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[f"{name}_grad"], parameter.grad, rtol=1e-4, atol=1e-5)
