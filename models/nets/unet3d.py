"""3D U-Net for volumes: Çiçek et al. (2016), with the batch normalization and widths of that paper.

Each level doubles its channels in its second convolution, before the pooling.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DoubleConv3d(nn.Sequential):
    """Twice: 3x3x3 convolution, batch normalization, activation."""

    def __init__(self, channels: int, middle: int, out: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv3d(channels, middle, 3, padding=1, bias=False),
            nn.BatchNorm3d(middle),
            activation(),
            nn.Conv3d(middle, out, 3, padding=1, bias=False),
            nn.BatchNorm3d(out),
            activation(),
        )


class UNet3d(nn.Module):
    """`levels` halvings, a middle, as many doublings; a skip joins equal sizes."""

    def __init__(
        self,
        *,
        channels: int = 4,
        width: int = 32,
        levels: int = 3,
        classes: int = 3,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        wide = [2 * width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            DoubleConv3d(before, out // 2, out, activation)
            for before, out in zip([channels, *wide], wide[:-1], strict=False)
        )
        self.pool = nn.MaxPool3d(2)
        self.middle = DoubleConv3d(wide[-2], wide[-1] // 2, wide[-1], activation)
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(2 * out, 2 * out, 2, stride=2) for out in reversed(wide[:-1])
        )
        self.merge = nn.ModuleList(
            DoubleConv3d(3 * out, out, out, activation) for out in reversed(wide[:-1])
        )
        self.head = nn.Conv3d(wide[0], classes, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        """[batch, channels, d, h, w] -> logits [batch, classes, d, h, w]; multiples of 2**levels."""
        x, skips = volumes, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for grow, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), grow(x)], dim=1))
        return self.head(x)
