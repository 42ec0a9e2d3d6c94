"""Likelihoods: processes, filters, hidden states, flows, weighted samples, weights with a spread."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows


@recipe
def gaussian_process() -> Recipe:
    """A marginal likelihood by a Cholesky factor, on learned features."""

    class Process(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.logs = mlp(6, 16, 2), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z, (length, scale, noise) = self.net(x), self.logs.exp()
            square = (z[:, None] - z).square().sum(-1)
            kernel = scale * torch.exp(-square / (2 * length**2))
            factor = torch.linalg.cholesky(kernel + (0.1 + noise) * torch.eye(len(x)))
            weight = torch.cholesky_solve(y[:, None], factor)
            return 0.5 * (y @ weight).squeeze() + factor.diagonal().log().sum()

    return Recipe(module=Process(), inputs=(rows(12, 6), rows(12)))


@recipe
def kalman_filter() -> Recipe:
    """A filter through time with learned dynamics: predictions, gains, the likelihood of what is seen."""

    class Kalman(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.c = nn.Parameter(0.9 * torch.eye(3)), nn.Parameter(rows(2, 3))
            self.q, self.r = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))

        def forward(self, seen: Tensor) -> Tensor:
            mean, spread = torch.zeros(len(seen), 3), torch.eye(3)
            total = torch.zeros(())
            for t in range(seen.shape[1]):
                mean, spread = mean @ self.a.T, self.a @ spread @ self.a.T + self.q.exp().diag()
                off = seen[:, t] - mean @ self.c.T
                cover = self.c @ spread @ self.c.T + self.r.exp().diag()
                gain = torch.linalg.solve(cover, self.c @ spread).T
                solved = torch.linalg.solve(cover, off.T).T
                total = total + (off * solved).sum(1).mean() + torch.linalg.slogdet(cover)[1]
                mean, spread = mean + off @ gain.T, (torch.eye(3) - gain @ self.c) @ spread
            return total

    return Recipe(module=Kalman(), inputs=rows(4, 6, 2))


@recipe
def hidden_states() -> Recipe:
    """The forward algorithm of a hidden Markov model, in logarithms, with lengths."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.move = nn.Parameter(rows(4)), nn.Parameter(rows(4, 4))
            self.show = nn.Parameter(rows(4, 6))

        def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
            move, show = self.move.log_softmax(1), self.show.log_softmax(1)
            state = self.start.log_softmax(0) + show[:, words[:, 0]].T
            for t in range(1, words.shape[1]):
                moved = torch.logsumexp(state[:, :, None] + move, 1) + show[:, words[:, t]].T
                state = torch.where((t < lengths)[:, None], moved, state)
            return -(torch.logsumexp(state, 1) / lengths).mean()

    lengths = torch.tensor([6, 4, 5, 2])
    return Recipe(module=Hidden(), inputs=(classes(6, 4, 6), lengths))


