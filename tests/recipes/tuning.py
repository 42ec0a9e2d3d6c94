"""A few trained tensors in a network that is kept."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.nn.utils import parametrize

from tests.recipes.kit import Encoder, Recipe, classes, cnn, mlp, recipe, rows


def _trained(module: nn.Module) -> Recipe:
    """The parameters that require a gradient, with AdamW; 5 classes of 128 rows."""
    wanted = [p for p in module.parameters() if p.requires_grad]
    return Recipe(
        module=module,
        inputs=rows(128, 6),
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options={"optimizer": optim.AdamW(wanted, lr=1e-3)},
    )


def _words(module: nn.Module) -> Recipe:
    """The same for a network over tokens."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    wanted = [p for p in module.parameters() if p.requires_grad]
    return Recipe(
        module=module,
        inputs=classes(40, 4, 12),
        loss=loss,
        targets=classes(40, 4, 12),
        options={"optimizer": optim.AdamW(wanted, lr=1e-3)},
    )


class _Lora(nn.Module):
    """A kept layer, and a trained product of two thin matrices beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(rank))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.dropout(x) @ self.a.T @ self.b.T * 2.0


@recipe
def lora() -> Recipe:
    net = mlp(6, 16, 16, 5)
    return _trained(nn.Sequential(_Lora(net[0]), net[1], _Lora(net[2]), net[3], _Lora(net[4])))


@recipe
def lora_by_parametrization() -> Recipe:
    class Added(nn.Module):
        def __init__(self, rows: int, columns: int) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(rows_of(2, columns)), nn.Parameter(torch.zeros(rows, 2))

        def forward(self, weight: Tensor) -> Tensor:
            return weight + self.b @ self.a

    def rows_of(*shape: int) -> Tensor:
        return torch.randn(*shape) * 0.1

    net = mlp(6, 16, 5).requires_grad_(False)
    for layer in (net[0], net[2]):
        parametrize.register_parametrization(layer, "weight", Added(*layer.weight.shape))
    return _trained(net)


@recipe
def dora() -> Recipe:
    """The length of each row trained beside its direction."""

    class Dora(_Lora):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__(layer)
            self.m = nn.Parameter(layer.weight.detach().norm(dim=1))

        def forward(self, x: Tensor) -> Tensor:
            weight = self.layer.weight + self.b @ self.a
            scale = self.m / weight.norm(dim=1).detach()
            return F.linear(x, weight * scale[:, None], self.layer.bias)

    net = mlp(6, 16, 5)
    return _trained(nn.Sequential(Dora(net[0]), net[1], Dora(net[2])))


@recipe
def frozen_backbone() -> Recipe:
    backbone = mlp(6, 16, 16).requires_grad_(False)
    return _trained(nn.Sequential(backbone, nn.GELU(), nn.Linear(16, 5)))


@recipe
def frozen_backbone_without_grad() -> Recipe:
    """`torch.no_grad` and `eval`, as for a linear probe; its batch norm keeps its statistics."""

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = cnn()[:-1].eval()
            self.head = nn.Linear(8, 5)

        def train(self, mode: bool = True) -> Probe:
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.backbone(x)
            return self.head(h)

    net = Probe()
    return Recipe(
        module=net,
        inputs=rows(8, 3, 8, 8),
        loss=F.cross_entropy,
        targets=classes(5, 8),
        options={"optimizer": optim.SGD(net.head.parameters(), lr=0.1)},
    )


@recipe
def frozen_backbone_in_inference_mode() -> Recipe:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = mlp(6, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                h = self.backbone(x)
            return self.head(h.clone())

    net = Probe()
    net.backbone.requires_grad_(False)
    return _trained(net)


@recipe
def last_layers_alone() -> Recipe:
    net = Encoder()
    for name, p in net.named_parameters():
        p.requires_grad = name.startswith(("layer.linear", "layer.norm2", "head"))
    return _words(net)


@recipe
def bit_fit() -> Recipe:
    net = Encoder()
    for name, p in net.named_parameters():
        p.requires_grad = name.endswith("bias")
    return _words(net)


@recipe
def norms_alone() -> Recipe:
    net = Encoder().requires_grad_(False)
    for part in net.modules():
        if isinstance(part, nn.LayerNorm):
            part.requires_grad_(True)
    return _words(net)


@recipe
def adapters() -> Recipe:
    class Adapted(nn.Module):
        def __init__(self, layer: nn.Module, width: int) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.adapter = mlp(width, 4, width)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return h + self.adapter(h)

    net = mlp(6, 16, 16, 5)
    return _trained(nn.Sequential(Adapted(net[0], 16), net[1], Adapted(net[2], 16), net[3], net[4]))


@recipe
def adapters_by_hooks() -> Recipe:
    """A forward hook adds what the adapter makes."""
    net = mlp(6, 16, 5).requires_grad_(False)
    net.adapter = mlp(16, 4, 16)
    adapter = net.adapter

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.adapter = nn.ModuleList([net[0], net[1], net[2]]), adapter
            self.layers[0].register_forward_hook(lambda m, args, out: out + self.adapter(out))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    return _trained(Hooked())


@recipe
def scaled_activations() -> Recipe:
    """(IA)3: a trained factor of each channel."""

    class Scaled(nn.Module):
        def __init__(self, layer: nn.Module, width: int) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.scale = nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    net = mlp(6, 16, 5)
    return _trained(nn.Sequential(Scaled(net[0], 16), net[1], Scaled(net[2], 5)))


@recipe
def prompt_tuning() -> Recipe:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Encoder(is_causal=True).requires_grad_(False)
            self.prompt = nn.Parameter(torch.randn(4, 16) * 0.02)

        def forward(self, ids: Tensor) -> Tensor:
            before = self.prompt.expand(len(ids), -1, -1)
            h = self.net.hidden(torch.cat([before, self.net.embed(ids)], 1))
            return self.net.head(h[:, 4:])

    return _words(Prompted())


@recipe
def prefix_tuning() -> Recipe:
    """Trained keys and values before those of the words."""

    class Prefixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(40, 16).requires_grad_(False)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 40)
            self.qkv.requires_grad_(False)
            self.keys, self.values = (nn.Parameter(torch.randn(3, 16)) for _ in range(2))

        def forward(self, ids: Tensor) -> Tensor:
            q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
            size = (len(ids), -1, -1)
            k = torch.cat([self.keys.expand(size), k], 1)
            v = torch.cat([self.values.expand(size), v], 1)
            heads = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (q, k, v))
            h = F.scaled_dot_product_attention(*heads)
            return self.out(h.transpose(1, 2).flatten(2))

    return _words(Prefixed())


@recipe
def tied_weights() -> Recipe:
    net = Encoder()
    net.head.weight = net.embed.weight
    return _words(net)


@recipe
def layers_shared() -> Recipe:
    """One layer, three times."""
    layer = nn.Linear(16, 16)
    return _trained(
        nn.Sequential(nn.Linear(6, 16), layer, nn.GELU(), layer, nn.GELU(), layer, nn.Linear(16, 5))
    )


@recipe
def tied_autoencoder() -> Recipe:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 6) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(F.linear(F.gelu(F.linear(x, self.weight)), self.weight.T), x)

    net = Tied()
    options: dict[str, Any] = {"optimizer": optim.Adam(net.parameters())}
    return Recipe(module=net, inputs=rows(128, 6), options=options)


@recipe
def masks_of_pruned_weights() -> Recipe:
    from torch.nn.utils import prune

    net = mlp(6, 16, 5)
    prune.l1_unstructured(net[0], "weight", 0.5)
    return _trained(net)
