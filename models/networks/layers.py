"""Networks as people write them by hand: pictures, sets, tables, series, adapters."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.catalogue import Make, Step, images
from models.networks.written import Formula, itself, labels, mlp

# -- pictures ----------------------------------------------------------------------------------


def _capsules(net: Any, x: Tensor) -> Tensor:
    """Capsules with three rounds of routing by agreement; returns the lengths of the last capsules."""

    def squashed(v: Tensor) -> Tensor:
        square = v.square().sum(-1, keepdim=True)
        return square / (1 + square) * v / (square + 1e-8).sqrt()

    first = squashed(net.front(x).flatten(2).transpose(1, 2).reshape(len(x), -1, 4))
    votes = torch.einsum("bic,iocd->biod", first, net.weight)
    agreed = torch.zeros(votes.shape[:3])
    for _ in range(3):
        v = squashed((agreed.softmax(2)[..., None] * votes).sum(1))
        agreed = agreed + (votes * v[:, None]).sum(-1)
    return v.norm(dim=-1)


def _margin(length: Tensor, y: Tensor) -> Tensor:
    hot = F.one_hot(y, length.shape[1])
    return (
        (hot * F.relu(0.9 - length) ** 2 + 0.5 * (1 - hot) * F.relu(length - 0.1) ** 2)
        .sum(1)
        .mean()
    )


def _gated(net: Any, x: Tensor) -> Tensor:
    """A U-Net with attention gates on its skips."""
    top = F.relu(net.down(x))
    low = F.relu(net.low(F.max_pool2d(top, 2)))
    wide = net.up(low)
    gate = torch.sigmoid(net.gate(F.relu(net.of_top(top) + net.of_wide(wide))))
    return net.out(torch.cat([gate * top, wide], 1))


class _Twice(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))))


def _nested(net: Any, x: Tensor) -> Tensor:
    """U-Net++, two levels, deep supervision."""
    x00 = net.x00(x)
    x10 = net.x10(F.max_pool2d(x00, 2))
    x20 = net.x20(F.max_pool2d(x10, 2))

    def up(t: Tensor) -> Tensor:
        return F.interpolate(t, scale_factor=2, mode="bilinear", align_corners=True)

    x01 = net.x01(torch.cat([x00, up(x10)], 1))
    x11 = net.x11(torch.cat([x10, up(x20)], 1))
    x02 = net.x02(torch.cat([x00, x01, up(x11)], 1))
    return (net.out(x01) + net.out(x02)) / 2


def _turned(net: Any, x: Tensor) -> Tensor:
    """A spatial transformer before a classifier."""
    theta = net.place(x).view(-1, 2, 3) + torch.eye(2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return net.body(F.grid_sample(x, grid, align_corners=False))


def _styled(net: Any, x: Tensor, content: Tensor, style: Tensor) -> Tensor:
    """Style transfer, by features of a frozen network and their Gram matrices."""

    def gram(t: Tensor) -> Tensor:
        flat = t.flatten(2)
        return flat @ flat.transpose(1, 2) / flat.shape[1] / flat.shape[2]

    made = net.body(x)
    a, b, c = net.eye(made), net.eye(content), net.eye(style)
    smooth = made.diff(dim=2).abs().mean() + made.diff(dim=3).abs().mean()
    return F.mse_loss(a, b.detach()) + 10 * F.mse_loss(gram(a), gram(c.detach())) + 0.1 * smooth


def _convolutional_lstm(net: Any, frames: Tensor) -> Tensor:
    h = c = torch.zeros(frames.shape[0], 8, *frames.shape[-2:])
    for step in range(frames.shape[1]):
        i, f, o, g = net.gates(torch.cat([frames[:, step], h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return net.out(h)


class _Patches(nn.Module):
    """A vision transformer from scratch: a class token, learned positions, a registered mask."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.zeros(1, 1, 32))
        self.place = nn.Parameter(torch.randn(1, 17, 32) / 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), parts], 1) + self.place
        return self.out(self.body(x)[:, 0])


