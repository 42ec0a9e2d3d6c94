"""The exported graph beside PyTorch's own step: what a trace freezes or loses is refused, and what is
right passes.

Nothing here asks a rule of the exporter's: each program is one that PyTorch trains and the trace accepts.
"""

from __future__ import annotations

import random
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.errors import UsageError
from planner.export.checking.values import Others, moved
from planner.export.errors import DataDependentControlFlow, OtherStep
from planner.export.training import export_training_graph

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 1])


class Net(nn.Module):
    """A network whose forward pass does something besides."""

    def __init__(self, how: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.slow = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("held", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = hidden if self.how is None else self.how(self, hidden)
        return self.last(torch.tanh(self.second(hidden)))


def drawn_by_numpy(net: Net, x: Tensor) -> Tensor:
    return x * float(np.random.beta(0.4, 0.4))  # noqa: NPY002  # as people write it


def drawn_by_python(net: Net, x: Tensor) -> Tensor:
    return x * random.uniform(0.5, 2)


def kept_in_an_attribute(net: Net, x: Tensor) -> Tensor:
    result = x + getattr(net, "last_mean", 0.0)
    net.last_mean = x.detach().mean(0)
    return result


def grown(net: Net, x: Tensor) -> Tensor:
    result = x + net.held.reshape(-1, 8).mean(0)
    net.held = torch.cat([net.held.reshape(-1, 8), x.detach().mean(0, keepdim=True)])
    return result


GENERATOR, SEEDED = np.random.default_rng(0), random.Random(0)


def drawn_from_a_generator(net: Net, x: Tensor) -> Tensor:
    return x * float(GENERATOR.uniform(0.5, 2))


def drawn_from_an_object(net: Net, x: Tensor) -> Tensor:
    return x * SEEDED.uniform(0.5, 2)


def counted_outside(net: Net, x: Tensor) -> Tensor:
    net.steps = getattr(net, "steps", 0) + 1
    return x / net.steps


OUTSIDE = nn.Parameter(torch.ones(1))
PLAIN = torch.ones(1, requires_grad=True)


class Margin(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, result: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.scale * result, labels)


def exported(module: nn.Module, loss: Any = F.cross_entropy, **options: Any):
    return export_training_graph(module, X, loss, targets=LABELS, **options)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (drawn_by_numpy, "is off by|the loss is"),
        (drawn_by_python, "is off by|the loss is"),
        (drawn_from_a_generator, "is off by|the loss is"),
        (drawn_from_an_object, "is off by|the loss is"),
        (counted_outside, "is off by|the loss is"),
        (kept_in_an_attribute, "is off by|the loss is"),
        (grown, "the step changes 'held', and the graph does not return it"),
    ],
)
def test_what_a_trace_freezes_or_loses_is_refused(how: Any, what: str) -> None:
    with pytest.raises(OtherStep, match=what) as error:
        exported(Net(how))
    assert "--no-check" in str(error.value)


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (Margin(), r"loss\.scale"),
        (lambda result, labels: OUTSIDE.square().sum() * F.cross_entropy(result, labels), r"\[1\]"),
        (lambda result, labels: PLAIN.sum() * F.cross_entropy(result, labels), r"\[1\]"),
    ],
    ids=["module", "closure", "plain tensor"],
)
def test_what_a_loss_trains_besides_the_module_is_refused(loss: Any, named: str) -> None:
    with pytest.raises(OtherStep, match=rf"not the module's \(.*{named}\)"):
        exported(Net(), loss)


@dataclass
class Batch:
    features: Tensor
    labels: Tensor


Pair = namedtuple("Pair", ["labels", "weight"])


class Held(nn.Module):
    """Takes its labels in some container beside a tensor."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.read = Net(), read

    def forward(self, x: Tensor, held: Any) -> Tensor:
        return F.cross_entropy(self.net(x), self.read(held))


@pytest.mark.parametrize(
    ("held", "read", "name"),
    [
        ([{"labels": LABELS}], lambda held: held[0]["labels"], "held.0.labels"),
        ({"deep": [LABELS, {}]}, lambda held: held["deep"][0], "held.deep.0"),
        (Pair(LABELS, 1.0), lambda held: held.labels, "held.labels"),
    ],
    ids=["list", "dict", "named tuple"],
)
def test_a_tensor_in_a_container_is_an_input(held: Any, read: Any, name: str) -> None:
    graph = export_training_graph(Held(read), {"x": X, "held": held})
    assert graph.inputs == ("x", name) and graph.unchecked == ""
    assert name in {given.name for given in graph.model.graph.input}


def test_a_tensor_in_an_unknown_container_is_no_constant() -> None:
    with pytest.raises(UsageError, match=r"'held' is a Batch.*register_dataclass\(Batch\)"):
        export_training_graph(Held(lambda h: h.labels), {"x": X, "held": Batch(X, LABELS)})


class Queue(nn.Module):
    """A queue whose place is a buffer that the step moves, as a momentum encoder has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(8, 4)
        self.register_buffer("queue", torch.zeros(4, 18))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        made = self.net(x)
        scores = made @ self.queue.clone().detach()
        with torch.no_grad():
            place = int(self.place)
            self.queue[:, place : place + 6] = made.T
            self.place[0] = (place + 6) % 18
        return torch.cat([scores, made], 1)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Queue(), r"place = int\(self\.place\)"),
        (
            nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=None)),
            "",
        ),  # its mean of all steps
    ],
    ids=["queue", "batch normalization"],
)
def test_a_value_of_state_that_the_step_moves_is_not_taken_for_granted(
    module: nn.Module, line: str
) -> None:
    with pytest.raises(DataDependentControlFlow, match=f"{line}.*changes from step to step"):
        export_training_graph(module, X, lambda y: y.square().mean(), specialize=True)


