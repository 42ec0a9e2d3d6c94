"""Densely connected networks: Huang et al. (2016).

Every layer reads the concatenation of all earlier ones in its block, so a plain execution
keeps a quadratic number of channels alive: the classic case for recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """A layer that adds `growth` channels: norm, activation, 1x1 to `4 growth`, norm, activation, 3x3."""

    def __init__(self, channels: int, growth: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels),
            activation(),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            activation(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, h, w] -> [batch, channels + growth, h, w]."""
        return torch.cat([x, self.body(x)], dim=1)


class Transition(nn.Sequential):
    """A layer that halves the channels with a 1x1 convolution, and the image with an average."""

    def __init__(self, channels: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.BatchNorm2d(channels),
            activation(),
            nn.Conv2d(channels, channels // 2, 1, bias=False),
            nn.AvgPool2d(2),
        )


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions between them, head. Defaults: DenseNet-121."""

    def __init__(
        self,
        *,
        growth: int = 32,
        depths: Sequence[int] = (6, 12, 24, 16),
        classes: int = 1000,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            activation(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        body: list[nn.Module] = []
        for index, depth in enumerate(depths):
            if index > 0:
                body.append(Transition(channels, activation))
                channels //= 2
            for _ in range(depth):
                body.append(DenseLayer(channels, growth, activation))
                channels += growth
        self.body = nn.Sequential(*body)
        self.norm = nn.Sequential(nn.BatchNorm2d(channels), activation())
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, 3, h, w] -> logits [batch, classes]."""
        return self.head(self.norm(self.body(self.stem(images))).mean((2, 3)))
