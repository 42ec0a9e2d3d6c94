"""Values that are the same at every step, where a mask or Python needs them: constants, sizes, buffers.

The exporter compares each step with PyTorch's, at other inputs too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.errors import DataDependentControlFlow, ReadOfState
from planner.export.training import export_training_graph

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
Form = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """A layer, and a loss of its result by `form`."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.form = nn.Linear(8, 8), form
        self.register_buffer("mask", torch.arange(8) % 3 > 0)
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("lengths", torch.tensor([3, 5]))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("held", torch.zeros(12, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self, torch.tanh(self.layer(x)))


def others_of_each_row(net: Net, x: Tensor) -> Tensor:
    """Contrastive learning, as of SimCLR."""
    like = F.normalize(x) @ F.normalize(x).T
    labels = torch.cat([torch.arange(3)] * 2)
    same = labels[None] == labels[:, None]
    off = ~torch.eye(6, dtype=torch.bool)
    same, like = same[off].view(6, -1), like[off].view(6, -1)
    scores = torch.cat([like[same].view(6, -1), like[~same].view(6, -1)], 1)
    return F.cross_entropy(scores, torch.zeros(6, dtype=torch.int64))


def written_masks(net: Net, x: Tensor) -> Tensor:
    mask = torch.ones_like(x @ x.T, dtype=torch.bool).fill_diagonal_(False)
    for at in range(3):
        mask[at, at + 3] = mask[at + 3, at] = False
    first, second = torch.where(torch.ones(6, 6).triu(1) > 0)
    pairs = torch.combinations(torch.arange(3))
    apart = (x[first] - x[second]).square().mean() + x[pairs].mean()
    return (x @ x.T)[mask].view(6, -1).logsumexp(1).mean() - apart


def by_buffers(net: Net, x: Tensor) -> Tensor:
    """A mask beside a slice, in an assignment too, and sizes and a branch that buffers decide."""
    made = torch.zeros(6, 8)
    made[:, net.mask] = x[:, net.mask] * 2
    parts = torch.split(x, net.lengths.tolist(), 1)
    spread = [part.mean(1, keepdim=True).expand(-1, int(n)) for part, n in zip(parts, net.lengths)]  # noqa: B905
    if not net.ready:
        made = made + torch.masked_select(x, net.mask).sum()
    return (made + torch.cat(spread, 1)).square().mean()


@pytest.mark.parametrize("form", [others_of_each_row, written_masks, by_buffers])
def test_what_is_the_same_at_every_step_may_choose(form: Form) -> None:
    graph = export_training_graph(Net(form), X)
    assert graph.unchecked == "" and graph.assumed == ()
    assert set(graph.decided) == ({"mask", "ready", "lengths"} if form is by_buffers else set())


def drawn(net: Net, x: Tensor) -> Tensor:
    return x[torch.bernoulli(torch.full((6, 8), 0.5)).bool()].mean()


def written_with_values(net: Net, x: Tensor) -> Tensor:
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[0] = x[0] > 0
    return x[mask].mean()


@pytest.mark.parametrize("form", [drawn, written_with_values])
def test_what_is_drawn_or_computed_does_not_choose(form: Form) -> None:
    with pytest.raises(DataDependentControlFlow, match=r"value of a tensor, at .*test_known"):
        export_training_graph(Net(form), X)


def queue(net: Net, x: Tensor) -> Tensor:
    place = int(net.place)
    net.held[place : place + 6] = x.detach()
    net.place[0] = (place + 6) % 12
    return (x @ net.held.clone().T).square().mean()


def started(net: Net, x: Tensor) -> Tensor:
    if not net.ready:
        net.layer.bias.data.copy_(-x.mean(0))
        net.ready.fill_(True)
    return x.square().mean()


@pytest.mark.parametrize(("form", "name"), [(queue, "place"), (started, "ready")])
def test_a_buffer_that_the_step_changes_does_not_choose(form: Form, name: str) -> None:
    with pytest.raises(
        ReadOfState, match=rf"value of '{name}'.*, at .*in {form.__name__}: .*tensor"
    ) as e:
        export_training_graph(Net(form), X)
    assert "specialize" not in str(e.value)


def logged(net: Net, x: Tensor) -> Tensor:
    net.last_place = net.place.item()
    net.place += 1
    return x.square().mean()


def test_a_value_of_state_may_be_read_for_a_log() -> None:
    assert export_training_graph(Net(logged), X).unchecked == ""


def test_a_branch_of_the_first_run_is_gone_after_it() -> None:
    module = Net(started)
    module(X)
    assert export_training_graph(module, X).unchecked == ""
