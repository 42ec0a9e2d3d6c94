"""Gradients of convolutions in each form that they are written in, beside autograd in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
import torch
from onnx import ModelProto
from torch import nn

from models.check import run, verify_structure
from planner.export.training import export_training_graph
from tests.export.test_rules import Weighted, ramp

Loss = Callable[[torch.Tensor], torch.Tensor]

TOLERANCE = 2e-6
"""Of a gradient: the norm of the difference over its norm; a few units of rounding."""

SHAPES = {1: (3, 8, 21), 2: (3, 8, 11, 12), 3: (2, 8, 6, 7, 5)}
"""An image, by its number of axes."""

BY_PLACES: dict[str, nn.Module] = {
    "plain": nn.Conv2d(8, 6, 3),
    "padded": nn.Conv2d(8, 6, 3, padding=1),
    "padded beyond the kernel": nn.Conv2d(8, 6, 3, padding=4),
    "padded along one axis": nn.Conv2d(8, 6, (3, 2), padding=(0, 1)),
    "even": nn.Conv2d(8, 6, 2, padding=1),
    "strided": nn.Conv2d(8, 6, 3, stride=2, padding=1),
    "strided, rows lost": nn.Conv2d(8, 6, 3, stride=4),
    "strided along one axis": nn.Conv2d(8, 6, 3, stride=(1, 3)),
    "stride beyond the kernel": nn.Conv2d(8, 6, 2, stride=3),
    "dilated": nn.Conv2d(8, 6, 3, dilation=2, padding=2),
    "dilated and strided": nn.Conv2d(8, 6, 3, dilation=(2, 3), stride=2, padding=3),
    "patches": nn.Conv2d(8, 6, 2, stride=2),
    "patches, rows lost": nn.Conv2d(8, 6, 3, stride=3),
    "to many filters": nn.Conv2d(8, 24, 3, padding=1),
    "one row": nn.Conv2d(8, 6, (1, 7), padding=(0, 3)),
    "pointwise": nn.Conv2d(8, 6, 1),
    "pointwise, to many filters": nn.Conv2d(8, 24, 1),
    "pointwise, strided": nn.Conv2d(8, 6, 1, stride=2),
    "pointwise, padded": nn.Conv2d(8, 6, 1, padding=1),
    "pointwise, strided and padded": nn.Conv2d(8, 6, 1, stride=3, padding=1),
    "in one dimension": nn.Conv1d(8, 6, 5, padding=2),
    "in one dimension, strided": nn.Conv1d(8, 6, 4, stride=3, padding=1),
    "in three dimensions": nn.Conv3d(8, 6, 2, padding=1),
    "in three dimensions, pointwise": nn.Conv3d(8, 6, 1, stride=2),
    "transposed": nn.ConvTranspose2d(8, 8, 2, stride=2),
    "transposed, padded": nn.ConvTranspose2d(8, 9, 3, stride=2, padding=1, output_padding=1),
    "transposed, pointwise": nn.ConvTranspose2d(8, 6, 1),
    "transposed, in one dimension": nn.ConvTranspose1d(8, 8, 3, dilation=2),
}
"""A product for each place in the kernel."""

AS_CONVOLUTION: dict[str, nn.Module] = {
    "many places": nn.Conv2d(8, 6, 5, padding=2),
    "many places, strided, rows lost": nn.Conv2d(8, 6, 4, stride=3, padding=1),
    "many places, dilated": nn.Conv1d(8, 6, 10, dilation=2, padding=9),
    "many places, in three dimensions": nn.Conv3d(8, 6, 3, padding=1),
    "grouped": nn.Conv2d(8, 6, 3, groups=2, padding=1),
    "grouped, strided and dilated": nn.Conv2d(8, 12, 3, groups=4, stride=2, dilation=2, padding=2),
    "grouped, pointwise": nn.Conv2d(8, 6, 1, groups=2),
    "grouped, more filters": nn.Conv2d(8, 16, 3, groups=8),
    "depthwise": nn.Conv2d(8, 8, 3, groups=8, padding=1),
    "depthwise, strided, rows lost": nn.Conv2d(8, 8, 3, groups=8, stride=2),
    "depthwise, of seven": nn.Conv2d(8, 8, 7, groups=8, padding=3),
    "depthwise, in one dimension": nn.Conv1d(8, 8, 4, groups=8, padding=3),
    "depthwise, in three dimensions": nn.Conv3d(8, 8, 3, groups=8, padding=1),
    "transposed to few channels": nn.ConvTranspose2d(8, 4, 2, stride=2),
    "transposed, grouped": nn.ConvTranspose2d(8, 6, 3, groups=2, padding=1),
}
"""A convolution with an image as its kernel."""


def example(module: nn.Module, batch: int | None = None) -> tuple[nn.Module, torch.Tensor]:
    """The module behind one with a gradient, so that its own input has one, too; and an image."""
    torch.manual_seed(0)
    weight = next(iter(module.parameters()))
    shape = SHAPES[weight.dim() - 2]
    own = nn.Sequential(Weighted(torch.tanh, shape[1:]), copy.deepcopy(module))
    nn.init.normal_(own[0].weight)
    return own, torch.randn(batch or shape[0], *shape[1:])


def squares(result: torch.Tensor) -> torch.Tensor:
    """A loss that asks for no size."""
    return result.square().sum()


def check_gradients(
    model: ModelProto, module: nn.Module, x: torch.Tensor, loss: Loss = ramp
) -> None:
    """The model's gradients are autograd's in double precision."""
    held = dict(module.named_parameters())
    given = next(item.name for item in model.graph.input if item.name not in held)
    feeds = {name: value.detach().numpy() for name, value in held.items()} | {given: x.numpy()}
    found = run(model, feeds)
    exact = copy.deepcopy(module).double()
    loss(exact(x.double())).backward()
    for name, parameter in exact.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.grad.numpy()
        apart = np.linalg.norm(found[f"{name}_grad"] - wanted) / np.linalg.norm(wanted)
        assert apart < TOLERANCE, f"{name}: {apart:.1e}"


def is_by_places(model: ModelProto) -> bool:
    """Whether the kernel's gradient is made of products."""
    made = {n.op_type for n in model.graph.node if "product" in n.name.split(".")}
    assert len(made) == 1
    return made == {"Gemm"}


