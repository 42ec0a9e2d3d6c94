"""Generators: adversaries, diffusion, flows, energies, codes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.distributions import Normal

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.judge = mlp(4, 16, 6), mlp(6, 16, 1)


@recipe
def gan_generator() -> Recipe:
    class Half(_Gan):
        def forward(self, z: Tensor) -> Tensor:
            logits = self.judge(self.make(z))
            return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))

    net = Half()
    net.judge.requires_grad_(False)
    optimizer = optim.Adam(net.make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    return Recipe(module=net, inputs=rows(64, 4), options={"optimizer": optimizer})


@recipe
def gan_discriminator() -> Recipe:
    class Half(_Gan):
        def forward(self, real: Tensor, z: Tensor) -> Tensor:
            with torch.no_grad():
                fake = self.make(z)
            yes, no = self.judge(real), self.judge(fake.detach())
            bce = F.binary_cross_entropy_with_logits
            return bce(yes, torch.full_like(yes, 0.9)) + bce(no, torch.zeros_like(no))

    net = Half()
    optimizer = optim.Adam(net.judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    inputs = (rows(64, 6), rows(64, 4))
    return Recipe(module=net, inputs=inputs, options={"optimizer": optimizer})


@recipe
def diffusion() -> Recipe:
    """Noise and times are inputs; the embedding of the time is computed."""

    class Diffusion(nn.Module):
        alphas: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6 + 8, 32, 6)
            self.register_buffer("alphas", (1 - torch.linspace(1e-4, 0.02, 100)).cumprod(0))

        def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
            a = self.alphas[t][:, None]
            angle = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(4) / 4)
            seen = torch.cat([a.sqrt() * x + (1 - a).sqrt() * noise, angle.sin(), angle.cos()], 1)
            weight = (a / (1 - a)).clamp(max=5.0) / (a / (1 - a))
            return (weight * (self.net(seen) - noise).square()).mean()

    return Recipe(module=Diffusion(), inputs=(rows(64, 6), classes(100, 64), rows(64, 6)))


@recipe
def diffusion_drawn_in_the_step() -> Recipe:
    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(7, 32, 6)

        def forward(self, x: Tensor) -> Tensor:
            t, noise = torch.rand(len(x), 1), torch.randn_like(x)
            return F.mse_loss(self.net(torch.cat([(1 - t) * x + t * noise, t], 1)), noise - x)

    return Recipe(module=Diffusion(), inputs=rows(64, 6))


@recipe
def diffusion_with_drawn_times() -> Recipe:
    """As DDPM is written: `torch.randint` for the times."""

    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.time = mlp(12, 32, 6), nn.Embedding(100, 6)

        def forward(self, x: Tensor) -> Tensor:
            t = torch.randint(0, 100, (len(x),))
            noise = torch.randn_like(x)
            a = torch.cos(t / 100 * math.pi / 2)[:, None]
            seen = a * x + (1 - a**2).sqrt() * noise
            return F.mse_loss(self.net(torch.cat([seen, self.time(t)], 1)), noise)

    return Recipe(module=Diffusion(), inputs=rows(64, 6))


@recipe
def normalizing_flow() -> Recipe:
    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(mlp(3, 16, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            total = torch.zeros(len(x))
            for net in self.nets:
                scale, shift = net(a).chunk(2, -1)
                scale = scale.tanh()
                a, b = b * scale.exp() + shift, a
                total = total + scale.sum(-1)
            z = torch.cat([a, b], -1)
            return -(Normal(0.0, 1.0).log_prob(z).sum(-1) + total).mean()

    return Recipe(module=Flow(), inputs=rows(64, 6))


@recipe
def energy_based() -> Recipe:
    """Contrastive divergence: two Langevin steps by the input's gradient."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 1)

        def forward(self, x: Tensor, start: Tensor, noise: Tensor) -> Tensor:
            fake = start.requires_grad_(True)
            for step in noise:
                (slope,) = torch.autograd.grad(self.net(fake).sum(), fake)
                fake = (fake - 0.1 * slope + 0.05 * step).detach().requires_grad_(True)
            real, made = self.net(x), self.net(fake.detach())
            return (real - made).mean() + 0.1 * (real**2 + made**2).mean()

    return Recipe(module=Energy(), inputs=(rows(64, 6), rows(64, 6), rows(2, 64, 6)))


@recipe
def score_matching() -> Recipe:
    """Sliced: second derivatives by the input, differentiated by the parameters."""

    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 6))

        def forward(self, x: Tensor, v: Tensor) -> Tensor:
            x = x.requires_grad_(True)
            score = self.net(x)
            (slope,) = torch.autograd.grad((score * v).sum(), x, create_graph=True)
            return ((slope * v).sum(-1) + 0.5 * (score * v).sum(-1) ** 2).mean()

    return Recipe(module=Score(), inputs=(rows(64, 6), rows(64, 6)))


@recipe
def vector_quantized() -> Recipe:
    """The nearest code straight through, its codebook moved by averages in the step."""

    class Codes(nn.Module):
        book: Tensor
        counts: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(6, 16, 4), mlp(4, 16, 6)
            self.register_buffer("book", rows(8, 4))
            self.register_buffer("counts", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            which = torch.cdist(z.detach(), self.book).argmin(1)
            code = self.book[which]
            made = self.decode(z + (code - z).detach())
            hot = F.one_hot(which, 8).to(z.dtype)
            with torch.no_grad():
                self.counts.mul_(0.9).add_(0.1 * hot.sum(0))
                mean = hot.T @ z / hot.sum(0).clamp(min=1)[:, None]
                self.book.copy_(torch.where(hot.sum(0)[:, None] > 0, mean, self.book))
            return F.mse_loss(made, x) + 0.25 * F.mse_loss(z, code)

    return Recipe(module=Codes(), inputs=rows(64, 6))


@recipe
def gumbel_softmax() -> Recipe:
    class Discrete(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(6, 16, 8), mlp(8, 16, 6)

        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.decode(F.gumbel_softmax(self.encode(x), 1.0, hard=True)), x)

    return Recipe(module=Discrete(), inputs=rows(64, 6))
