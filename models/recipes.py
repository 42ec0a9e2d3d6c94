"""The networks that can be built by name: module, example inputs and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.nets import (
    GPT,
    MLP,
    BERTClassifier,
    DenseNet,
    Llama,
    Translator,
    UNet,
    UNet3d,
    ViT,
    WideResNet,
    resnet18,
    resnet50,
)
from planner.errors import UsageError
from planner.export.inputs import InputSpec
from planner.export.trace.step import Loss


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes that can be chosen; each network uses some of them."""

    batch: int = 1
    seq: int = 0
    image_size: int = 0
    width: int = 0
    layers: int = 0
    heads: int = 0
    vocabulary: int = 0
    classes: int = 0
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step of a network."""

    module: nn.Module
    inputs: Mapping[str, InputSpec]
    """The module's input, then the target of the loss."""
    loss: Loss


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe for a step of any size; the default size is the published network's."""

    summary: str
    make: Callable[[Size], Step]
    default: Size
    free: frozenset[str] = frozenset({"batch", "width", "classes"})
    """The fields of `Size` that this network uses."""

    def sized(self, **choices: Any) -> Size:
        """Return the default size with some fields replaced; None keeps the default."""
        made = {field: value for field, value in choices.items() if value is not None}
        useless = made.keys() - self.free
        if useless:
            raise UsageError(f"this network has no {', '.join(sorted(useless))} to choose")
        return replace(self.default, **made)

    def step(self, size: Size) -> Step:
        """Build the step, with its module on the meta device: shapes without memory."""
        with torch.device("meta"):
            return self.make(size)


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all positions: [batch, seq, vocabulary] and [batch, seq]."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _labels(count: int, *shape: int) -> InputSpec:
    return InputSpec(shape=shape, dtype="int64", kind="randint", high=count)


def _classifier(module: nn.Module, size: Size, name: str, *shape: int) -> Step:
    inputs = {
        name: InputSpec(shape=(size.batch, *shape), dtype="float32", kind="normal"),
        "labels": _labels(size.classes, size.batch),
    }
    return Step(module=module, inputs=inputs, loss=F.cross_entropy)


def _mlp(size: Size) -> Step:
    module = MLP(inputs=64, hidden=size.width, classes=size.classes, layers=size.layers)
    return _classifier(module, size, "features", 64)


def _image_net(make: Callable[..., nn.Module]) -> Callable[[Size], Step]:
    def step(size: Size) -> Step:
        module = make(width=size.width, classes=size.classes)
        return _classifier(module, size, "images", 3, size.image_size, size.image_size)

    return step


def _densenet(size: Size) -> Step:
    module = DenseNet(growth=size.width, classes=size.classes)
    return _classifier(module, size, "images", 3, size.image_size, size.image_size)


def _unet(size: Size) -> Step:
    space = (size.image_size, size.image_size)
    inputs = {
        "images": InputSpec(shape=(size.batch, 3, *space), dtype="float32", kind="normal"),
        "labels": _labels(size.classes, size.batch, *space),
    }
    module = UNet(width=size.width, levels=size.layers, classes=size.classes)
    return Step(module=module, inputs=inputs, loss=F.cross_entropy)


def _wide_resnet(size: Size) -> Step:
    module = WideResNet(depth=size.layers, widen=size.width, classes=size.classes)
    return _classifier(module, size, "images", 3, size.image_size, size.image_size)


def _unet3d(size: Size) -> Step:
    space = (size.image_size,) * 3
    inputs = {
        "volumes": InputSpec(shape=(size.batch, 4, *space), dtype="float32", kind="normal"),
        "labels": _labels(size.classes, size.batch, *space),
    }
    module = UNet3d(width=size.width, levels=size.layers, classes=size.classes)
    return Step(module=module, inputs=inputs, loss=F.cross_entropy)


def _translator(size: Size) -> Step:
    module = Translator(
        vocabulary=size.vocabulary,
        positions=size.seq,
        width=size.width,
        heads=size.heads,
        layers=size.layers,
        dropout=size.dropout,
    )
    inputs = {
        "tokens": _labels(size.vocabulary, size.batch, 2 * size.seq),
        "targets": _labels(size.vocabulary, size.batch, size.seq),
    }
    return Step(module=module, inputs=inputs, loss=language_loss)


def _gpt(size: Size) -> Step:
    module = GPT(
        vocabulary=size.vocabulary,
        positions=size.seq,
        width=size.width,
        heads=size.heads,
        layers=size.layers,
        dropout=size.dropout,
    )
    inputs = {
        name: _labels(size.vocabulary, size.batch, size.seq) for name in ("tokens", "targets")
    }
    return Step(module=module, inputs=inputs, loss=language_loss)


