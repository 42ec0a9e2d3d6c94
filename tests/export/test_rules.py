"""Lowering rules, one small module each: result and gradients against PyTorch.

The loss is a weighted sum, so that every element of the result has a gradient of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.check import compare, run
from models.recipes import Step
from planner.export.inputs import InputSpec
from planner.export.training import export_training_graph

TOLERANCE = 5e-6

FLOATS = InputSpec(shape=(4, 6), dtype="float32", kind="normal")
IMAGES = InputSpec(shape=(2, 4, 9, 9), dtype="float32", kind="normal")
SEQUENCE = InputSpec(shape=(2, 5, 6), dtype="float32", kind="normal")
INDICES = InputSpec(shape=(3, 8), dtype="int64", kind="randint", high=5)


class Weighted(nn.Module):
    """`function(x * weight)`: differentiable through x, whatever x is."""

    def __init__(self, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight)


def ramp(result: Tensor) -> Tensor:
    """A weighted sum; the weights run from 0 to 1."""
    flat = result.flatten()
    return (flat * torch.linspace(0, 1, flat.shape[0])).sum()


def check(module: nn.Module, *inputs: InputSpec, loss: Callable[..., Tensor] = ramp) -> None:
    named = {f"x{index}": spec for index, spec in enumerate(inputs)}
    comparison = compare(Step(module=module, inputs=named, loss=loss))
    assert comparison.worst[1] < TOLERANCE, comparison.worst


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "arithmetic": lambda x: (x + 2) * 3 - x / 4 + (1 - x) - x.sub(x.exp(), alpha=0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5) * 2,
    "comparisons": lambda x: torch.where((x > 0) & ~(x >= 1) | (x != x), x * 2, -x),
    "cosine": lambda x: torch.cos(x) + torch.sin(x),
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "log and root": lambda x: torch.log(x * x + 1) + torch.sqrt(x * x + 1),
    "masked fill": lambda x: x.masked_fill(x > 0.5, 0.25),
    "maximum": lambda x: torch.maximum(x, -x) + torch.minimum(x, x * 2),
    "power": lambda x: x**2 + x**3 + (x * x + 1) ** -0.5,
    "relu": F.relu,
    "reciprocal root": lambda x: torch.rsqrt(x * x + 1) + torch.reciprocal(x * x + 1),
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "where with numbers": lambda x: torch.where(x > 0, x, 0.5) + torch.where(x < 0, -1.0, x),
    "to another type and back": lambda x: (x.double() * 2).float(),
    # reductions
    "sum": lambda x: x.sum() + x.sum(0) + x.sum(1, keepdim=True),
    "mean": lambda x: x.mean() + x.mean(0) + x.mean((0, 1), keepdim=True),
    "amax": lambda x: x.amax(1),
    "count of booleans": lambda x: x * (x > 0).sum(),
    "softmax": lambda x: F.softmax(x, 1),
    "log softmax": lambda x: F.log_softmax(x, 0),
    # views
    "view of a view": lambda x: x.view(2, 12).view(3, 8).view(24).tanh(),
    "transposes": lambda x: x.t().reshape(3, 8).transpose(0, 1).tanh().permute(1, 0),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(-1).tanh(),
    "expand": lambda x: x.unsqueeze(0).expand(3, 4, 6) * 2,
    "repeat": lambda x: x.repeat(2, 1, 3),
    # parts
    "slices": lambda x: x[1:, ::2] + x[:-1, :3] + x[-3:, -3:].tanh(),
    "select": lambda x: x[0] + x[-1] + x[2].tanh(),
    "cat": lambda x: torch.cat([x, x.tanh(), x * 2], dim=1),
    "stack": lambda x: torch.stack([x, x.tanh()], dim=-1),
    "split": lambda x: x.split(4, dim=1)[0].sum(1) * x.split([1, 5], dim=1)[1].sum(1),
    "chunk and unbind": lambda x: x.chunk(2, dim=1)[0] @ torch.stack(x[:3].unbind(1)[:2], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
    "crop": lambda x: F.pad(x, (-1, -2)),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 0], [5, 1], [2, 2], [3, 0]])),
    "triangle": lambda x: x.triu(1) + x.tril(-1),
    # products
    "mm": lambda x: (x @ x.t()) @ x,
    "addmm": lambda x: torch.addmm(x[:, :4], x, x.t(), beta=0.5, alpha=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    check(Weighted(FUNCTIONS[name], FLOATS.shape), FLOATS)


def test_batched_product() -> None:
    check(Weighted(lambda x: x @ x.transpose(1, 2) @ x, SEQUENCE.shape), SEQUENCE)


CONVOLUTIONS: dict[str, nn.Module] = {
    "with bias": nn.Conv2d(4, 6, 3, padding=1),
    "strided": nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "stride that leaves a row": nn.Conv2d(4, 6, 2, stride=2),
    "dilated": nn.Conv2d(4, 6, 3, dilation=2, padding=2, bias=False),
    "pointwise": nn.Conv2d(4, 6, 1),
    "pointwise, strided": nn.Conv2d(4, 6, 1, stride=2),
    "grouped": nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "depthwise": nn.Conv2d(4, 8, 3, groups=4, padding=1, stride=2),
    "transposed": nn.ConvTranspose2d(4, 6, 2, stride=2),
    "transposed, padded": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed, grouped": nn.ConvTranspose2d(4, 6, 3, groups=2, padding=1),
    "max pool": nn.MaxPool2d(3, stride=2, padding=1),
    "average pool": nn.AvgPool2d(2),
    "average pool, overlapping": nn.AvgPool2d(3, stride=2, padding=1),
    "average of all": nn.AdaptiveAvgPool2d(1),
    "batch norm": nn.BatchNorm2d(4),
    "batch norm, plain": nn.BatchNorm2d(4, affine=False),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_image_module(name: str) -> None:
    check(nn.Sequential(Weighted(lambda x: x.tanh(), IMAGES.shape), CONVOLUTIONS[name]), IMAGES)


def test_one_dimensional_convolution() -> None:
    spec = InputSpec(shape=(2, 5, 12), dtype="float32", kind="normal")
    scale = Weighted(torch.tanh, spec.shape)
    check(nn.Sequential(scale, nn.Conv1d(5, 4, 3, stride=2, bias=False), nn.BatchNorm1d(4)), spec)


def test_batch_norm_far_from_zero() -> None:
    """Images whose mean is a hundred times their deviation, beside float64: what rounding x costs."""
    torch.manual_seed(0)
    module = nn.Sequential(Weighted(lambda x: torch.tanh(x) + 60, IMAGES.shape), nn.BatchNorm2d(4))
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(IMAGES.shape)
    # compared with autograd below
    model = export_training_graph(module, (x,), ramp, check=False).model
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found = run(model, {k: v.detach().numpy() for k, v in held.items()} | {"input": x.numpy()})

    def gradients(own: nn.Module, images: Tensor) -> dict[str, Tensor]:
        ramp(own(images)).backward()
        return {name: p.grad.double() for name, p in own.named_parameters() if p.grad is not None}

    for name, exact in gradients(copy.deepcopy(module).double(), x.double()).items():
        apart = (torch.from_numpy(found[f"{name}_grad"]) - exact).norm() / exact.norm()
        assert apart < 1e-3, name  # PyTorch in single precision: 1e-4


def test_relu_passes_the_gradient_of_the_smallest_normal_number() -> None:
    x = torch.tensor([-1.0, -0.0, 0.0, 1.2e-38, 1e-30, 1.0, 3e38, torch.inf])
    module = Weighted(F.relu, tuple(x.shape))
    graph = export_training_graph(module, (x,), torch.sum)
    given = {graph.inputs[0]: np.ones(8, np.float32), "weight": x.numpy()}
    passed = run(graph.model, given)["weight_grad"]
    assert passed.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine: bool) -> None:
    scale = Weighted(torch.tanh, SEQUENCE.shape)
    check(nn.Sequential(scale, nn.LayerNorm([5, 6], elementwise_affine=affine)), SEQUENCE)


@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_with_repeated_rows(padding: int | None) -> None:
    check(nn.Embedding(5, 6, padding_idx=padding), INDICES)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mean_square_error(reduction: str) -> None:
    target = InputSpec(shape=(4, 6), dtype="float32", kind="normal")
    check(
        Weighted(torch.tanh, FLOATS.shape),
        FLOATS,
        target,
        loss=lambda y, target: F.mse_loss(y, target, reduction=reduction).sum(),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_cross_entropy(reduction: str, ignored: int) -> None:
    target = InputSpec(shape=(4,), dtype="int64", kind="randint", high=6)
    check(
        Weighted(torch.tanh, FLOATS.shape),
        FLOATS,
        target,
        loss=lambda y, target: F.cross_entropy(
            y, target, reduction=reduction, ignore_index=ignored
        ),
    )


def test_cross_entropy_of_every_pixel() -> None:
    target = InputSpec(shape=(2, 9, 9), dtype="int64", kind="randint", high=4)
    check(Weighted(torch.tanh, IMAGES.shape), IMAGES, target, loss=F.cross_entropy)


class Masked(nn.Module):
    """Fused attention with a mask: boolean (True is seen) or added to the scores."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.linear = nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.linear(x).unsqueeze(1).chunk(3, dim=3)
        assert isinstance(self.mask, Tensor)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, scale=0.3)


def test_fused_attention_with_an_added_mask() -> None:
    check(Masked(torch.zeros(5, 5)), SEQUENCE)
