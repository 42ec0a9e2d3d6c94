"""Networks as people write them by hand: custom losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.catalogue import Make, Step, images
from models.networks.written import Formula, itself, labels, mlp


def _pairs(net: Any, one: Tensor, other: Tensor) -> Tensor:
    """SimCLR's NT-Xent, over two views of a batch."""
    z = F.normalize(net.head(torch.cat([net.body(one), net.body(other)])), dim=1)
    alike = z @ z.T / 0.5
    alike = alike.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
    return F.cross_entropy(alike, (torch.arange(len(z)) + len(one)) % len(z))


def _captioned(net: Any, picture: Tensor, words: Tensor) -> Tensor:
    """CLIP's symmetric loss, the temperature trained and clamped."""
    a = F.normalize(net.body(picture), dim=-1)
    b = F.normalize(net.words(words).mean(1), dim=-1)
    alike = net.scale.clamp(max=4.6).exp() * a @ b.T
    return (
        F.cross_entropy(alike, torch.arange(len(a)))
        + F.cross_entropy(alike.T, torch.arange(len(a)))
    ) / 2


def _redundant(net: Any, one: Tensor, other: Tensor) -> Tensor:
    """Barlow twins."""
    a, b = net.body(one), net.body(other)
    a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
    off = (a.T @ b / len(a) - torch.eye(a.shape[1])).square()
    return torch.diagonal(off).sum() + 0.005 * (off.sum() - torch.diagonal(off).sum())


def _predicted(net: Any, one: Tensor, other: Tensor) -> Tensor:
    """BYOL: a target network that follows the other, without a gradient."""
    with torch.no_grad():
        for slow, fast in zip(net.slow.parameters(), net.body.parameters(), strict=True):
            slow.lerp_(fast, 0.01)
        goal = net.slow(other)
    return 2 - 2 * F.cosine_similarity(net.head(net.body(one)), goal, dim=-1).mean()


def _q_learned(net: Any, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, done: Tensor) -> Tensor:
    """Double DQN."""
    with torch.no_grad():
        best = net.body(s2).argmax(1, keepdim=True)
        goal = r + 0.99 * (1 - done) * net.slow(s2).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(net.body(s).gather(1, a[:, None]).squeeze(1), goal)


def _clipped(net: Any, s: Tensor, a: Tensor, old: Tensor, gain: Tensor, value: Tensor) -> Tensor:
    """PPO: clipped ratios, a value loss, entropy."""
    h = net.body(s)
    policy = torch.distributions.Categorical(logits=net.policy(h))
    ratio = (policy.log_prob(a) - old).exp()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return (
        F.mse_loss(net.value(h).squeeze(1), value) / 2 - surrogate - 0.01 * policy.entropy().mean()
    )


def _squashed(net: Any, s: Tensor, noise: Tensor) -> Tensor:
    """SAC's actor: a reparametrized Gaussian behind tanh, the lower of two critics."""
    mean, log = net.actor(s).chunk(2, -1)
    log = log.clamp(-5, 2)
    raw = mean + noise * log.exp()
    action = torch.tanh(raw)
    chance = (-0.5 * noise.square() - log - 0.5 * math.log(2 * math.pi)).sum(-1)
    chance = chance - (2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1)
    both = torch.cat([s, action], -1)
    return (0.2 * chance - torch.minimum(net.one(both), net.two(both)).squeeze(-1)).mean()


def _preferred(net: Any, chosen: Tensor, rejected: Tensor) -> Tensor:
    """DPO: log-probabilities under a model and a frozen reference."""

    def said(model: nn.Module, words: Tensor) -> Tensor:
        found = model(words[:, :-1]).log_softmax(-1)
        return found.gather(2, words[:, 1:, None]).squeeze(-1).sum(-1)

    with torch.no_grad():
        base = said(net.slow, chosen) - said(net.slow, rejected)
    return -F.logsigmoid(0.1 * (said(net.body, chosen) - said(net.body, rejected) - base)).mean()


