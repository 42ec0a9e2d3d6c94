"""Networks from no package: graphs, recommendation, points, fields, recurrence, volumes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.catalogue import Make, Step, images


class _Block(nn.Module):
    """Convolution, normalization, activation."""

    def __init__(self, convolution: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, norm

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.convolution(x)))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 8), (8, 16), (16, 16), (24, 8))
        self.blocks = nn.ModuleList(
            _Block(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o)) for i, o in sizes
        )
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = self.blocks
        top = a(x)
        low = c(b(F.max_pool2d(top, 2)))
        wide = F.interpolate(low, scale_factor=2, mode="bilinear")
        return self.out(d(torch.cat([top, wide], 1)))


class _UNet3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = _Block(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4))
        self.b = _Block(nn.Conv3d(4, 8, 3, padding=1), nn.BatchNorm3d(8))
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.out = nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.a(x)
        return self.out(torch.cat([top, self.up(self.b(F.max_pool3d(top, 2)))], 1))


class _Recommender(nn.Module):
    """DLRM: embedding bags, pairwise products, two towers."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(2000, 16, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(22, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        parts = [self.bottom(x), *(bag(rows[:, i]) for i, bag in enumerate(self.bags))]
        stacked = torch.stack(parts, 1)
        i, j = torch.tril_indices(4, 4, -1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, i, j]
        return self.top(torch.cat([parts[0], pairs], 1)).squeeze(1)


class _GraphAttention(nn.Module):
    """Softmax over the edges into each node."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.score, self.out = nn.Linear(8, 16), nn.Linear(32, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h, (source, target), count = self.inside(x), edges, len(x)
        pair = torch.cat([h[source], h[target]], -1)
        score = F.leaky_relu(self.score(pair), 0.2).squeeze(-1)
        most = torch.full((count,), float("-inf")).scatter_reduce(0, target, score, "amax")
        weight = torch.exp(score - most[target])
        weight = weight / torch.zeros(count).scatter_add(0, target, weight)[target]
        return self.out(torch.zeros_like(h).index_add(0, target, weight[:, None] * h[source]))


class _Points(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)
        )
        self.out = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.each(x).max(dim=2)[0])


class _Field(nn.Module):
    """NeRF: positions as waves, densities added up along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(39, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, points: Tensor, depths: Tensor) -> Tensor:
        waves = (points[..., None] * 2.0 ** torch.arange(6)).flatten(-2)
        found = self.field(torch.cat([points, torch.sin(waves), torch.cos(waves)], -1))
        steps = torch.diff(depths, dim=-1, append=depths[..., -1:] + 1)
        opaque = 1 - torch.exp(-F.softplus(found[..., 3]) * steps)
        clear = torch.cat([torch.ones_like(opaque[..., :1]), 1 - opaque + 1e-10], -1)
        weight = opaque * torch.cumprod(clear, -1)[..., :-1]
        return (torch.sigmoid(found[..., :3]) * weight[..., None]).sum(-2)


class _Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.steps, self.out = kind(8, 16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.steps(x)[0][:, -1])


class _Experts(nn.Module):
    """Two of four experts for each sample, all computed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(64, 4), nn.Parameter(torch.randn(4, 64, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        weight, which = self.gate(x).softmax(-1).topk(2, -1)
        made = torch.einsum("bd,edf->bef", x, self.experts)
        taken = made.gather(1, which[..., None].expand(-1, -1, 64))
        return (weight[..., None] * taken).sum(1)


class _Autoencoder(nn.Module):
    """A variational autoencoder whose noise is an input of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = self.inside(x).chunk(2, -1)
        return self.out(mean + noise * torch.exp(0.5 * log)), mean, log


def _evidence(result: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    logits, mean, log = result
    apart = -0.5 * torch.mean(1 + log - mean**2 - log.exp())
    return F.binary_cross_entropy_with_logits(logits, x) + apart


def _labels(classes: int, *shape: int) -> tuple[Tensor]:
    return (torch.randint(0, classes, shape),)


def _graph() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 8), torch.randint(0, 20, (2, 60))


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Tanh(),
    )


OWN: dict[str, Make] = {
    "U-Net, GroupNorm, bilinear": lambda: Step(
        _UNet(), images(32), F.cross_entropy, _labels(2, 2, 32, 32)
    ),
    "3-D U-Net": lambda: Step(
        _UNet3d(), (torch.randn(1, 1, 8, 16, 16),), F.cross_entropy, _labels(2, 1, 8, 16, 16)
    ),
    "DLRM": lambda: Step(
        _Recommender(),
        (torch.randn(256, 13), torch.randint(0, 2000, (256, 3, 4))),
        F.binary_cross_entropy_with_logits,
        (torch.rand(256),),
    ),
    "graph attention": lambda: Step(
        _GraphAttention(), _graph(), F.cross_entropy, _labels(3, 20)
    ),
    "PointNet": lambda: Step(
        _Points(), (torch.randn(4, 3, 50),), F.cross_entropy, _labels(5, 4)
    ),
    "NeRF": lambda: Step(
        _Field(),
        (torch.randn(4, 8, 3), torch.rand(4, 8).sort(-1)[0]),
        F.mse_loss,
        (torch.rand(4, 3),),
    ),
    "LSTM": lambda: Step(
        _Recurrent(nn.LSTM), (torch.randn(2, 6, 8),), F.cross_entropy, _labels(3, 2)
    ),
    "GRU": lambda: Step(
        _Recurrent(nn.GRU), (torch.randn(2, 6, 8),), F.cross_entropy, _labels(3, 2)
    ),
    "mixture of experts": lambda: Step(
        _Experts(), (torch.randn(128, 64),), F.huber_loss, (torch.randn(128, 64),)
    ),
    "variational autoencoder": lambda: Step(
        _Autoencoder(), (torch.rand(4, 16), torch.randn(4, 4)), _evidence, (torch.rand(4, 16),)
    ),
    "generator, InstanceNorm": lambda: Step(_generator(), images(16), F.l1_loss, images(16)),
}  # fmt: skip
