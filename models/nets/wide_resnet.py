"""Wide residual networks for small images: Zagoruyko and Komodakis (2016), without dropout.

Normalization and activation come before each convolution. `depth` counts as the paper does: 6 n + 4
layers, in three groups of n blocks; the widths are 16, 32 and 64 times `widen`.
"""

from __future__ import annotations

from torch import Tensor, nn


class WideBlock(nn.Module):
    """Twice: batch normalization, activation, 3x3 convolution. Where the shape changes, the shortcut
    projects what the first activation made."""

    def __init__(self, channels: int, out: int, stride: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.projects = stride != 1 or channels != out
        if self.projects:
            self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, h, w] -> [batch, out, h / stride, w / stride]."""
        first = self.activation(self.norm1(x))
        second = self.activation(self.norm2(self.conv1(first)))
        return self.conv2(second) + (self.shortcut(first) if self.projects else x)


class WideResNet(nn.Module):
    """Stem, three groups, head. WideResNet-28-2 has 1.47 million parameters for ten classes."""

    def __init__(
        self,
        *,
        depth: int = 28,
        widen: int = 2,
        classes: int = 10,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        if (depth - 4) % 6:
            raise ValueError(f"the depth is 6 n + 4, not {depth}")
        act = activation()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        channels = 16
        for group in range(3):
            out = (16 << group) * widen
            for index in range((depth - 4) // 6):
                stride = 2 if group > 0 and index == 0 else 1
                blocks.append(WideBlock(channels, out, stride, act))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.activation = act
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, 3, h, w] -> logits [batch, classes]; 32x32 images are the paper's."""
        return self.head(self.activation(self.norm(self.blocks(self.stem(images)))).mean((2, 3)))