_PICTURES: dict[str, Make] = {
    "capsules": lambda: Step(
        Formula(_capsules, front=nn.Conv2d(3, 8, 5, 3), weight=torch.randn(32, 5, 4, 6) / 4),
        images(16), _margin, labels(5, 2),
    ),
    "attention U-Net": lambda: Step(
        Formula(
            _gated, down=nn.Conv2d(3, 8, 3, padding=1), low=nn.Conv2d(8, 16, 3, padding=1),
            up=nn.ConvTranspose2d(16, 8, 2, 2), of_top=nn.Conv2d(8, 4, 1), of_wide=nn.Conv2d(8, 4, 1),
            gate=nn.Conv2d(4, 1, 1), out=nn.Conv2d(16, 2, 1),
        ),
        images(32), F.cross_entropy, labels(2, 2, 32, 32),
    ),
    "U-Net++": lambda: Step(
        Formula(
            _nested, x00=_Twice(3, 8), x10=_Twice(8, 16), x20=_Twice(16, 32), x01=_Twice(24, 8),
            x11=_Twice(48, 16), x02=_Twice(32, 8), out=nn.Conv2d(8, 2, 1),
        ),
        images(32), F.cross_entropy, labels(2, 2, 32, 32),
    ),
    "spatial transformer": lambda: Step(
        Formula(
            _turned,
            place=nn.Sequential(nn.Conv2d(3, 4, 7, 4), nn.ReLU(), nn.Flatten(), nn.Linear(196, 6)),
            body=nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1800, 10)),
        ),
        images(32), F.cross_entropy, labels(10, 2),
    ),
    "super-resolution, PixelShuffle": lambda: Step(
        nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
        ),
        images(16), F.mse_loss, images(32),
    ),
    "style transfer": lambda: Step(
        Formula(
            _styled,
            body=nn.Sequential(
                nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
                nn.Conv2d(8, 3, 3, padding=1),
            ),
            eye=nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)).requires_grad_(False),
        ),
        (images(16)[0], images(16)[0], images(16)[0]), itself, (),
    ),
    "convolutional LSTM": lambda: Step(
        Formula(_convolutional_lstm, gates=nn.Conv2d(11, 32, 3, padding=1), out=nn.Conv2d(8, 3, 1)),
        (torch.randn(2, 4, 3, 16, 16),), F.mse_loss, images(16),
    ),
    "ViT from scratch": lambda: Step(_Patches(), images(32), F.cross_entropy, labels(10, 2)),
}  # fmt: skip


# -- sets, tables, series ----------------------------------------------------------------------


def _set(net: Any, x: Tensor, there: Tensor) -> Tensor:
    """DeepSets with a mask: sums and maxima."""
    each = net.each(x) * there[..., None]
    most = each.masked_fill(there[..., None] == 0, float("-inf")).amax(1)
    return net.out(torch.cat([each.sum(1) / there.sum(1, keepdim=True), most], -1))


def _induced(net: Any, x: Tensor) -> Tensor:
    """A set transformer: induced points, then pooling by a seed."""
    points = net.points.expand(len(x), -1, -1)
    h = net.one(points, x, x, need_weights=False)[0]
    x = x + net.two(x, h, h, need_weights=False)[0]
    seed = net.seed.expand(len(x), -1, -1)
    return net.out(net.pool(seed, x, x, need_weights=False)[0].squeeze(1))


def _factored(net: Any, rows: Tensor) -> Tensor:
    """DeepFM: one table with offsets, pairwise terms by the square of a sum, a tower."""
    where = rows + torch.tensor([0, 10, 30, 60])
    v = net.table(where)
    pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
    return net.first(where).sum((1, 2)) + pairs + net.tower(v.flatten(1)).squeeze(1)


def _crossed(net: Any, x: Tensor) -> Tensor:
    first = x
    for layer in net.crosses:
        x = first * layer(x) + x
    return net.out(torch.cat([x, net.tower(first)], 1)).squeeze(1)


def _two_towers(net: Any, users: Tensor, items: Tensor) -> Tensor:
    """Sampled softmax within the batch."""
    u, v = net.user(net.users(users)), net.item(net.items(items))
    return F.cross_entropy(u @ v.T / 0.1, torch.arange(len(u)))


