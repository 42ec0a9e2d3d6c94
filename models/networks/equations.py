"""Networks as people write them by hand: generative models and differential equations."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from models.networks.catalogue import Make, Step, images
from models.networks.written import Formula, itself, mlp

# -- generative --------------------------------------------------------------------------------


def _coupled(net: Any, x: Tensor) -> Tensor:
    """Return the negative log-likelihood of a flow of affine couplings (RealNVP)."""
    total = torch.zeros(len(x))
    for part in net.parts:
        a, b = x.chunk(2, 1)
        scale, shift = part(a).chunk(2, 1)
        scale = torch.tanh(scale)
        x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
    prior = torch.distributions.Normal(torch.zeros(()), torch.ones(()))
    return -(prior.log_prob(x).sum(1) + total).mean()


def _masked(net: Any, x: Tensor) -> Tensor:
    """Return the loss of a masked autoregressive density (MADE)."""
    place, hidden = torch.arange(8), torch.arange(32) % 7
    h = F.relu(F.linear(x, net.first * (hidden[:, None] >= place)))
    out = F.linear(h, net.second * (place.repeat(2)[:, None] > hidden))
    mean, log = out.chunk(2, 1)
    return (0.5 * (x - mean).square() * torch.exp(-2 * log) + log).sum(1).mean()


def _mixed_invertibly(net: Any, x: Tensor) -> Tensor:
    """An invertible 1x1 convolution with actnorm (Glow), whose log-determinant counts."""
    x = (x + net.shift) * net.log.exp()
    x = F.conv2d(x, net.weight[..., None, None])
    grown = (net.log.sum() + torch.linalg.slogdet(net.weight)[1]) * x.shape[2] * x.shape[3]
    return 0.5 * x.square().sum((1, 2, 3)).mean() - grown


def _quantized(net: Any, x: Tensor) -> Tensor:
    """VQ-VAE: the nearest code, straight-through gradients, commitment loss."""
    z = net.encoder(x)
    flat = z.permute(0, 2, 3, 1).flatten(0, 2)
    nearest = torch.cdist(flat, net.codes).argmin(1)
    taken = net.codes[nearest].view(*z.shape[:1], *z.shape[2:], -1).permute(0, 3, 1, 2)
    apart = F.mse_loss(taken, z.detach()) + 0.25 * F.mse_loss(z, taken.detach())
    return F.mse_loss(net.decoder(z + (taken - z).detach()), x) + apart


def _noised(net: Any, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
    """The DDPM objective: noise at a time of a cosine schedule, with the time embedded as waves."""
    kept = torch.cos(time * math.pi / 2).square()[:, None]
    seen = kept.sqrt() * x + (1 - kept).sqrt() * noise
    waves = time[:, None] * torch.exp(torch.arange(4.0))
    return F.mse_loss(net.body(torch.cat([seen, waves.sin(), waves.cos()], 1)), noise)


def _flowed(net: Any, x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    between = torch.lerp(noise, x, time[:, None])
    return F.mse_loss(net.body(torch.cat([between, time[:, None]], 1)), x - noise)


def _critic() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 4, 2, 1), nn.Conv2d(8, 16, 4, 2, 1), nn.Conv2d(16, 1, 4))
    first, second, last = map(parametrizations.spectral_norm, layers)
    return nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.LeakyReLU(0.2), last)


def _hinge(net: Any, real: Tensor, noise: Tensor) -> Tensor:
    with torch.no_grad():
        fake = net.generator(noise)
    return F.relu(1 - net.critic(real)).mean() + F.relu(1 + net.critic(fake)).mean()


def _generated(net: Any, noise: Tensor) -> Tensor:
    for parameter in net.critic.parameters():
        parameter.requires_grad_(False)
    return F.softplus(-net.critic(net.generator(noise))).mean()


def _penalized(net: Any, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """WGAN-GP: the norm of the critic's gradient between a real and a generated sample."""
    between = torch.lerp(fake, real, mix).requires_grad_(True)
    (slope,) = torch.autograd.grad(net.critic(between).sum(), between, create_graph=True)
    wasserstein = net.critic(fake).mean() - net.critic(real).mean()
    return wasserstein + 10 * (slope.norm(2, dim=1) - 1).square().mean()


