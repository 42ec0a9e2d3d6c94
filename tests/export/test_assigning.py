"""Assignments by a mask beside an index, as PyTorch makes them: results, gradients, exported steps;
packed sequences, and what stands for them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from planner.export.apart.assigning import assigned
from planner.export.errors import ExportError
from planner.export.training import export_training_graph

SHAPE = (4, 6, 8)
ROWS = torch.tensor([0, 2, -3, 3])
HERE = torch.tensor([True, False, True, True, False, True])
ALL = slice(None)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


CASES: list[tuple[Any, list[tuple[int, ...]]]] = [
    ((ALL, HERE), [(8,), (4, 1, 8), (), (1, 8)]),
    ((1, HERE), [(), (8,), (1, 8), (1,)]),
    ((ROWS[2], HERE), [(8,), ()]),
    ((ROWS[2:3], HERE), [(8,), (1, 8)]),
    ((ROWS, HERE), [(), (8,), (4, 8), (1, 8), (1,)]),
    ((ROWS[:, None], HERE), [(), (8,), (1, 1, 8)]),
    ((ALL, HERE, torch.tensor(-3)), [(), (4, 1)]),
    ((ALL, HERE, torch.tensor([3, 1, 0, 7])), [(), (4, 4), (4,), (1,)]),
    ((ROWS, ALL, torch.arange(8) % 2 == 0), [()]),
    ((2, drawn(6, 8) > 0), [(), (1,)]),
    ((torch.tensor([True, False, True, True]), torch.tensor([5, 0, -2])), [(3, 8), (8,), ()]),
]


@pytest.mark.parametrize(("index", "shapes"), CASES)
def test_values_and_gradients(index: Any, shapes: list[tuple[int, ...]]) -> None:
    for shape in shapes:
        found: list[list[Tensor]] = []
        for put in (Tensor.__setitem__, assigned):
            start, value = drawn(*SHAPE).requires_grad_(), drawn(*shape).requires_grad_()
            x = start * 1
            put(x, index, value)
            gradients = torch.autograd.grad((x * drawn(*SHAPE).sin()).sum(), [start, value])
            found.append([x, *gradients])
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, msg=str(shape))


def test_other_places_than_rows_are_not_silent() -> None:
    x = drawn(*SHAPE)
    assigned(x, (ROWS[:3], HERE), torch.tensor(1.0))
    assert x.isnan().any()


class Assigning(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.layer, self.row, self.how = nn.Linear(8, 8), nn.Parameter(drawn(8)), how

    def forward(self, x: Tensor, rows: Tensor, here: Tensor) -> Tensor:
        h = self.layer(x).clone()
        self.how(self, h, rows, here)
        return h.square().mean()


def by_rows(module: Assigning, h: Tensor, rows: Tensor, here: Tensor) -> None:
    h[rows, here] = module.row
    h[1, here] = 0.5
    h[rows[:, None], here] = 2 * module.row


def test_a_step_is_exported_and_is_pytorchs() -> None:
    graph = export_training_graph(Assigning(by_rows), (drawn(*SHAPE), ROWS, HERE))
    assert graph.unchecked == ""
    assert {"rows", "here"} <= {value.name for value in graph.model.graph.input}


def of_a_value_each(module: Assigning, h: Tensor, rows: Tensor, here: Tensor) -> None:
    h.index_put_((rows, here), torch.arange(32.0).reshape(4, 8))


def of_a_generator(module: Assigning, h: Tensor, rows: Tensor, here: Tensor) -> None:
    h += torch.randn(8, generator=torch.Generator().manual_seed(0))


def test_what_is_not_covered_names_what_is() -> None:
    with pytest.raises(
        ExportError, match=r"a mask beside another index; use .* x\[i, mask\] = value"
    ):
        export_training_graph(Assigning(of_a_value_each), (drawn(*SHAPE), ROWS, HERE))
    with pytest.raises(ExportError, match=r"it reads a Generator.*test_assigning.py"):
        export_training_graph(Assigning(of_a_generator), (drawn(*SHAPE), ROWS, HERE))


class Recurrent(nn.Module):
    def __init__(self, is_packed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.is_packed = nn.GRU(8, 8, batch_first=True), is_packed

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.is_packed:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output, last = self.layer(packed)
            output, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
            return output.square().sum() + last.sum()
        output, _ = self.layer(x)
        here = torch.arange(x.shape[1]) < lengths[:, None]
        ends = (lengths - 1)[:, None, None].expand(-1, 1, 8)
        return (output * here[..., None]).square().sum() + output.gather(1, ends).sum()


def test_a_padded_batch_with_a_mask_stands_for_a_packed_sequence() -> None:
    given = (drawn(*SHAPE), torch.tensor([6, 4, 1, 2]))
    with pytest.raises(ExportError, match=r"a packed sequence.*test_assigning.*padded batch.*mask"):
        export_training_graph(Recurrent(True), given, specialize=True)
    torch.testing.assert_close(Recurrent(True)(*given), Recurrent(False)(*given))
    assert export_training_graph(Recurrent(False), given).unchecked == ""