def _columns(net: Any, numbers: Tensor, kinds: Tensor) -> Tensor:
    """FT-Transformer: a token for each column."""
    of_numbers = numbers[..., None] * net.scale + net.shift
    last = net.first.expand(len(numbers), 1, -1)
    return net.out(net.body(torch.cat([of_numbers, net.kinds(kinds), last], 1))[:, -1])


def _basis(net: Any, x: Tensor) -> Tensor:
    """N-BEATS: each block subtracts its prediction of the input."""
    ahead = 0.0
    for block in net.blocks:
        back, front = block(x).split([16, 4], -1)
        x, ahead = x - back, ahead + front
    return ahead


def _decomposed(net: Any, x: Tensor) -> Tensor:
    """DLinear: a linear layer each for the moving average and the remainder."""
    wide = F.pad(x.transpose(1, 2), (2, 2), mode="replicate")
    trend = F.avg_pool1d(wide, 5, 1)
    return (net.season(x.transpose(1, 2) - trend) + net.trend(trend)).transpose(1, 2)


def _splines(net: Any, x: Tensor) -> Tensor:
    """Two Kolmogorov-Arnold layers: cubic B-splines of each input."""
    for base, weight in zip(net.bases, net.weights, strict=True):
        grid = torch.linspace(-2.2, 2.2, 12)
        b = ((x[..., None] >= grid[:-1]) & (x[..., None] < grid[1:])).float()
        for k in range(1, 4):
            left = (x[..., None] - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1])
            right = (grid[k + 1 :] - x[..., None]) / (grid[k + 1 :] - grid[1:-k])
            b = left * b[..., :-1] + right * b[..., 1:]
        x = base(F.silu(x)) + torch.einsum("bik,oik->bo", b, weight)
    return x


def _generated_weights(net: Any, x: Tensor, task: Tensor) -> Tensor:
    """A hypernetwork: generates each sample's layer from its task, by `torch.func`."""
    weight = net.maker(task).view(-1, 5, 8)
    return torch.func.vmap(lambda w, v: w @ v)(weight, x)


_TABLES: dict[str, Make] = {
    "DeepSets": lambda: Step(
        Formula(_set, each=mlp(3, 16, 16), out=mlp(32, 16, 5)),
        (torch.randn(4, 9, 3), (torch.arange(9) < torch.tensor([[9], [4], [6], [1]])).float()),
        F.cross_entropy, labels(5, 4),
    ),
    "set transformer": lambda: Step(
        Formula(
            _induced, points=torch.randn(1, 4, 16), seed=torch.randn(1, 1, 16), out=nn.Linear(16, 5),
            one=nn.MultiheadAttention(16, 2, batch_first=True),
            two=nn.MultiheadAttention(16, 2, batch_first=True),
            pool=nn.MultiheadAttention(16, 2, batch_first=True),
        ),
        (torch.randn(4, 9, 16),), F.cross_entropy, labels(5, 4),
    ),
    "DeepFM": lambda: Step(
        Formula(_factored, table=nn.Embedding(100, 8), first=nn.Embedding(100, 1), tower=mlp(32, 32, 1)),
        labels(10, 64, 4), F.binary_cross_entropy_with_logits, (torch.rand(64).round(),),
    ),
    "deep and cross": lambda: Step(
        Formula(
            _crossed, crosses=nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), tower=mlp(16, 32, 16),
            out=nn.Linear(32, 1),
        ),
        (torch.randn(64, 16),), F.mse_loss, (torch.randn(64),),
    ),
    "two towers": lambda: Step(
        Formula(
            _two_towers, users=nn.Embedding(50, 16), items=nn.Embedding(80, 16), user=mlp(16, 16, 8),
            item=mlp(16, 16, 8),
        ),
        (*labels(50, 32), *labels(80, 32)), itself, (),
    ),
    "FT-Transformer": lambda: Step(
        Formula(
            _columns, scale=torch.randn(6, 16), shift=torch.randn(6, 16), kinds=nn.Embedding(20, 16),
            first=torch.randn(1, 1, 16), out=nn.Linear(16, 2),
            body=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True), 2,
                enable_nested_tensor=False,
            ),
        ),
        (torch.randn(16, 6), *labels(20, 16, 3)), F.cross_entropy, labels(2, 16),
    ),
    "N-BEATS": lambda: Step(
        Formula(_basis, blocks=nn.ModuleList(mlp(16, 32, 32, 20) for _ in range(4))),
        (torch.randn(8, 16),), F.smooth_l1_loss, (torch.randn(8, 4),),
    ),
    "DLinear": lambda: Step(
        Formula(_decomposed, season=nn.Linear(16, 4), trend=nn.Linear(16, 4)),
        (torch.randn(8, 16, 3),), F.l1_loss, (torch.randn(8, 4, 3),),
    ),
    "Kolmogorov-Arnold network": lambda: Step(
        Formula(
            _splines, bases=nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 2)]),
            weights=nn.ParameterList([torch.randn(8, 4, 8) / 8, torch.randn(2, 8, 8) / 8]),
        ),
        (torch.rand(16, 4) * 2 - 1,), F.mse_loss, (torch.randn(16, 2),),
    ),
    "hypernetwork, vmap": lambda: Step(
        Formula(_generated_weights, maker=mlp(3, 16, 40)),
        (torch.randn(8, 8), torch.randn(8, 3)), F.mse_loss, (torch.randn(8, 5),),
    ),
}  # fmt: skip