def kept(net: Net, x: Tensor) -> Tensor:
    """State that the graph returns."""
    result = x + net.held
    net.held.copy_(x.detach().mean(0))
    net.count += 1
    return result


def noisy(net: Net, x: Tensor) -> Tensor:
    """Random numbers that PyTorch draws: both sides are given the same."""
    x = F.dropout(x, 0.3) * torch.rand_like(x) + 0.1 * torch.randn(x.shape)
    return x * x.new_empty(x.shape[0], 1).bernoulli_(0.75) + torch.empty_like(x).uniform_(-1, 1)


def numpys_state() -> list[int]:
    return np.random.get_state()[1].tolist()  # noqa: NPY002


@pytest.mark.parametrize("how", [None, kept, noisy], ids=["plain", "state", "random"])
def test_a_step_that_is_right_is_compared_and_passes(how: Any) -> None:
    module = Net(how)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    drawn = torch.get_rng_state(), random.getstate(), numpys_state()
    graph = exported(module, optimizer="adamw")
    assert graph.unchecked == ""
    # the caller's module and random numbers are as they were
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert drawn[1] == random.getstate()
    # a trace of random operators draws from PyTorch's own numbers
    assert how is noisy or torch.equal(drawn[0], torch.get_rng_state())
    assert drawn[2] == numpys_state()


def test_a_step_may_switch_parameters_off() -> None:
    """As a generator's step does with its critic; the caller's are on, as they were."""

    def half(net: Net, x: Tensor) -> Tensor:
        net.second.requires_grad_(False)
        return x

    module = Net(half)
    graph = exported(module)
    outputs = {output.name for output in graph.model.graph.output}
    assert graph.unchecked == "" and "last.weight_grad" in outputs
    assert not outputs & {"second.weight_grad", "second.bias_grad"}
    assert module.second.weight.requires_grad


def test_what_reaches_the_module_by_a_closure_is_its_own() -> None:
    module = Net()
    module.first.register_forward_hook(lambda part, given, made: made + 0.1 * module.held)

    def decayed(result: Tensor, labels: Tensor) -> Tensor:
        squares = sum(p.square().sum() for p in module.parameters() if p.requires_grad)
        return F.cross_entropy(result, labels) + 1e-2 * squares

    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert exported(module, decayed).unchecked == ""
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


class Remembers(nn.Module):
    """Keeps what it made in attributes, as attention maps are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = Net(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.made = torch.tanh(x)
        return self.net(self.made)


class Frozen(dict[str, int]):
    """A dict that cannot be changed, as the configurations of diffusers are."""

    def __setitem__(self, *_: Any) -> None:
        raise TypeError("frozen")

    update = clear = pop = __setitem__  # type: ignore[assignment]


def test_a_module_may_hold_a_dict_that_cannot_be_changed() -> None:
    module = Net()
    module.config = Frozen(size=8)
    assert exported(module).unchecked == "" and module.config == {"size": 8}


def test_the_callers_module_is_left_as_it_was() -> None:
    module = Remembers().eval()
    attributes = set(module.__dict__)
    assert exported(module).unchecked == ""
    assert set(module.__dict__) == attributes
    assert (module.calls, module.training, module.net.training) == (0, False, False)


def test_what_a_graph_cannot_do_to_parameters_is_refused() -> None:
    module = Net()
    module.first.weight.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(OtherStep, match=r"'first\.weight' has a hook on its gradient"):
        exported(module)
    module = Net()
    module.second.weight.data = module.first.weight.data
    with pytest.raises(OtherStep, match=r"'second\.weight' and 'first\.weight' share memory"):
        exported(module)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(
            self.attend(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
        )


class Bags(nn.Module):
    """Offsets into a list of places: no other order of them is right."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.last = nn.EmbeddingBag(10, 8, mode="sum"), nn.Linear(8, 3)

    def forward(self, places: Tensor, offsets: Tensor) -> Tensor:
        return self.last(self.bags(places, offsets))