@pytest.mark.parametrize("name", [*BY_PLACES, *AS_CONVOLUTION])
def test_gradients(name: str) -> None:
    module, x = example({**BY_PLACES, **AS_CONVOLUTION}[name])
    model = export_training_graph(module, (x,), ramp).model
    verify_structure(model)
    check_gradients(model, module, x)
    assert is_by_places(model) == (name in BY_PLACES)


@pytest.mark.parametrize(
    "name", ["padded", "strided, rows lost", "pointwise, strided", "in three dimensions"]
)
def test_few_channels_have_a_convolution_unless_it_is_pointwise(name: str) -> None:
    given = BY_PLACES[name]
    assert isinstance(given, nn.Conv2d | nn.Conv3d)
    options = {"kernel_size": given.kernel_size, "stride": given.stride, "padding": given.padding}
    module = type(given)(4, 6, **options)
    torch.manual_seed(0)
    shape = (2, 4, *SHAPES[len(given.kernel_size)][2:])
    behind = nn.Sequential(Weighted(torch.tanh, shape[1:]), module)
    nn.init.normal_(behind[0].weight)
    x = torch.randn(shape)
    model = export_training_graph(behind, (x,), ramp).model
    check_gradients(model, behind, x)
    assert is_by_places(model) == ("pointwise" in name)


@pytest.mark.parametrize(
    "name",
    [
        "padded", "strided, rows lost", "dilated and strided", "pointwise, strided", "transposed",
        "in one dimension", "in three dimensions", "many places", "grouped", "depthwise",
    ],
)  # fmt: skip
def test_the_batch_may_be_open(name: str) -> None:
    module, x = example({**BY_PLACES, **AS_CONVOLUTION}[name])
    model = export_training_graph(module, (x,), squares, dynamic={"input": {0: "batch"}}).model
    for batch in (1, 5):
        other = example({**BY_PLACES, **AS_CONVOLUTION}[name], batch)
        check_gradients(model, *other, squares)


@pytest.mark.parametrize(
    ("name", "op_type"),
    [
        ("padded", "Conv"),
        ("dilated", "Conv"),
        ("pointwise", "Conv"),
        ("pointwise, to many filters", "Conv"),
        ("grouped", "Conv"),
        ("depthwise", "Conv"),
        ("in three dimensions", "Conv"),
        ("padded beyond the kernel", "ConvTranspose"),  # a convolution would have negative padding
        ("pointwise, padded", "ConvTranspose"),
        ("to many filters", "ConvTranspose"),
        ("strided", "ConvTranspose"),
        ("patches", "ConvTranspose"),
    ],
)
def test_an_image_s_gradient_is_a_convolution_where_it_can_be(name: str, op_type: str) -> None:
    module, x = example({**BY_PLACES, **AS_CONVOLUTION}[name])
    model = export_training_graph(module, (x,), ramp).model
    assert [n.op_type for n in model.graph.node if n.name == "convolution_backward"] == [op_type]


@pytest.mark.parametrize("name", [*BY_PLACES])
def test_a_first_layer_has_no_gradient_of_its_image(name: str) -> None:
    module, x = example(BY_PLACES[name])
    model = export_training_graph(module[1], (x,), ramp).model
    check_gradients(model, module[1], x)
