"""What a step counts in Python, and what hangs on it later."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from planner.errors import UsageError
from planner.export.errors import OtherStep
from planner.export.training import export_training_graph

X, Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
CALLS = {"n": 0}


class Counts(nn.Module):
    """Doubles its result where `later` says so of what it has counted."""

    def __init__(self, later: Callable[[int], bool], where: str = "int") -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.later, self.where = later, where
        self.n, self.calls, self.table, self.held = 0, [], {"n": 0}, SimpleNamespace(n=0)

    def forward(self, x: Tensor) -> Tensor:
        self.n += self.where == "int"
        self.table["n"] += self.where == "dict"
        self.held.n += self.where == "object"
        if self.where == "list":
            self.calls.append(None)
        counted = self.n + self.table["n"] + self.held.n + len(self.calls)
        result = self.linear(x)
        return 2 * result if self.later(counted) else result


class Loss:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, result: Tensor, target: Tensor) -> Tensor:
        self.n += 1
        return f.cross_entropy(result if self.n < 60 else -result, target)


def _with_global(result: Tensor, target: Tensor) -> Tensor:
    CALLS["n"] += 1
    return f.cross_entropy(result if CALLS["n"] < 60 else -result, target)


def _with_closure() -> Callable[[Tensor, Tensor], Tensor]:
    n = 0

    def loss(result: Tensor, target: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return f.cross_entropy(result if n < 60 else -result, target)

    return loss


def exported(module: nn.Module, loss: Any = f.cross_entropy) -> Any:
    return export_training_graph(module, (X,), loss, targets=(Y,))


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("int", "n"),
        ("list", r"len\(calls\)"),
        ("dict", r"table\.n"),
        ("object", r"held\.n"),
    ],
)
def test_what_changes_once_enough_is_counted_is_refused_by_name(where: str, name: str) -> None:
    module = Counts(lambda n: n > 50, where)
    with pytest.raises(OtherStep, match=rf"100 more steps, with its counters \({name}\)"):
        exported(module)
    assert (module.n, len(module.calls), module.table["n"], module.held.n) == (0, 0, 0, 0)


@pytest.mark.parametrize("period", [7, 50, 1000])
def test_what_is_done_every_so_often_is_refused(period: int) -> None:
    with pytest.raises(OtherStep, match=r"with its counters \(n\) as large"):
        exported(Counts(lambda n: n % period == 0))


@pytest.mark.parametrize("loss", [Loss(), _with_global, _with_closure()])
def test_what_a_loss_counts_is_looked_at(loss: Any) -> None:
    with pytest.raises(OtherStep, match=r"with its counters \((loss\.|CALLS\.|)n\)"):
        exported(nn.Linear(6, 3), loss)
    assert CALLS["n"] == 0


def test_a_count_that_nothing_hangs_on_is_exported() -> None:
    graph = exported(Counts(lambda n: n < 0))
    assert not graph.unchecked


def test_torchscript_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the module is TorchScript"):
        exported(torch.jit.script(nn.Linear(6, 3)))  # type: ignore[arg-type]
