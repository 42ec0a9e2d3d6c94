"""Residual networks for images: He et al., "Deep Residual Learning" (2015).

The block's stride sits on its 3x3 convolution, as in the widespread "v1.5" variant.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    """Convolution without bias, then batch normalization; keeps the size at stride 1."""

    def __init__(self, channels: int, out: int, *, kernel: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(out),
        )


class ResidualBlock(nn.Module):
    """`activation(body(x) + shortcut(x))`; the shortcut projects where the shape changes."""

    expansion: int

    def __init__(
        self, channels: int, width: int, stride: int, body: nn.Module, activation: nn.Module
    ) -> None:
        super().__init__()
        out = width * self.expansion
        self.body = body
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels == out
            else ConvNorm(channels, out, kernel=1, stride=stride)
        )
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, h, w] -> [batch, width * expansion, h / stride, w / stride]."""
        return self.activation(self.body(x) + self.shortcut(x))


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions (ResNet-18 and 34)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, activation: nn.Module) -> None:
        body = nn.Sequential(
            ConvNorm(channels, width, kernel=3, stride=stride),
            activation,
            ConvNorm(width, width, kernel=3),
        )
        super().__init__(channels, width, stride, body, activation)


class Bottleneck(ResidualBlock):
    """1x1, 3x3, 1x1 convolutions around a narrow middle (ResNet-50 and deeper)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, activation: nn.Module) -> None:
        body = nn.Sequential(
            ConvNorm(channels, width, kernel=1),
            activation,
            ConvNorm(width, width, kernel=3, stride=stride),
            activation,
            ConvNorm(width, width * self.expansion, kernel=1),
        )
        super().__init__(channels, width, stride, body, activation)


class ResNet(nn.Module):
    """Stem, four stages that each halve the image (but the first) and double the width, head."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        width: int = 64,
        classes: int = 1000,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        act = activation()
        self.stem = nn.Sequential(
            ConvNorm(3, width, kernel=7, stride=2), act, nn.MaxPool2d(3, stride=2, padding=1)
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, width << stage, stride, act))
                channels = (width << stage) * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, 3, h, w] -> logits [batch, classes]."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def resnet18(
    *, width: int = 64, classes: int = 1000, activation: type[nn.Module] = nn.ReLU
) -> ResNet:
    """11.7 million parameters at the default width."""
    return ResNet(BasicBlock, (2, 2, 2, 2), width=width, classes=classes, activation=activation)


def resnet50(
    *, width: int = 64, classes: int = 1000, activation: type[nn.Module] = nn.ReLU
) -> ResNet:
    """25.6 million parameters at the default width."""
    return ResNet(Bottleneck, (3, 4, 6, 3), width=width, classes=classes, activation=activation)
