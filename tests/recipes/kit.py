"""What a recipe is, and small parts that many are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from planner.export.arguments import Given
from planner.export.trace.step import Loss


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train, on a network of a few layers."""

    module: nn.Module
    inputs: Given
    loss: Loss | None = None
    """None where the module returns the loss."""
    targets: Given = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `export_training_graph`: `optimizer`, `autocast`, ..."""


Make = Callable[[], Recipe]
RECIPES: dict[str, Make] = {}
"""All of them, by group and name: `losses.focal`."""


def recipe(make: Make) -> Make:
    """Register a function that takes nothing under its module's and its own name."""
    RECIPES[f"{make.__module__.rpartition('.')[2]}.{make.__name__}"] = make
    return make


def rows(*shape: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape)


def classes(count: int, *shape: int) -> Tensor:
    """Classes, int64."""
    return torch.randint(0, count, shape)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with GELUs between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def cnn(*, norm: bool = True) -> nn.Sequential:
    """8 channels of 8 x 8, then 5 classes."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8) if norm else nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


class Encoder(nn.Module):
    """Token embeddings, one Transformer layer, logits of the vocabulary.

    Args:
        is_causal: nothing looks ahead.
    """

    def __init__(
        self, words: int = 40, width: int = 16, *, is_causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 32, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, words)
        self.is_causal = is_causal

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.hidden(self.embed(ids), padding))

    def hidden(self, embedded: Tensor, padding: Tensor | None = None) -> Tensor:
        """Behind the layer."""
        size = embedded.shape[1]
        ahead = torch.ones(size, size, dtype=torch.bool).triu(1) if self.is_causal else None
        return self.layer(embedded, src_mask=ahead, src_key_padding_mask=padding)