def _dcgan() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


_GENERATIVE: dict[str, Make] = {
    "RealNVP": lambda: Step(
        Formula(_coupled, parts=nn.ModuleList(mlp(3, 16, 6) for _ in range(4))),
        (torch.randn(16, 6),), itself, (),
    ),
    "MADE": lambda: Step(
        Formula(_masked, first=torch.randn(32, 8) / 4, second=torch.randn(16, 32) / 9),
        (torch.randn(16, 8),), itself, (),
    ),
    "Glow, one step": lambda: Step(
        Formula(
            _mixed_invertibly, shift=torch.zeros(3, 1, 1), log=torch.zeros(3, 1, 1),
            weight=torch.linalg.qr(torch.randn(3, 3))[0],
        ),
        images(8), itself, (),
    ),
    "VQ-VAE": lambda: Step(
        Formula(
            _quantized, encoder=nn.Conv2d(3, 8, 4, 4), codes=torch.randn(16, 8),
            decoder=nn.ConvTranspose2d(8, 3, 4, 4),
        ),
        images(16), itself, (),
    ),
    "DDPM objective": lambda: Step(
        Formula(_noised, body=mlp(24, 64, 64, 16, act=nn.SiLU)),
        (torch.randn(16, 16), torch.rand(16), torch.randn(16, 16)), itself, (),
    ),
    "flow matching": lambda: Step(
        Formula(_flowed, body=mlp(17, 64, 64, 16, act=nn.SiLU)),
        (torch.randn(16, 16), torch.randn(16, 16), torch.rand(16)), itself, (),
    ),
    "GAN, critic's step, spectral norm": lambda: Step(
        Formula(_hinge, generator=_dcgan(), critic=_critic()),
        (images(16)[0], torch.randn(2, 8, 1, 1)), itself, (),
    ),
    "GAN, generator's step": lambda: Step(
        Formula(_generated, generator=_dcgan(), critic=_critic()), (torch.randn(2, 8, 1, 1),), itself, (),
    ),
    "WGAN, gradient penalty": lambda: Step(
        Formula(_penalized, critic=mlp(8, 32, 32, 1, act=nn.Tanh)),
        (torch.randn(16, 8), torch.randn(16, 8), torch.rand(16, 1)), itself, (),
    ),
}  # fmt: skip


# -- equations ---------------------------------------------------------------------------------


def _burgers(net: Any, t: Tensor, x: Tensor) -> Tensor:
    """A physics-informed network: the residual of Burgers' equation, by derivatives of the inputs."""
    t, x = t.requires_grad_(True), x.requires_grad_(True)
    u = net.body(torch.cat([t, x], 1))
    u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return (u_t + u * u_x - 0.01 * u_xx).square().mean()


def _forces(net: Any, place: Tensor, energy: Tensor, force: Tensor) -> Tensor:
    """An interatomic potential: energies and forces."""
    place = place.requires_grad_(True)
    i, j = torch.triu_indices(6, 6, 1)
    apart = (place[:, i] - place[:, j]).norm(dim=-1)
    waves = torch.exp(-((apart[..., None] - torch.linspace(0, 3, 8)) ** 2))
    found = net.body(waves).sum((1, 2))
    (slope,) = torch.autograd.grad(found.sum(), place, create_graph=True)
    return F.mse_loss(found, energy) + F.mse_loss(-slope, force)