def _views() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 12), torch.randn(8, 12)


LOSSES: dict[str, Make] = {
    "SimCLR": lambda: Step(
        Formula(_pairs, body=mlp(12, 32, 16), head=mlp(16, 16, 8)), _views(), itself, ()
    ),
    "CLIP loss": lambda: Step(
        Formula(
            _captioned, body=mlp(12, 32, 16), words=nn.Embedding(50, 16), scale=torch.tensor(2.66)
        ),
        (torch.randn(8, 12), *labels(50, 8, 6)), itself, (),
    ),
    "Barlow twins": lambda: Step(Formula(_redundant, body=mlp(12, 32, 16)), _views(), itself, ()),
    "BYOL": lambda: Step(
        Formula(
            _predicted, body=mlp(12, 32, 16), head=mlp(16, 32, 16),
            slow=mlp(12, 32, 16).requires_grad_(False),
        ),
        _views(), itself, (),
    ),
    "double DQN": lambda: Step(
        Formula(_q_learned, body=mlp(4, 64, 64, 2), slow=mlp(4, 64, 64, 2).requires_grad_(False)),
        (torch.randn(32, 4), *labels(2, 32), torch.randn(32), torch.randn(32, 4), torch.rand(32).round()),
        itself, (),
    ),
    "PPO": lambda: Step(
        Formula(
            _clipped, body=mlp(4, 64, 64, act=nn.Tanh), policy=nn.Linear(64, 3),
            value=nn.Linear(64, 1),
        ),
        (torch.randn(32, 4), *labels(3, 32), -torch.rand(32), torch.randn(32), torch.randn(32)),
        itself, (),
    ),
    "SAC, actor's step": lambda: Step(
        Formula(_squashed, actor=mlp(6, 64, 4), one=mlp(8, 64, 1), two=mlp(8, 64, 1)),
        (torch.randn(32, 6), torch.randn(32, 2)), itself, (),
    ),
    "DPO": lambda: Step(
        Formula(
            _preferred, body=nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40)),
            slow=nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40)).requires_grad_(False),
        ),
        (*labels(40, 4, 8), *labels(40, 4, 8)), itself, (),
    ),
    "Siamese, triplets": lambda: Step(
        Formula(
            lambda net, a, p, n: F.triplet_margin_loss(net.body(a), net.body(p), net.body(n)),
            body=mlp(12, 32, 16),
        ),
        (torch.randn(8, 12), torch.randn(8, 12), torch.randn(8, 12)), itself, (),
    ),
    "distillation": lambda: Step(
        Formula(
            lambda net, x: (net.student(x), net.teacher(x).detach()),
            student=mlp(12, 16, 5), teacher=mlp(12, 64, 5).requires_grad_(False),
        ),
        (torch.randn(8, 12),),
        lambda out, y: F.cross_entropy(out[0], y)
        + 4 * F.kl_div((out[0] / 2).log_softmax(1), (out[1] / 2).softmax(1), reduction="batchmean"),
        labels(5, 8),
    ),
    "ArcFace": lambda: Step(
        Formula(
            lambda net, x: F.linear(F.normalize(net.body(x)), F.normalize(net.weight)).clamp(-0.99, 0.99),
            body=mlp(12, 32, 16), weight=torch.randn(10, 16),
        ),
        (torch.randn(8, 12),),
        lambda out, y: F.cross_entropy(
            16 * torch.where(F.one_hot(y, 10).bool(), torch.cos(torch.acos(out) + 0.5), out), y
        ),
        labels(10, 8),
    ),
    "focal and dice losses": lambda: Step(
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1)),
        images(16), _overlapping, (torch.rand(2, 1, 16, 16).round(),),
    ),
}  # fmt: skip


def _overlapping(out: Tensor, y: Tensor) -> Tensor:
    p = out.sigmoid()
    each = F.binary_cross_entropy_with_logits(out, y, reduction="none")
    focal = ((1 - torch.where(y > 0, p, 1 - p)) ** 2 * each).mean()
    return focal + 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
