"""What a loss function returns beside the loss: outputs of the graph, by name, as PyTorch has them."""

from __future__ import annotations

import dataclasses
import random
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import planner
from planner.errors import UsageError
from planner.export.errors import InvalidLoss, OtherStep
from planner.export.training import ExportedGraph, export_training_graph

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 1])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


@dataclasses.dataclass
class Found:
    logits: Tensor
    loss: Tensor
    nothing: None = None


@dataclasses.dataclass
class Other:
    logits: Tensor


Named = namedtuple("Named", ["logits", "loss"])


def exported(loss: Callable[..., Any], optimizer: Any = None, **more: Any) -> ExportedGraph:
    return export_training_graph(Net(), X, loss, optimizer, targets={"y": Y}, **more)


def metrics(out: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Names of operators among them, a parameter's view, an input, the loss again, a complex one."""
    loss = F.cross_entropy(out, y)
    right = out.argmax(1) == y
    return loss, {
        "accuracy": right.float().mean(),
        "right": right,
        "logits": out,
        "mean": out.mean(),
        "seen": y,
        "again": loss,
        "turned": torch.polar(out, out),
    }


def outputs(graph: ExportedGraph) -> list[str]:
    return [output.name for output in graph.model.graph.output]


def run(graph: ExportedGraph, module: nn.Module, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(graph.model.SerializeToString())
    feeds = {"x": x.numpy(), "y": y.numpy(), **graph.initial_state()}
    feeds |= {name: p.detach().numpy() for name, p in module.named_parameters()}
    found = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    return dict(zip(outputs(graph), map(np.asarray, found), strict=True))


@pytest.mark.parametrize(
    "optimizer", [None, "adamw", lambda net: torch.optim.SGD(net.parameters(), 0.1)]
)
def test_results_are_pytorchs_in_the_order_returned(optimizer: Any) -> None:
    net = Net()
    made = optimizer(net) if callable(optimizer) else optimizer
    graph = export_training_graph(net, {"x": X}, metrics, made, targets={"y": Y})
    assert graph.unchecked == ""
    loss, others = metrics(net(X), Y)
    assert outputs(graph)[: len(others) + 1] == ["loss", *others]
    assert graph.results == tuple(others)
    found = run(graph, net, X, Y)
    for name, tensor in {"loss": loss, **others}.items():
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        np.testing.assert_allclose(found[name], real.detach().numpy(), atol=1e-5, err_msg=name)


def test_results_follow_a_symbolic_batch() -> None:
    def loss(out: Tensor, y: Tensor) -> dict[str, Any]:
        return {"logits": out, "loss": F.cross_entropy(out, y), "pair": (out.sum(1), [out])}

    net = Net()
    graph = export_training_graph(net, {"x": X}, loss, targets={"y": Y}, dynamic_batch=True)
    assert outputs(graph)[:4] == ["loss", "logits", "pair.0", "pair.1.0"]
    dims = graph.model.graph.output[1].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch", 3]
    found = run(graph, net, X[:4], Y[:4])
    np.testing.assert_allclose(found["logits"], net(X[:4]).detach().numpy(), atol=1e-5)


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (lambda loss, out: (loss, out, out.sum()), ("output_1", "output_2")),
        (lambda loss, out: Named(out, loss), ("logits",)),
        (lambda loss, out: Found(out, loss), ("logits",)),
        (lambda loss, out: (loss, {"logits": out, "none": None}), ("logits",)),
        (lambda loss, out: (loss,), ()),
    ],
)
def test_forms(form: Callable[[Tensor, Tensor], Any], names: tuple[str, ...]) -> None:
    graph = exported(lambda out, y: form(_loss(out, y), out), check=False)
    assert graph.results == names
    assert outputs(graph)[: len(names) + 1] == ["loss", *names]


def test_a_loss_alone_is_written_as_before() -> None:
    alone, with_none = exported(_loss), exported(lambda out, y: (_loss(out, y), {}))
    assert alone.model == with_none.model


class _WithLoss(Net):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor, y: Tensor) -> Any:
        out = super().forward(x)
        return self.form(out, _loss(out, y))