class Translation(nn.Module):
    """A Transformer that is not told that its mask is a causal one, and would look."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = nn.Transformer(8, 2, 1, 1, 8, 0.0, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        words = torch.stack([x, x.tanh(), x.cos()], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        return self.last(self.net(words[:, :2], words, tgt_mask=mask)[:, 1])


def test_steps_that_need_care_are_compared() -> None:
    assert exported(Attention()).unchecked == ""
    assert exported(Translation()).unchecked == ""
    places, offsets = torch.arange(12) % 10, torch.tensor([0, 2, 3, 6, 8, 9])
    given = {"places": places, "offsets": offsets}
    bags = export_training_graph(Bags(), given, F.cross_entropy, targets=LABELS)
    assert bags.unchecked == ""
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    loss = lambda result, signs: F.cosine_embedding_loss(result, result.flip(0), signs)  # noqa: E731
    assert export_training_graph(Net(), X, loss, targets=signs).unchecked == ""


@pytest.mark.parametrize(
    ("kind", "layers", "both_ways"), [(nn.LSTM, 2, True), (nn.GRU, 2, False), (nn.RNN, 3, False)]
)
def test_dropout_between_recurrent_layers_is_exported(
    kind: Any, layers: int, both_ways: bool
) -> None:
    """PyTorch's own decomposition leaves it out (torch/_decomp/decompositions.py)."""
    module = kind(8, 3, num_layers=layers, dropout=0.2, batch_first=True, bidirectional=both_ways)

    def loss(result: Any, labels: Tensor) -> Tensor:
        return F.cross_entropy(result[0].mean(1)[:, :3], labels) + result[1][0].square().mean()

    steps = X[:, None] * torch.tensor([1.0, 0.5])[:, None]
    graph = export_training_graph(module, steps, loss, targets=LABELS, random="inputs")
    assert graph.unchecked == "" and len(graph.draws) == layers - 1


def test_an_inexact_graph_is_caught_by_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees one wrong gradient among right ones."""
    from planner.export.checking import check

    run = check.GraphSession.run

    def wrong(self: Any, feeds: Any) -> Any:
        found = run(self, feeds)
        found["first.bias_grad"] = found["first.bias_grad"] * 1.05
        return found

    monkeypatch.setattr(check.GraphSession, "run", wrong)
    with pytest.raises(OtherStep, match=r"gradient of 'first.bias' is off by 0.05"):
        exported(Net())


class Centred(nn.Module):
    """Batch normalizations around a linear layer, whose results have a mean of 0 but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)
        self.wide, self.then = nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)
        with torch.no_grad():
            self.wide.weight.mul_(1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.then(self.wide(self.first(x))))


def test_a_mean_of_rounding_alone_is_no_other_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind convolutions that follow batch normalizations; another mean is caught all the same."""
    from planner.export.checking import check

    assert exported(Centred()).unchecked == ""
    run = check.GraphSession.run

    def wrong(self: Any, feeds: Any, by: float) -> Any:
        found = run(self, feeds)
        return found | {"then.running_mean_new": found["then.running_mean_new"] + by}

    monkeypatch.setattr(check.GraphSession, "run", lambda self, feeds: wrong(self, feeds, 1e-5))
    assert exported(Centred()).unchecked == ""
    monkeypatch.setattr(check.GraphSession, "run", lambda self, feeds: wrong(self, feeds, 0.1))
    with pytest.raises(OtherStep, match=r"'then.running_mean' has another value"):
        exported(Centred())


def test_what_is_not_compared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exported(Net(drawn_by_numpy), check=False).unchecked == "it was not asked for"
    assert "meta device" in exported(Net().to("meta")).unchecked
    twice = exported(Net(lambda net, x: F.dropout(x, 0.5) + 0 * F.dropout(x, 0.5).detach().sum()))
    assert twice.unchecked == ""
    unused = exported(Net(lambda net, x: (F.dropout(x, 0.5), F.dropout(x, 0.5))[0]))
    assert "do not match" in unused.unchecked
    infinite = export_training_graph(Net(), X, lambda result: (result / 0).sum())
    assert "the loss is" in infinite.unchecked
    monkeypatch.setattr("planner.export.checking.check._MOST_BYTES", 1)
    assert "is long to run here" in exported(Net()).unchecked


def test_other_values_are_of_the_examples_kind() -> None:
    others = Others(1)
    mask = torch.arange(12).reshape(6, 2) % 3 > 0
    chances = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    for given in (X, chances, chances + 2, X.to(torch.complex64)):
        found = others.tensor(given)
        assert (found.shape, found.dtype) == (given.shape, given.dtype)
        assert not torch.equal(found, given)
    assert 0 <= others.tensor(chances).min() <= others.tensor(chances).max() <= 1
    assert others.tensor(chances + 2).min() > 0
    for given in (LABELS, mask):
        rows = sorted(map(str, given.tolist()))
        assert sorted(map(str, others.tensor(given).tolist())) == rows
    assert torch.equal(others.tensor(torch.tensor(3)), torch.tensor(3))
    assert not torch.equal(others.tensor(LABELS), LABELS)
    assert torch.equal(others.tensor(LABELS), others.tensor(LABELS)), "as many rows, in one order"
    parameter = nn.Parameter(torch.ones(4))
    assert not torch.equal(moved(parameter, torch.Generator().manual_seed(0)), parameter)