def _integrated(net: Any, x: Tensor, target: Tensor) -> Tensor:
    """A neural ODE in eight steps of Runge-Kutta 4."""
    h = 1 / 8
    for step in range(8):
        t = torch.full((len(x), 1), step * h)
        a = net.body(torch.cat([x, t], 1))
        b = net.body(torch.cat([x + h / 2 * a, t + h / 2], 1))
        c = net.body(torch.cat([x + h / 2 * b, t + h / 2], 1))
        d = net.body(torch.cat([x + h * c, t + h], 1))
        x = x + h / 6 * (a + 2 * b + 2 * c + d)
    return F.mse_loss(x, target)


def _spectral(net: Any, x: Tensor, target: Tensor) -> Tensor:
    """A Fourier neural operator."""
    x = net.inside(x)
    weight = torch.view_as_complex(net.weight)
    found = torch.einsum("bix,iox->box", torch.fft.rfft(x)[..., :6], weight)
    whole = torch.zeros(len(x), 8, 17, dtype=torch.cfloat)
    whole[..., :6] = found
    return F.mse_loss(net.out(F.gelu(torch.fft.irfft(whole, n=32) + net.aside(x))), target)


def _sirens(net: Any, place: Tensor, color: Tensor) -> Tensor:
    x = place
    for layer in net.layers[:-1]:
        x = torch.sin(30 * layer(x))
    return F.mse_loss(net.layers[-1](x), color)


def _tables(net: Any, place: Tensor, color: Tensor) -> Tensor:
    """Features from hashed grids of several resolutions (instant NGP), bilinear."""
    found = []
    for level, table in enumerate(net.tables):
        x = place * 4 * 2**level
        low = x.floor()
        part, corner = x - low, low.long()
        mixed = 0.0
        for dx, dy in ((0, 0), (0, 1), (1, 0), (1, 1)):
            where = ((corner[:, 0] + dx) ^ ((corner[:, 1] + dy) * 2654435761)) % 64
            weight = (part[:, 0] if dx else 1 - part[:, 0]) * (part[:, 1] if dy else 1 - part[:, 1])
            mixed = mixed + weight[:, None] * table(where)
        found.append(mixed)
    return F.mse_loss(net.body(torch.cat(found, 1)), color)


_EQUATIONS: dict[str, Make] = {
    "physics-informed network": lambda: Step(
        Formula(_burgers, body=mlp(2, 32, 32, 1, act=nn.Tanh)),
        (torch.rand(32, 1), torch.randn(32, 1)), itself, (),
    ),
    "energies and forces": lambda: Step(
        Formula(_forces, body=mlp(8, 32, 1, act=nn.SiLU)),
        (torch.randn(4, 6, 3), torch.randn(4), torch.randn(4, 6, 3)), itself, (),
    ),
    "neural ODE, Runge-Kutta": lambda: Step(
        Formula(_integrated, body=mlp(9, 32, 8, act=nn.Tanh)),
        (torch.randn(16, 8), torch.randn(16, 8)), itself, (),
    ),
    "Fourier neural operator": lambda: Step(
        Formula(
            _spectral, inside=nn.Conv1d(1, 8, 1), weight=torch.randn(8, 8, 6, 2) / 8,
            aside=nn.Conv1d(8, 8, 1), out=nn.Conv1d(8, 1, 1),
        ),
        (torch.randn(4, 1, 32), torch.randn(4, 1, 32)), itself, (),
    ),
    "SIREN": lambda: Step(
        Formula(_sirens, layers=nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 3)])),
        (torch.rand(64, 2), torch.rand(64, 3)), itself, (),
    ),
    "hash grid": lambda: Step(
        Formula(_tables, tables=nn.ModuleList(nn.Embedding(64, 2) for _ in range(3)), body=mlp(6, 16, 3)),
        (torch.rand(64, 2), torch.rand(64, 3)), itself, (),
    ),
}  # fmt: skip


GENERATED_AND_SOLVED: dict[str, Make] = _GENERATIVE | _EQUATIONS
