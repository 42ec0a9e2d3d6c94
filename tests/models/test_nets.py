"""Every network's training graph against PyTorch: the loss, each gradient, each new buffer.

Sizes are small, the structure is the real one. Networks with smooth activations are held to
rounding; those with ReLU, where a pre-activation next to zero may flip, to a looser norm.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import nn

from models.build import build
from models.check import compare, distance, draw_rough, reference, run
from models.nets import (
    GPT,
    MLP,
    BERTClassifier,
    DenseNet,
    UNet,
    UNet3d,
    WideResNet,
    resnet50,
)
from models.nets.resnet import BasicBlock, Bottleneck, ResNet
from models.recipes import RECIPES, Step, language_loss
from planner.export.inputs import InputSpec

SMOOTH = 1e-4
ROUGH = 2e-2

SMALL = {
    "mlp": {"batch": 8, "width": 32},
    "resnet18": {"batch": 4, "width": 8, "image_size": 64, "classes": 10},
    "resnet50": {"batch": 4, "width": 4, "image_size": 96, "classes": 10},
    "densenet121": {"batch": 2, "width": 4, "image_size": 64, "classes": 10},
    "wrn28-2": {"batch": 2, "width": 1, "layers": 10, "image_size": 16},
    "unet3d": {"batch": 2, "width": 2, "layers": 2, "image_size": 8},
    "unet": {"batch": 2, "width": 4, "layers": 2, "image_size": 32},
    "gpt2": {"batch": 2, "seq": 16, "width": 32, "layers": 1, "heads": 2, "vocabulary": 100},
    "gpt2-medium": {"batch": 1, "seq": 8, "width": 16, "layers": 1, "heads": 1, "vocabulary": 9},
    "llama": {"batch": 2, "seq": 16, "width": 32, "layers": 1, "heads": 2, "vocabulary": 100},
    "bert": {"batch": 2, "seq": 16, "width": 32, "layers": 1, "heads": 2, "vocabulary": 100},
    "translator": {"batch": 2, "seq": 8, "width": 32, "layers": 1, "heads": 2, "vocabulary": 50},
    "vit": {"batch": 2, "image_size": 32, "width": 16, "layers": 1, "heads": 2, "classes": 10},
}


def images(batch: int, size: int, labels: tuple[int, ...] = ()) -> dict[str, InputSpec]:
    return {
        "images": InputSpec(shape=(batch, 3, size, size), dtype="float32", kind="normal"),
        "labels": InputSpec(shape=(batch, *labels), dtype="int64", kind="randint", high=2),
    }


def tokens(batch: int, seq: int, *, each: bool) -> dict[str, InputSpec]:
    spec = InputSpec(shape=(batch, seq), dtype="int64", kind="randint", high=100)
    label = InputSpec(shape=(batch,), dtype="int64", kind="randint", high=2)
    return {"tokens": spec, "targets": spec if each else label}


def tiny_mlp() -> Step:
    features = InputSpec(shape=(8, 64), dtype="float32", kind="normal")
    labels = InputSpec(shape=(8,), dtype="int64", kind="randint", high=10)
    module = MLP(hidden=32, activation=nn.Tanh)
    return Step(module=module, inputs={"x": features, "y": labels}, loss=F.cross_entropy)


def tiny_resnet() -> Step:
    module = ResNet(BasicBlock, (1, 1, 1, 1), width=8, classes=2, activation=nn.SiLU)
    return Step(module=module, inputs=images(4, 64), loss=F.cross_entropy)


def tiny_bottleneck() -> Step:
    module = ResNet(Bottleneck, (1, 1, 1, 1), width=8, classes=2, activation=nn.SiLU)
    return Step(module=module, inputs=images(4, 64), loss=F.cross_entropy)


def odd_image() -> Step:
    """Strides that do not divide the image leave rows that no kernel position reaches."""
    module = ResNet(BasicBlock, (1, 1, 1, 1), width=4, classes=2, activation=nn.SiLU)
    return Step(module=module, inputs=images(4, 75), loss=F.cross_entropy)


def tiny_densenet() -> Step:
    module = DenseNet(growth=4, depths=(2, 3, 2), classes=2, activation=nn.SiLU)
    return Step(module=module, inputs=images(4, 64), loss=F.cross_entropy)


def tiny_unet() -> Step:
    module = UNet(width=4, levels=2, activation=nn.SiLU)
    return Step(module=module, inputs=images(2, 32, (32, 32)), loss=F.cross_entropy)


def tiny_wide_resnet() -> Step:
    module = WideResNet(depth=10, widen=1, classes=2, activation=nn.SiLU)
    return Step(module=module, inputs=images(4, 16), loss=F.cross_entropy)


def tiny_unet3d() -> Step:
    module = UNet3d(channels=3, width=2, levels=2, classes=2, activation=nn.SiLU)
    inputs = {
        "volumes": InputSpec(shape=(2, 3, 8, 8, 8), dtype="float32", kind="normal"),
        "labels": InputSpec(shape=(2, 8, 8, 8), dtype="int64", kind="randint", high=2),
    }
    return Step(module=module, inputs=inputs, loss=F.cross_entropy)


def tiny_gpt(*, fused: bool = False) -> Step:
    module = GPT(vocabulary=100, positions=20, width=32, heads=2, layers=1, fused=fused)
    return Step(module=module, inputs=tokens(2, 16, each=True), loss=language_loss)


def tiny_bert() -> Step:
    """With fused attention."""
    module = BERTClassifier(vocabulary=100, positions=20, width=32, heads=2, layers=1, fused=True)
    return Step(module=module, inputs=tokens(2, 16, each=False), loss=F.cross_entropy)


SMOOTH_STEPS: dict[str, Callable[[], Step]] = {
    "mlp": tiny_mlp,
    "resnet, basic blocks": tiny_resnet,
    "resnet, bottlenecks": tiny_bottleneck,
    "resnet, odd image": odd_image,
    "densenet": tiny_densenet,
    "unet": tiny_unet,
    "wide resnet": tiny_wide_resnet,
    "unet, volumes": tiny_unet3d,
    "gpt, fused attention": lambda: tiny_gpt(fused=True),
    "bert, fused attention": tiny_bert,
}


SMOOTH_AS_REGISTERED = {"gpt2", "gpt2-medium", "llama", "bert", "vit"}
DEEP = {"densenet121", "resnet50"}
"""Networks whose blocks are compared in fewer layers, above."""


def on_meta(make: Callable[[], Step]) -> Step:
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize("name", SMOOTH_STEPS)
def test_smooth_network_agrees_to_rounding(name: str) -> None:
    comparison = compare(on_meta(SMOOTH_STEPS[name]))
    assert comparison.worst[1] < SMOOTH, comparison.worst


@pytest.mark.parametrize("name", ["resnet18", "unet", "gpt2"])
def test_symbolic_batch_takes_another_batch(name: str) -> None:
    recipe = RECIPES[name]
    traced, fed = (recipe.sized(**{**SMALL[name], "batch": batch}) for batch in (4, 6))
    graph, specs = build(recipe.step(traced), name, dynamic_batch=True)
    specs |= recipe.step(fed).inputs
    feeds = {key: draw_rough(key, spec) for key, spec in specs.items()}
    actual, expected = run(graph.model, feeds), reference(recipe.step(fed), feeds)
    assert actual.keys() == expected.keys()
    for key in expected:
        assert distance(actual[key], expected[key]) < ROUGH, key


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - DEEP))
def test_registered_network_agrees(name: str) -> None:
    recipe = RECIPES[name]
    comparison = compare(recipe.step(recipe.sized(**SMALL[name])))
    assert comparison.differences["loss"] < SMOOTH
    bound = SMOOTH if name in SMOOTH_AS_REGISTERED else ROUGH
    assert comparison.worst[1] < bound, comparison.worst


@pytest.mark.parametrize(
    ("make", "optimizer"), [(tiny_mlp, "sgd"), (tiny_mlp, "momentum"), (tiny_gpt, "adamw")]
)
def test_updates_agree_with_the_optimizers_of_pytorch(
    make: Callable[[], Step], optimizer: str
) -> None:
    comparison = compare(on_meta(make), optimizer=optimizer)
    assert any(output.endswith("_new") for output in comparison.differences)
    assert not any(output.endswith("_grad") for output in comparison.differences)
    assert comparison.worst[1] < 1e-5, comparison.worst


def test_published_sizes() -> None:
    """Parameter counts as published (our BERT has one segment and no pre-training head)."""

    def count(name: str) -> int:
        recipe = RECIPES[name]
        return sum(p.numel() for p in recipe.step(recipe.default).module.parameters())

    assert count("resnet18") == 11_689_512
    assert count("resnet50") == 25_557_032
    assert count("densenet121") == 7_978_856
    assert count("wrn28-2") == 1_467_610
    with torch.device("meta"):
        assert sum(p.numel() for p in GPT().parameters()) == 124_439_808
        assert sum(p.numel() for p in BERTClassifier().parameters()) == 109_482_240 - 2 * 768 + 1538


def test_every_network_has_a_small_size_here() -> None:
    assert SMALL.keys() == RECIPES.keys()
    assert resnet50(width=4).blocks[-1].expansion == 4
