"""Multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """`layers` linear maps, `inputs -> hidden -> ... -> classes`, with an activation between."""

    def __init__(
        self,
        *,
        inputs: int = 64,
        hidden: int = 256,
        classes: int = 10,
        layers: int = 4,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(nn.Linear(narrow, wide) for narrow, wide in pairwise(widths))
        self.activation = activation()

    def forward(self, features: Tensor) -> Tensor:
        """[batch, inputs] -> logits [batch, classes]."""
        *body, head = self.layers
        for layer in body:
            features = self.activation(layer(features))
        return head(features)
