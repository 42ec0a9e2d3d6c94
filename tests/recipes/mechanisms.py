"""Layers of unusual kinds: scans, memories, spikes, trees, transforms, geometry, filters."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows


@recipe
def selective_scan() -> Recipe:
    """Mamba: a state that decays by what the input says, step by step."""

    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(6, 16), nn.Linear(8, 6)
            self.conv = nn.Conv1d(8, 8, 3, padding=2, groups=8)
            self.select, self.rate = nn.Linear(8, 2 * 4 + 8), nn.Parameter(torch.zeros(8, 4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            u, gate = self.into(x).chunk(2, -1)
            u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
            step, b, c = self.select(u).split([8, 4, 4], -1)
            step = F.softplus(step)
            decay = torch.exp(-step[..., None] * self.rate.exp())
            push = (step * u)[..., None] * b[..., None, :]
            state, made = torch.zeros_like(push[:, 0]), []
            for t in range(x.shape[1]):
                state = decay[:, t] * state + push[:, t]
                made.append((state * c[:, t, None]).sum(-1))
            return F.mse_loss(self.out(torch.stack(made, 1) * F.silu(gate)), y)

    return Recipe(module=Scan(), inputs=(rows(4, 8, 6), rows(4, 8, 6)))


@recipe
def scan_of_logarithms() -> Recipe:
    """minGRU: every step at once, by `logcumsumexp`."""

    class MinGru(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.head = nn.Linear(6, 16), nn.Linear(8, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden, gate = self.both(x).chunk(2, -1)
            logs = torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
            keep, write = -F.softplus(gate).cumsum(1), -F.softplus(-gate) + logs
            h = torch.exp(keep + torch.logcumsumexp(write - keep, 1))
            return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())

    return Recipe(module=MinGru(), inputs=(rows(4, 8, 6), classes(5, 4, 8)))


@recipe
def matrix_memory() -> Recipe:
    """xLSTM's mLSTM: exponential gates, kept in range by a running maximum."""

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.gates, self.out = nn.Linear(6, 24), nn.Linear(6, 2), nn.Linear(8, 6)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            (q, k, v), (i, f) = self.qkv(x).chunk(3, -1), self.gates(x).unbind(-1)
            f = F.logsigmoid(f)
            c, n = x.new_zeros(len(x), 8, 8), x.new_zeros(len(x), 8)
            m, made = torch.full_like(i[:, 0], -torch.inf), []
            for t in range(x.shape[1]):
                most = torch.maximum(f[:, t] + m, i[:, t])
                keep, write = (f[:, t] + m - most).exp(), (i[:, t] - most).exp()
                m = most
                c = (
                    keep[:, None, None] * c
                    + write[:, None, None] * v[:, t, :, None] * k[:, t, None]
                )
                n = keep[:, None] * n + write[:, None] * k[:, t]
                size = (n * q[:, t]).sum(-1, keepdim=True).abs().clamp(min=1)
                made.append((c @ q[:, t, :, None]).squeeze(-1) / size)
            return F.mse_loss(self.out(torch.stack(made, 1)), y)

    return Recipe(module=Memory(), inputs=(rows(4, 6, 6), rows(4, 6, 6)))


