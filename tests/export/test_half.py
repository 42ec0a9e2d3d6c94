"""Half types: modules in them and autocast, beside autograd in the same type, and planned.

Differences are L2 norms over the norm of PyTorch's value. Each operator rounds its result once, as in
PyTorch, and orders sums in its own way: a few units in the last place of the type (its eps) remain. Where
PyTorch in half is further than that from PyTorch in float64 (batch normalization of few values amplifies
rounding), so may we be, by twice as much.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import Tensor, nn

from models.check import distance, run
from models.nets import GPT
from models.recipes import language_loss
from planner import optimize
from planner.errors import UsageError
from planner.export.aten.registry import array_of
from planner.export.optim import SGD, Adam, AdamW, Optimizer
from planner.export.training import ExportedGraph, export_training_graph

UNITS = 4
"""Largest difference of an output, in units of its type's eps."""

Step = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor], tuple[Tensor, ...]]


def mlp() -> Step:
    layers = [nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU()]
    module = nn.Sequential(*layers, nn.Linear(64, 10))
    return module, (torch.randn(64, 32),), F.cross_entropy, (torch.arange(64) % 10,)


def cnn() -> Step:
    layers: list[nn.Module] = []
    for channels in (3, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU()]
    head = [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)]
    images, labels = torch.randn(4, 3, 16, 16), torch.arange(4) % 10
    return nn.Sequential(*layers, *head), (images,), F.cross_entropy, (labels,)


def gpt() -> Step:
    module = GPT(vocabulary=50, positions=16, width=32, heads=2, layers=1)
    tokens = torch.arange(64).reshape(4, 16) % 50
    return module, (tokens,), language_loss, (tokens + 0,)


STEPS = {"mlp": mlp, "cnn": cnn, "gpt": gpt}


def made(name: str, dtype: torch.dtype | None = None) -> Step:
    """A step with the same values each time; the module and its inputs in a type."""
    torch.manual_seed(0)
    module, inputs, loss, targets = STEPS[name]()
    if dtype is not None:
        module = module.to(dtype)
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return module, inputs, loss, targets


def exported(step: Step, **options) -> ExportedGraph:
    module, inputs, loss, targets = step
    return export_training_graph(module, inputs, loss, targets=targets, **options)


def feeds_of(graph: ExportedGraph, step: Step) -> dict[str, np.ndarray]:
    module, inputs, _, targets = step
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors |= dict(zip(graph.inputs, (*inputs, *targets), strict=True))
    return {info.name: array_of(tensors[info.name]).copy() for info in graph.model.graph.input}


def through_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 in place of bfloat16 at its ends: numpy arrays of that are not fed."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    before, after = [], []
    for infos, casts in ((graph.input, before), (graph.output, after)):
        for info in infos:
            kind = info.type.tensor_type
            if kind.elem_type == TensorProto.BFLOAT16:
                kind.elem_type, ends = TensorProto.FLOAT, (f"{info.name}.as_fed", info.name)
                source, result, to = (*ends, TensorProto.BFLOAT16)
                if casts is after:
                    source, result, to = info.name, ends[0], TensorProto.FLOAT
                casts.append(helper.make_node("Cast", [source], [result], result, to=to))
                info.name = ends[0]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def outputs_of(graph: ExportedGraph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output; bfloat16 as float32."""
    model = through_float(graph.model)
    wide = {}
    for name, array in feeds.items():
        fed = array.dtype.name == "bfloat16"
        wide[f"{name}.as_fed" if fed else name] = array.astype(np.float32) if fed else array
    return {n.removesuffix(".as_fed"): array for n, array in run(model, wide).items()}


def check(graph: ExportedGraph, step: Step, eps: float, autocast=None, mixed: bool = False) -> None:
    """Loss, gradients and new buffers are autograd's, but for a few eps."""
    actual = outputs_of(graph, feeds_of(graph, step))
    expected = autograd(step, autocast)
    exact = expected if mixed else autograd(in_double(step))
    assert {name for name in expected if name in actual} == actual.keys()
    kinds = {info.name: info.type.tensor_type.elem_type for info in graph.model.graph.output}
    for name, array in actual.items():
        want = expected[name]
        assert helper.np_dtype_to_tensor_dtype(want.dtype) == kinds[name], name
        given = want.astype(np.float64)
        apart = distance(array.astype(np.float64), given)
        theirs = distance(given, exact[name].astype(np.float64))
        assert apart < max(UNITS * eps, 2 * theirs), (name, apart / eps, theirs / eps)


def in_double(step: Step) -> Step:
    module, inputs, loss, targets = copy.deepcopy(step)
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    return module.double(), inputs, loss, targets


def autograd(step: Step, autocast=None) -> dict[str, np.ndarray]:
    """Loss, gradients and buffers after a step of PyTorch's."""
    module, inputs, loss_fn, targets = step
    with autocast or contextlib.nullcontext():
        loss = loss_fn(module(*inputs), *targets)
    loss.backward()
    found = {"loss": loss} | {f"{n}_grad": p.grad for n, p in module.named_parameters()}
    found |= {f"{n}_new": b for n, b in module.named_buffers()}
    return {name: array_of(tensor) for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("mlp", torch.bfloat16),
        ("cnn", torch.float16),
        ("cnn", torch.bfloat16),
        ("gpt", torch.float16),
    ],
)
def test_module_in_half(name: str, dtype: torch.dtype) -> None:
    step = made(name, dtype)
    graph = exported(step, cast_for_cpu=True)
    assert graph.missing_on_cpu == ()
    check(graph, step, torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mlp", torch.float16), ("cnn", torch.bfloat16), ("gpt", torch.bfloat16)],
)
def test_autocast_around_the_step(name: str, dtype: torch.dtype) -> None:
    step = made(name)
    graph = exported(step, autocast=dtype, cast_for_cpu=True)
    check(graph, step, torch.finfo(dtype).eps, torch.autocast("cpu", dtype))
    kinds = {info.type.tensor_type.elem_type for info in graph.model.graph.input}
    assert kinds <= {TensorProto.FLOAT, TensorProto.INT64}, "parameters stay float32"