@pytest.mark.parametrize(
    ("form", "names"),
    [(Found, ()), (lambda out, loss: {"loss": loss, "logits": out}, ("logits",))],
)
def test_of_a_modules_object_the_loss_is_taken_alone(form: Any, names: tuple[str, ...]) -> None:
    """A dict says what is wanted; a library's object has all that it could think of."""
    module = _WithLoss(form)
    assert export_training_graph(module, (X, Y), check=False).results == names
    whole = export_training_graph(module, (X, Y), lambda result: result, check=False)
    assert whole.results == ("logits",)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda out, y: (out, _loss(out, y)), r"of a tuple the first is the loss: return \(loss, "),
        (lambda out, y: (out.argmax(1).sum(), _loss(out, y)), "of a tuple the first is the loss"),
        (lambda out, y: [_loss(out, y), out], r"returns a list, not a tensor: return the loss, \("),
        (
            lambda out, y: {"ce": _loss(out, y)},
            """a dict of 'ce', and no "loss": return the loss""",
        ),
        (lambda out, y: Other(out), "returns a Other, not a tensor: return the loss"),
        (lambda out, y: Found(out, None), "whose loss is a NoneType"),  # pyright: ignore
        (lambda out, y: (_loss(out, y), {"n": 0.5}), "'n' as a float, which is no tensor: return"),
        (lambda out, y: (_loss(out, y), {"o": Other(out)}), "'o' is a Other with tensors in it"),
        (lambda out, y: (_loss(out, y), {"loss": out}), "two tensors called 'loss'"),
        (lambda out, y: (_loss(out, y), {1: out, "1": y}), "two tensors called '1'"),
        (lambda out, y: (_loss(out, y), {"y": out}), "the name 'y' is taken"),
        (lambda out, y: (_loss(out, y), {"first.bias_grad": out}), "'first.bias_grad' is taken"),
    ],
)
def test_what_is_not_told_apart_is_refused(loss: Callable[..., Any], message: str) -> None:
    with pytest.raises((InvalidLoss, UsageError), match=message):
        exported(loss, check=False)


def _frozen_real(out: Tensor) -> Tensor:
    return out * random.uniform(0.5, 2)


def _frozen_whole(out: Tensor) -> Tensor:
    return out.argmax(1) + random.randrange(1, 1000)


@pytest.mark.parametrize("frozen", [_frozen_real, _frozen_whole])
def test_a_result_that_the_trace_freezes_is_found(frozen: Callable[[Tensor], Tensor]) -> None:
    def loss(out: Tensor, y: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        return _loss(out, y), {"drawn": frozen(out)}

    with pytest.raises(OtherStep, match="the output 'drawn' is off"):
        exported(loss)


def test_what_a_mask_leaves_infinite_is_compared_in_the_rest() -> None:
    def loss(out: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return _loss(out, y), {"masked": out.masked_fill(y[:, None] == 1, -torch.inf)}

    assert exported(loss).unchecked == ""


def test_a_class_that_is_another_by_rounding_in_half_is_no_error() -> None:
    def loss(out: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        near = out * 1e-3 + 1  # many are equal in bfloat16, others are one apart
        return _loss(out, y), {"classes": near.to(torch.bfloat16).argmax(1)}

    assert exported(loss, autocast=torch.bfloat16, cast_for_cpu=True).unchecked == ""


def test_a_plan_keeps_them_in_micro_batches_too(tmp_path: Any) -> None:
    path = tmp_path / "step.onnx"

    def loss(out: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return _loss(out, y), {"logits": out, "right": out.argmax(1) == y}

    exported(loss, dynamic_batch=True).save(path)
    for runs in (1, 2):
        found = planner.optimize(
            path,
            budget="90%",
            output=tmp_path / f"{runs}.onnx",
            dims={"batch": 512},
            micro_batch=runs,
            time_limit_s=1,
        )
        assert found.verification is not None
        assert found.verification.passed
        assert {"logits", "right"} <= {item.name for item in found.verification.outputs}