@recipe
def spline_flow() -> Recipe:
    """Monotone rational-quadratic splines: bins by `searchsorted`, parameters by `gather`."""

    def spline(x: Tensor, wide: Tensor, high: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        wide, high = (0.01 + 0.94 * z.softmax(-1) for z in (wide, high))
        slope = F.pad(0.01 + F.softplus(slope), (1, 1), value=1.0)
        across, up = (F.pad(z.cumsum(-1), (1, 0)) * 6 - 3 for z in (wide, high))
        inside = (x > -3) & (x < across[..., -1])
        z = torch.where(inside, x, 0.0)
        at = (torch.searchsorted(across.detach(), z[..., None].detach()) - 1).clamp(0, 5)

        def here(table: Tensor, further: int = 0) -> Tensor:
            return table.gather(-1, at + further).squeeze(-1)

        left, low, w, h = here(across), here(up), here(wide) * 6, here(high) * 6
        first, last, rise = here(slope), here(slope, 1), h / w
        t = (z - left) / w
        bend = rise + (first + last - 2 * rise) * t * (1 - t)
        y = low + h * (rise * t**2 + first * t * (1 - t)) / bend
        grade = last * t**2 + 2 * rise * t * (1 - t) + first * (1 - t) ** 2
        logs = 2 * rise.log() + grade.log() - 2 * bend.log()
        return torch.where(inside, y, x), torch.where(inside, logs, 0.0)

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(2, 16, 2 * 17)

        def forward(self, x: Tensor) -> Tensor:
            a, b = x.chunk(2, 1)
            made, logs = spline(b, *self.net(a).unflatten(1, (2, 17)).split([6, 6, 5], -1))
            return (0.5 * made.square() - logs).sum(1).mean()

    return Recipe(module=Flow(), inputs=rows(64, 4))


@recipe
def weighted_samples() -> Recipe:
    """IWAE: the logarithm of a mean of weights, noise of every sample an input."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(6, 16, 6), mlp(3, 16, 6)

        def forward(self, x: Tensor, noise: Tensor) -> Tensor:
            mean, log_scale = self.encode(x).chunk(2, 1)
            z = mean + noise * log_scale.exp()
            q = torch.distributions.Normal(mean, log_scale.exp()).log_prob(z).sum(-1)
            p = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
            seen = -F.mse_loss(self.decode(z), x.expand(len(noise), -1, -1), reduction="none").sum(
                -1
            )
            return -(torch.logsumexp(seen + p - q, 0) - math.log(len(noise))).mean()

    return Recipe(module=Weighted(), inputs=(rows(16, 6), rows(5, 16, 3)))


@recipe
def weights_with_spread() -> Recipe:
    """Bayes by backprop: local reparameterization, a mixture as prior."""

    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.rho = (
                nn.Parameter(0.1 * rows(5, 6)),
                nn.Parameter(torch.full((5, 6), -3.0)),
            )

        def forward(self, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
            scale = F.softplus(self.rho)
            middle, spread = x @ self.mean.T, (x.square() @ scale.square().T).clamp(min=1e-12)
            logits = middle + spread.sqrt() * noise
            wide, thin = (
                torch.distributions.Normal(0.0, s).log_prob(self.mean) for s in (1.0, 0.1)
            )
            prior = torch.logaddexp(wide, thin) - math.log(2)
            return F.cross_entropy(logits, y) - (prior + scale.log()).sum() / 1000

    return Recipe(module=Spread(), inputs=(rows(32, 6), classes(5, 32), rows(32, 5)))


@recipe
def consistency() -> Recipe:
    """A consistency model: two noise levels of one sample, the lower through an averaged copy."""

    class Consistent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.kept = mlp(7, 16, 6), mlp(7, 16, 6).requires_grad_(False)

        def made(self, net: nn.Module, x: Tensor, s: Tensor) -> Tensor:
            skip, into = 0.25 / ((s - 0.002) ** 2 + 0.25), 1 / (s**2 + 0.25).sqrt()
            out = (s - 0.002) * 0.5 * into
            return skip * x + out * net(torch.cat([x * into, s.log() / 4], 1))

        def forward(self, x: Tensor, noise: Tensor, level: Tensor) -> Tensor:
            lower = (0.002 + 0.8 * level)[:, None]
            higher = lower * 1.25
            with torch.no_grad():
                target = self.made(self.kept, x + lower * noise, lower)
            off = self.made(self.net, x + higher * noise, higher) - target
            return ((off.square().sum(1) + 0.01**2).sqrt() - 0.01).mean()

    net = Consistent()
    optimizer = optim.RAdam(net.net.parameters(), lr=1e-3)

    @torch.no_grad()
    def update() -> None:
        optimizer.step()
        torch._foreach_lerp_(list(net.kept.parameters()), list(net.net.parameters()), 0.05)

    inputs = (rows(32, 6), rows(32, 6), torch.rand(32))
    return Recipe(module=net, inputs=inputs, options={"optimizer": update})


@recipe
def halting() -> Recipe:
    """PonderNet: the chance to stop after each step, and its distance from a geometric one."""

    class Ponder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head, self.stop = nn.GRUCell(6, 8), nn.Linear(8, 5), nn.Linear(8, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h, left, total, chances = (
                torch.zeros(len(x), 8),
                torch.ones(len(x)),
                torch.zeros(()),
                [],
            )
            for n in range(4):
                h = self.cell(x, h)
                stop = self.stop(h).sigmoid().squeeze(1) if n < 3 else torch.ones(len(x))
                chances.append(left * stop)
                left = left * (1 - stop)
                total = (
                    total
                    + (chances[-1] * F.cross_entropy(self.head(h), y, reduction="none")).mean()
                )
            wanted = 0.3 * 0.7 ** torch.arange(4)
            made = torch.stack(chances, 1).clamp(min=1e-8).log()
            return total + 0.01 * F.kl_div(made, wanted / wanted.sum(), reduction="batchmean")

    return Recipe(module=Ponder(), inputs=(rows(32, 6), classes(5, 32)))