# -- adapters ----------------------------------------------------------------------------------


class _LoRA(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(rank))
        self.b = nn.Parameter(torch.randn(layer.out_features, rank) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 0.5 * F.linear(F.linear(x, self.a), self.b)


class _Switch(nn.Module):
    """A Python loop over experts: each computes all tokens, weighted by its share of each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 4), nn.ModuleList(mlp(16, 32, 16) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share = self.gate(x).softmax(-1)
        best, which = share.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = out + ((which == number) * best)[:, None] * expert(x)
        load = F.one_hot(which, 4).float().mean(0)
        return out, 4 * (load * share.mean(0)).sum()


def _fake(x: Tensor, scale: Tensor) -> Tensor:
    """Fake quantization with straight-through gradients."""
    y = torch.clamp(torch.round(x / scale), -8, 7) * scale
    return x + (y - x).detach()


def _quantized(net: Any, x: Tensor) -> Tensor:
    h = _fake(x, net.scale[0])
    h = F.relu(F.linear(h, _fake(net.one, net.scale[1])))
    return F.linear(_fake(h, net.scale[2]), net.two)


_ADAPTERS: dict[str, Make] = {
    "LoRA": lambda: Step(
        nn.Sequential(_LoRA(nn.Linear(16, 32)), nn.ReLU(), _LoRA(nn.Linear(32, 5))),
        (torch.randn(8, 16),), F.cross_entropy, labels(5, 8),
    ),
    "switch layer, a loop over experts": lambda: Step(
        _Switch(), (torch.randn(32, 16),), lambda out, y: F.mse_loss(out[0], y) + 0.01 * out[1],
        (torch.randn(32, 16),),
    ),
    "4-bit weights, straight through": lambda: Step(
        Formula(
            _quantized, one=torch.randn(32, 16) / 4, two=torch.randn(5, 32) / 6,
            scale=torch.tensor([0.25, 0.1, 0.2]),
        ),
        (torch.randn(8, 16),), F.cross_entropy, labels(5, 8),
    ),
    "mixup, label smoothing": lambda: Step(
        mlp(12, 32, 5), (torch.randn(8, 12),),
        lambda out, a, b, m: (
            m * F.cross_entropy(out, a, label_smoothing=0.1, reduction="none")
            + (1 - m) * F.cross_entropy(out, b, label_smoothing=0.1, reduction="none")
        ).mean(),
        (*labels(5, 8), *labels(5, 8), torch.rand(8)),
    ),
}  # fmt: skip

LAYERS: dict[str, Make] = _PICTURES | _TABLES | _ADAPTERS
