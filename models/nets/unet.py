"""U-Net for segmentation: Ronneberger et al. (2015), with padding and batch normalization.

The skip from the first level to the last spans the whole network: its tensor is the largest
and the longest-lived of the step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """Twice: 3x3 convolution, batch normalization, activation."""

    def __init__(self, channels: int, out: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            activation(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            activation(),
        )


class UNet(nn.Module):
    """`levels` halvings, a middle, as many doublings; a skip joins equal sizes."""

    def __init__(
        self,
        *,
        width: int = 64,
        levels: int = 4,
        classes: int = 2,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            DoubleConv(narrow, wide, activation)
            for narrow, wide in zip([3, *widths], widths[:-1], strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.middle = DoubleConv(widths[-2], widths[-1], activation)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * wide, wide, 2, stride=2) for wide in reversed(widths[:-1])
        )
        self.merge = nn.ModuleList(
            DoubleConv(2 * wide, wide, activation) for wide in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, 3, h, w] -> logits [batch, classes, h, w]; h, w multiples of 2**levels."""
        x, skips = images, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for grow, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), grow(x)], dim=1))
        return self.head(x)