def _llama(size: Size) -> Step:
    module = Llama(
        vocabulary=size.vocabulary, width=size.width, heads=size.heads, layers=size.layers
    )
    inputs = {
        name: _labels(size.vocabulary, size.batch, size.seq) for name in ("tokens", "targets")
    }
    return Step(module=module, inputs=inputs, loss=language_loss)


def _bert(size: Size) -> Step:
    module = BERTClassifier(
        vocabulary=size.vocabulary,
        positions=size.seq,
        width=size.width,
        heads=size.heads,
        layers=size.layers,
        classes=size.classes,
        dropout=size.dropout,
    )
    inputs = {
        "tokens": _labels(size.vocabulary, size.batch, size.seq),
        "labels": _labels(size.classes, size.batch),
    }
    return Step(module=module, inputs=inputs, loss=F.cross_entropy)


def _vit(size: Size) -> Step:
    module = ViT(
        image_size=size.image_size,
        width=size.width,
        heads=size.heads,
        layers=size.layers,
        classes=size.classes,
    )
    return _classifier(module, size, "images", 3, size.image_size, size.image_size)


_IMAGES = frozenset({"batch", "width", "classes", "image_size"})
_TOKENS = frozenset({"batch", "width", "seq", "layers", "heads", "vocabulary", "dropout"})

RECIPES: dict[str, Recipe] = {
    "mlp": Recipe(
        summary="multi-layer perceptron",
        make=_mlp,
        default=Size(batch=32, width=256, layers=4, classes=10),
        free=frozenset({"batch", "width", "classes", "layers"}),
    ),
    "resnet18": Recipe(
        summary="ResNet-18, training-mode batch normalization",
        make=_image_net(resnet18),
        default=Size(batch=32, image_size=224, width=64, classes=1000),
        free=_IMAGES,
    ),
    "resnet50": Recipe(
        summary="ResNet-50, training-mode batch normalization",
        make=_image_net(resnet50),
        default=Size(batch=32, image_size=224, width=64, classes=1000),
        free=_IMAGES,
    ),
    "densenet121": Recipe(
        summary="DenseNet-121; the width is its growth",
        make=_densenet,
        default=Size(batch=8, image_size=224, width=32, classes=1000),
        free=_IMAGES,
    ),
    "wrn28-2": Recipe(
        summary="WideResNet-28-2 for CIFAR-10; the layers are its depth, the width its widening",
        make=_wide_resnet,
        default=Size(batch=100, image_size=32, width=2, layers=28, classes=10),
        free=_IMAGES | {"layers"},
    ),
    "unet3d": Recipe(
        summary="3D U-Net for segmentation of volumes; the layers are its levels",
        make=_unet3d,
        default=Size(batch=1, image_size=128, width=32, layers=3, classes=3),
        free=_IMAGES | {"layers"},
    ),
    "translator": Recipe(
        summary="Transformer for IWSLT'14, encoder and decoder",
        make=_translator,
        default=Size(batch=128, seq=32, width=512, layers=6, heads=4, vocabulary=10000),
        free=_TOKENS,
    ),
    "unet": Recipe(
        summary="U-Net for segmentation; the layers are its levels",
        make=_unet,
        default=Size(batch=4, image_size=256, width=64, layers=4, classes=2),
        free=_IMAGES | {"layers"},
    ),
    "gpt2": Recipe(
        summary="GPT-2 small, output tied to the token embedding",
        make=_gpt,
        default=Size(batch=4, seq=512, width=768, layers=12, heads=12, vocabulary=50257),
        free=_TOKENS,
    ),
    "gpt2-medium": Recipe(
        summary="GPT-2 medium, output tied to the token embedding",
        make=_gpt,
        default=Size(batch=8, seq=1024, width=1024, layers=24, heads=16, vocabulary=50257),
        free=_TOKENS,
    ),
    "llama": Recipe(
        summary="Llama-like decoder of about 90 M parameters",
        make=_llama,
        default=Size(batch=2, seq=256, width=640, layers=16, heads=10, vocabulary=8192),
        free=_TOKENS - {"dropout"},
    ),
    "bert": Recipe(
        summary="BERT-base with a classification head",
        make=_bert,
        default=Size(batch=8, seq=128, width=768, layers=12, heads=12, vocabulary=30522, classes=2),
        free=_TOKENS | {"classes"},
    ),
    "vit": Recipe(
        summary="ViT-S/16, a mean over patches in place of the class token",
        make=_vit,
        default=Size(batch=32, image_size=224, width=384, layers=12, heads=6, classes=1000),
        free=_IMAGES | {"layers", "heads"},
    ),
}
"""The recipes, by their names on the command line."""