class Inside(nn.Module):
    """Autocast in the module's own code, as it is written for a GPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            hidden = torch.relu(self.first(x))
            with torch.autocast(self.device, enabled=False):
                hidden = hidden.float().cumsum(0)
            result = self.second(hidden)
        return result.float()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_inside_the_module(device: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(8, 32), torch.arange(8) % 10
    module = Inside(device)
    graph = exported((module, (x,), F.cross_entropy, (labels,)), cast_for_cpu=True)
    module.device = "cpu"
    eps = torch.finfo(torch.bfloat16).eps
    check(graph, (module, (x,), F.cross_entropy, (labels,)), eps, mixed=True)


def test_what_the_cpu_cannot_run_is_named() -> None:
    with pytest.warns(UserWarning, match=r"no bfloat16 kernel of .*Gemm.*--cast-for-cpu"):
        graph = exported(made("mlp", torch.bfloat16))
    assert "Gemm" in graph.missing_on_cpu
    onnx.checker.check_model(graph.model, full_check=True)
    casts = exported(made("mlp", torch.bfloat16), cast_for_cpu=True)
    before = [n.op_type for n in graph.model.graph.node if n.op_type != "Cast"]
    after = [n.op_type for n in casts.model.graph.node if n.op_type != "Cast"]
    assert before == after, "nothing but casts is added"


def test_a_value_may_need_casts_in_onnx_and_on_the_cpu() -> None:
    """A padded image in bfloat16 is the operand of operators that lack the type here or there."""
    layers = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))
    step = (layers, (torch.randn(2, 8, 6, 6),), lambda y: y.float().square().mean(), ())
    with pytest.warns(UserWarning, match=r"no bfloat16 kernel of .*Pad"):
        graph = exported(step, autocast=torch.bfloat16)
    assert "Pad" in graph.missing_on_cpu


def test_other_types_to_autocast_to() -> None:
    with pytest.raises(UsageError, match=r"torch\.bfloat16 or torch\.float16, not torch\.float32"):
        exported(made("mlp"), autocast=torch.float32)


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
        Adam(weight_decay=0.1),
        AdamW(),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_update_in_the_type_of_the_parameters(optimizer: Optimizer, dtype: torch.dtype) -> None:
    """Two steps on given gradients, as PyTorch takes them."""
    torch.manual_seed(0)
    module = nn.Linear(8, 4).to(dtype)
    x, wanted = torch.randn(16, 8, dtype=dtype), torch.randn(16, 4, dtype=dtype)
    step: Step = (module, (x,), F.mse_loss, (wanted,))
    graph = exported(step, optimizer=optimizer, cast_for_cpu=True)
    assert {item.dtype.name for item in graph.state} <= {str(dtype)[6:], "float32"}
    feeds = {item.name: np.full(item.shape, item.initial, item.dtype) for item in graph.state}
    model = export_training_graph(module, x, F.mse_loss, targets=wanted, cast_for_cpu=True)
    feeds["lr"] = np.asarray(0.125, feeds["lr"].dtype)
    theirs = _theirs(optimizer, module)
    for number in (1, 2):
        tensors = {**dict(module.named_parameters()), "input": x, "target": wanted}
        now = {name: array_of(tensors[name]).copy() for name in ("input", "target")}
        now |= {name: array_of(p).copy() for name, p in module.named_parameters()} | feeds
        if "step" in now:
            now["step"] = np.asarray(number, now["step"].dtype)
        ours = outputs_of(graph, {info.name: now[info.name] for info in graph.model.graph.input})
        plain = {info.name: now[info.name] for info in model.model.graph.input}
        gradients = outputs_of(model, plain)
        for name, parameter in module.named_parameters():
            parameter.grad = torch.from_numpy(gradients[f"{name}_grad"].copy()).to(dtype)
        theirs.step()
        eps = torch.finfo(dtype).eps
        for name, parameter in module.named_parameters():
            want = array_of(parameter).astype(np.float64)
            apart = distance(ours[f"{name}_new"].astype(np.float64), want)
            assert apart < max(UNITS * eps, 1e-5), name
        for item in graph.state:
            if item.shape:
                feeds[item.name] = ours[f"{item.name}_new"].astype(item.dtype)


def _theirs(optimizer: Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    parameters = list(module.parameters())
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(
            parameters,
            lr=0.125,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov,
            weight_decay=optimizer.weight_decay,
            foreach=False,  # the fused one of PyTorch 2.13 is not this in half types, on the CPU
        )
    assert isinstance(optimizer, Adam)
    kind = torch.optim.AdamW if optimizer.decoupled else torch.optim.Adam
    return kind(parameters, lr=0.125, weight_decay=optimizer.weight_decay, fused=True)


@pytest.mark.parametrize(
    ("name", "dtype", "budget"),
    [
        ("cnn", torch.float16, "70%"),
        ("gpt", torch.bfloat16, "60%"),
    ],
)
def test_planned_bit_for_bit(name: str, dtype: torch.dtype, budget: str, tmp_path: Path) -> None:
    """Modules in float16, and bfloat16 by autocast: what a CPU runs."""
    half = dtype == torch.float16
    options = {} if half else {"autocast": dtype, "cast_for_cpu": True}
    graph = exported(made(name, dtype if half else None), **options)
    path = tmp_path / "m.onnx"
    graph.save(path, sidecar=True)
    result = optimize(
        path, budget=budget, budget_of="live", output=tmp_path / "p.onnx", time_limit_s=1
    )
    assert result.verification is not None and result.verification.passed
    assert all(output.identical for output in result.verification.outputs)


@pytest.mark.parametrize("scaled", [False, True], ids=["adamw", "grad_scaler"])
def test_planned_under_float16_autocast(scaled: bool, tmp_path: Path) -> None:
    """What the loop does with the gradients reads the same roundings as in the original."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))  # makes its tensors

    def loss(logits: Tensor, target: Tensor, scale: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), target) * (scale if scaled else 1)

    def update() -> None:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    targets = {"target": torch.arange(512) % 5, "scale": scaler._scale}
    graph = export_training_graph(
        net,
        torch.randn(512, 6),
        loss,
        update if scaled else optimizer,
        targets=targets,
        autocast=torch.float16,
    )
    path = tmp_path / "m.onnx"
    graph.save(path, sidecar=True)
    result = optimize(
        path, budget="80%", budget_of="live", output=tmp_path / "p.onnx", time_limit_s=1
    )
    assert result.verification is not None and result.verification.passed
    assert all(output.identical for output in result.verification.outputs)
    assert any("__recompute" in node.name for node in onnx.load(tmp_path / "p.onnx").graph.node)


def test_planned_and_verified_with_parameters_that_numpy_does_not_feed(tmp_path: Path) -> None:
    """A module in bfloat16, with casts: state and updates in bfloat16, scalars in it anchored."""
    graph = exported(made("gpt", torch.bfloat16), optimizer="adamw", cast_for_cpu=True)
    path, planned = tmp_path / "m.onnx", tmp_path / "p.onnx"
    graph.save(path, sidecar=True)
    found = optimize(path, budget="80%", output=planned, time_limit_s=1).verification
    assert found is not None and found.passed
    assert len(found.outputs) == len(graph.model.graph.output)
    assert all(output.identical for output in found.outputs)


def test_planned_without_the_kernels(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="bfloat16"):
        graph = exported(made("mlp", torch.bfloat16))
    path = tmp_path / "m.onnx"
    graph.save(path)
    result = optimize(
        path,
        budget="80%",
        output=tmp_path / "p.onnx",
        time_limit_s=1,
        device="cuda",
        verify=False,
    )
    assert result.plan.planned.peak_bytes <= 0.8 * result.plan.baseline.peak_bytes
    onnx.checker.check_model(onnx.load(path))