@recipe
def retention() -> Recipe:
    """Products that decay with the distance, in place of a softmax, group-normalized."""

    class Retention(nn.Module):
        decay: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.norm, self.out = nn.Linear(8, 24), nn.GroupNorm(2, 8), nn.Linear(8, 8)
            gamma = 1 - torch.exp2(-5.0 - torch.arange(2))
            away = torch.arange(6)[:, None] - torch.arange(6)
            decay = torch.where(away >= 0, gamma[:, None, None] ** away, 0)
            self.register_buffer("decay", decay, persistent=False)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            q, k, v = (z.unflatten(-1, (2, 4)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
            found = torch.einsum("bhqd,bhkd,hqk,bhke->bqhe", q, k, self.decay / 2, v).flatten(2)
            found = self.norm(found.flatten(0, 1)).view_as(x)
            return F.mse_loss(self.out(found * F.silu(x)), y)

    return Recipe(module=Retention(), inputs=(rows(4, 6, 8), rows(4, 6, 8)))


@recipe
def diagonal_state_space() -> Recipe:
    """S4D: the kernel of a complex recurrence, as powers, applied by a Fourier transform."""

    class Diagonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = nn.Parameter(torch.full((6, 4), -0.5))
            self.turn = nn.Parameter(math.pi * torch.arange(4).repeat(6, 1))
            self.c, self.step = nn.Parameter(rows(6, 4, 2)), nn.Parameter(torch.full((6,), -2.0))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            size = x.shape[1]
            a = torch.complex(-torch.exp(self.rate), self.turn) * self.step.exp()[:, None]
            powers = torch.exp(a[..., None] * torch.arange(size))
            kernel = 2 * torch.einsum("hn,hnl->hl", torch.view_as_complex(self.c), powers).real
            found = torch.fft.rfft(x.mT, n=2 * size) * torch.fft.rfft(kernel, n=2 * size)
            made = torch.fft.irfft(found, n=2 * size)[..., :size].mT
            return F.mse_loss(F.gelu(made), y)

    return Recipe(module=Diagonal(), inputs=(rows(4, 8, 6), rows(4, 8, 6)))


class _Spike(torch.autograd.Function):
    """A step, with the slope of a fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return grads[0] / (10 * v.abs() + 1) ** 2


@recipe
def spiking() -> Recipe:
    """Leaky neurons over time that fire, with a slope of their own, and start again."""

    class Spiking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 5)
            self.leak = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            v, total = torch.zeros(len(x), 16), torch.zeros(len(x), 5)
            for t in range(6):
                v = v * self.leak.sigmoid() + self.first(x[:, t])
                spikes = _Spike.apply(v - 1)
                v = v - spikes.detach()  # type: ignore[union-attr]
                total = total + self.second(spikes)  # type: ignore[arg-type]
            return F.cross_entropy(total / 6, y)

    return Recipe(module=Spiking(), inputs=(rows(16, 6, 6), classes(5, 16)))


@recipe
def sparse_softmax() -> Recipe:
    """Sparsemax in attention: a threshold by sorted running sums."""

    def sparsemax(z: Tensor) -> Tensor:
        ranked = z.sort(-1, descending=True)[0]
        count = torch.arange(1, z.shape[-1] + 1)
        total = ranked.cumsum(-1)
        inside = (1 + count * ranked > total).sum(-1, keepdim=True)
        threshold = (total.gather(-1, inside - 1) - 1) / inside
        return (z - threshold).clamp(min=0)

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.cross_entropy(self.head((sparsemax(q @ k.mT) @ v).mean(1)), y)

    return Recipe(module=Sparse(), inputs=(rows(8, 6, 8), classes(5, 8)))


@recipe
def attention_within_windows() -> Recipe:
    """Keys around each query by `unfold`, what is beyond the ends masked."""

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            k, v = (F.pad(z, (0, 0, 2, 2)).unfold(1, 5, 1) for z in (k, v))
            there = F.pad(torch.ones(x.shape[1]), (2, 2)).unfold(0, 5, 1).bool()
            scores = torch.einsum("bnd,bndw->bnw", q, k) / math.sqrt(8)
            share = scores.masked_fill(~there, -torch.inf).softmax(-1)
            return F.l1_loss(self.out(torch.einsum("bnw,bndw->bnd", share, v)), y)

    return Recipe(module=Windows(), inputs=(rows(4, 8, 8), rows(4, 8, 8)))


@recipe
def random_features() -> Recipe:
    """Performer: positive features of a softmax, causal by running sums."""

    class Performer(nn.Module):
        at: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
            self.register_buffer("at", rows(12, 8))

        def features(self, z: Tensor) -> Tensor:
            z = z / 8**0.25
            found = z @ self.at.T - z.square().sum(-1, keepdim=True) / 2
            return torch.exp(found - found.detach().amax((1, 2), keepdim=True)) + 1e-4

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k = self.features(q), self.features(k)
            total = torch.einsum("bnf,bnd->bnfd", k, v).cumsum(1)
            found = torch.einsum("bnf,bnfd->bnd", q, total) / (q * k.cumsum(1)).sum(-1)[..., None]
            return F.smooth_l1_loss(self.out(found), y)

    return Recipe(module=Performer(), inputs=(rows(4, 8, 8), rows(4, 8, 8)))


@recipe
def slots() -> Recipe:
    """Slot attention: a softmax over slots, each updated by a cell, three times."""

    class Slots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.norm = nn.Parameter(rows(3, 8)), nn.LayerNorm(8)
            self.q, self.kv, self.cell = nn.Linear(8, 8), nn.Linear(8, 16), nn.GRUCell(8, 8)
            self.decode = mlp(8, 16, 8)

        def forward(self, x: Tensor) -> Tensor:
            k, v = self.kv(self.norm(x)).chunk(2, -1)
            slots = self.start.expand(len(x), 3, 8)
            for _ in range(3):
                share = (self.q(self.norm(slots)) @ k.mT / 8**0.5).softmax(1) + 1e-8
                update = (share / share.sum(-1, keepdim=True)) @ v
                slots = self.cell(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            return F.mse_loss(torch.einsum("bsn,bsd->bnd", share, self.decode(slots)), x)

    return Recipe(module=Slots(), inputs=rows(4, 10, 8))


@recipe
def tape() -> Recipe:
    """A neural Turing machine's memory: found by likeness, shifted by a circular convolution, erased."""

    class Tape(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.asks, self.head = (
                nn.LSTMCell(10, 12),
                nn.Linear(12, 17),
                nn.Linear(16, 4),
            )

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            count = x.shape[0]
            memory, at = (
                torch.full((count, 6, 4), 0.01),
                F.one_hot(torch.zeros(count).long(), 6) * 1.0,
            )
            h = c = torch.zeros(count, 12)
            read, made = torch.zeros(count, 4), []
            for t in range(x.shape[1]):
                h, c = self.cell(torch.cat([x[:, t], read], 1), (h, c))
                key, erase, add, shift, sharp, gate = self.asks(h).split([4, 4, 4, 3, 1, 1], 1)
                likeness = F.cosine_similarity(memory, key[:, None], dim=-1)
                at = torch.lerp(at, (F.softplus(sharp) * likeness).softmax(-1), gate.sigmoid())
                moved = torch.stack([at.roll(k, 1) for k in (-1, 0, 1)], -1)
                at = (moved * shift.softmax(-1)[:, None]).sum(-1)
                memory = memory * (1 - at[..., None] * erase.sigmoid()[:, None])
                memory = memory + at[..., None] * add[:, None]
                read = torch.einsum("bn,bnd->bd", at, memory)
                made.append(self.head(torch.cat([h, read], 1)))
            return F.mse_loss(torch.stack(made, 1), y)

    return Recipe(module=Tape(), inputs=(rows(4, 4, 6), rows(4, 4, 4)))


@recipe
def equilibrium() -> Recipe:
    """A fixed point, found without gradients, and the gradient at it by a series, in a hook."""

    class Equilibrium(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.into, self.head = nn.Linear(8, 8), nn.Linear(6, 8), nn.Linear(8, 5)

        def step(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.inner(z) + self.into(x))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                z = torch.zeros(len(x), 8)
                for _ in range(12):
                    z = self.step(z, x)
            for _ in range(3):
                z = self.step(z, x)
            return F.cross_entropy(self.head(z), y)

    return Recipe(module=Equilibrium(), inputs=(rows(32, 6), classes(5, 32)))


@recipe
def hamiltonian() -> Recipe:
    """The motion is the gradient of a learned energy, turned."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x: Tensor, motion: Tensor) -> Tensor:
            x = x.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
            q, p = slope.chunk(2, 1)
            return F.mse_loss(torch.cat([p, -q], 1), motion)

    return Recipe(module=Energy(), inputs=(rows(32, 4), rows(32, 4)))


@recipe
def lagrangian() -> Recipe:
    """Accelerations from second derivatives by `torch.func`, and a solved system."""
    from torch.func import functional_call, grad, jacrev, vmap

    class Lagrange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 1))

        def forward(self, q: Tensor, v: Tensor, a: Tensor) -> Tensor:
            named = dict(self.net.named_parameters())

            def energy(q: Tensor, v: Tensor) -> Tensor:
                found = functional_call(self.net, named, (torch.cat([q, v]),)).squeeze()
                return found + 2 * v.square().sum()

            def acceleration(q: Tensor, v: Tensor) -> Tensor:
                mass = jacrev(jacrev(energy, 1), 1)(q, v)
                mixed = jacrev(jacrev(energy, 1), 0)(q, v)
                return torch.linalg.solve(mass, grad(energy, 0)(q, v) - mixed @ v)

            return F.mse_loss(vmap(acceleration)(q, v), a)

    return Recipe(module=Lagrange(), inputs=(rows(8, 2), rows(8, 2), rows(8, 2)))


@recipe
def hyperbolic() -> Recipe:
    """Places in a Poincaré ball: a map to it, distances by `acosh`, kept within."""

    class Ball(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.places = mlp(6, 16, 3), nn.Parameter(0.1 * rows(5, 3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            tangent = self.net(x)
            size = tangent.norm(dim=-1, keepdim=True).clamp(min=1e-6)
            z = torch.tanh(size) * tangent / size
            z = z * (0.99 / z.norm(dim=-1, keepdim=True).clamp(min=0.99))
            square = torch.cdist(z, self.places).square()
            room = (1 - z.square().sum(-1))[:, None] * (1 - self.places.square().sum(-1))
            away = torch.acosh((1 + 2 * square / room).clamp(min=1 + 1e-6))
            return F.cross_entropy(-away, y)

    return Recipe(module=Ball(), inputs=(rows(32, 6), classes(5, 32)))


@recipe
def dynamic_filters() -> Recipe:
    """A filter of its own for each image, by grouped convolution; kernels mixed by attention."""

    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernels, self.route = nn.Parameter(0.1 * rows(3, 8, 4, 3, 3)), nn.Linear(4, 3)
            self.head = nn.Linear(8, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            count = len(x)
            share = self.route(x.mean((2, 3))).softmax(1)
            weight = torch.einsum("bk,koihw->boihw", share, self.kernels).flatten(0, 1)
            found = F.conv2d(x.reshape(1, count * 4, 8, 8), weight, padding=1, groups=count)
            return F.cross_entropy(self.head(F.relu(found).view(count, 8, 8, 8).amax((2, 3))), y)

    return Recipe(module=Dynamic(), inputs=(rows(4, 4, 8, 8), classes(5, 4)))


@recipe
def turned_filters() -> Recipe:
    """Filters in four orientations by `rot90`, the largest taken: a network that turning leaves alone."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Parameter(0.2 * rows(6, 3, 3, 3)), nn.Linear(6, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            each = torch.cat([torch.rot90(self.weight, k, (2, 3)) for k in range(4)])
            found = F.conv2d(x, each, padding=1).unflatten(1, (4, 6)).max(1)[0]
            return F.cross_entropy(self.head(F.leaky_relu(found).mean((2, 3))), y)

    return Recipe(module=Turned(), inputs=(rows(4, 3, 8, 8), classes(5, 4)))
