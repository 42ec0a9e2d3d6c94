"""State that the step itself changes: assigned buffers, written parameters, places that are tensors.

The exporter compares each step with PyTorch's over three steps; one is compared here, too, by a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.errors import WrittenOutside
from planner.export.training import ExportedGraph, export_training_graph

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 1])
Change = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Two layers, and state that `how` changes between them."""

    def __init__(self, how: Change) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.slow = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 8)
        self.slow.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("bank", torch.zeros(2, 3, 8))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.how(self, torch.tanh(self.first(x))))


def assigned(net: Net, x: Tensor) -> Tensor:
    net.count = net.count + 1
    net.mean = torch.lerp(net.mean, x.detach().mean(0), 1 / net.count)
    return x - net.mean


def assigned_after_use(net: Net, x: Tensor) -> Tensor:
    result = x * net.mean + x
    net.mean = result.detach().mean(0)
    return result


def moved_by_data(net: Net, x: Tensor) -> Tensor:
    for slow, fast in zip(net.slow.parameters(), net.first.parameters(), strict=True):
        slow.data = 0.9 * slow.data + 0.1 * fast.data
    return x + net.slow(x)


def moved_by_lists(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        torch._foreach_mul_(list(net.slow.parameters()), 0.9)
        torch._foreach_add_(list(net.slow.parameters()), list(net.first.parameters()), alpha=0.1)
    return x + net.slow(x)


def bounded(net: Net, x: Tensor) -> Tensor:
    """A trained parameter that the step writes before it is read."""
    with torch.no_grad():
        net.last.weight.div_(net.last.weight.norm(dim=1, keepdim=True))
    net.last.bias.data.clamp_(-0.1, 0.1)
    return x


def bounded_by_data(net: Net, x: Tensor) -> Tensor:
    net.last.weight.data = torch.renorm(net.last.weight.data, 2, 0, 0.5)
    return x


def ring(net: Net, x: Tensor) -> Tensor:
    """Rows written and read at places that are tensors."""
    at = net.place[0]
    held = net.bank[0, at] + net.bank[..., at, :].sum(0) + net.bank.narrow(1, at, 1).sum((0, 1))
    net.bank[net.count % 2, at] = x.detach().mean(0)
    net.bank[:, at, 1:3] += 0.1
    net.count += 1
    net.place[0] = (at + 1) % 3
    return x - held


CHANGES: dict[Change, set[str]] = {
    assigned: {"mean", "count"},
    assigned_after_use: {"mean"},
    moved_by_data: {"slow.weight", "slow.bias"},
    moved_by_lists: {"slow.weight", "slow.bias"},
    bounded: {"last.weight", "last.bias"},
    bounded_by_data: {"last.weight"},
    ring: {"bank", "count", "place"},
}


def exported(module: nn.Module, loss: Any = F.cross_entropy, optimizer: Any = None):
    return export_training_graph(module, X, loss, optimizer, targets=LABELS)


def new_in(graph: ExportedGraph) -> set[str]:
    names = (output.name for output in graph.model.graph.output)
    return {name.removesuffix("_new") for name in names if name.endswith("_new")}


@pytest.mark.parametrize("how", CHANGES)
def test_state_that_the_step_changes_is_returned(how: Change) -> None:
    graph = exported(Net(how))
    assert graph.unchecked == "" and new_in(graph) == CHANGES[how]


@pytest.mark.parametrize("how", [assigned, bounded, bounded_by_data])
def test_the_update_goes_on_from_what_the_step_leaves(how: Change) -> None:
    module = Net(how)
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=0.5, weight_decay=0.1
    )
    graph = exported(module, optimizer=optimizer)
    assert graph.unchecked == "" and CHANGES[how] < new_in(graph)


@pytest.mark.parametrize("optimizer", [None, "sgd", "adamw"])
def test_a_parameter_that_the_step_writes_is_pytorchs_over_four_steps(optimizer: Any) -> None:
    graph, module = exported(Net(bounded), optimizer=optimizer), Net(bounded)
    session = onnxruntime.InferenceSession(graph.model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    feeds = {n: t.detach().numpy().copy() for n, t in module.state_dict().items()}
    feeds |= graph.initial_state()
    rate = 0.0 if optimizer is None else float(feeds["lr"])
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    theirs = kind([p for p in module.parameters() if p.requires_grad], lr=rate)
    for number in range(1, 5):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(number))
        given = {**feeds, "x": x.numpy(), "target": LABELS.numpy()}
        given |= {"step": np.array(number, np.float32)}
        wanted = {i.name: given[i.name] for i in session.get_inputs()}
        ours = dict(zip(names, session.run(None, wanted), strict=True))
        loss = F.cross_entropy(module(x), LABELS)
        assert float(ours["loss"]) == pytest.approx(loss.item(), rel=1e-5)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        feeds |= {n.removesuffix("_new"): a for n, a in ours.items() if n.endswith("_new")}
        for name, tensor in module.state_dict().items():
            np.testing.assert_allclose(feeds[name], tensor, rtol=1e-4, atol=1e-6)


class Centered(nn.Module):
    """A loss with state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))

    def forward(self, result: Tensor, labels: Tensor) -> Tensor:
        self.center.lerp_(result.detach().mean(0), 0.1)
        return F.cross_entropy(result - self.center, labels)


SUM = torch.zeros(3)


def summed(result: Tensor, labels: Tensor) -> Tensor:
    SUM.add_(result.detach().mean(0))
    return F.cross_entropy(result - SUM, labels)


@pytest.mark.parametrize(
    ("loss", "named"), [(Centered(), r"'loss\.center'"), (summed, r"of shape \[3\]")]
)
def test_state_outside_of_the_module_is_refused_by_name(loss: Any, named: str) -> None:
    match = rf"not the module's \({named}\), at .*test_state.*_\(result"
    with pytest.raises(WrittenOutside, match=match):
        exported(Net(assigned), loss)
