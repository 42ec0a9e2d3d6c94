"""Agents and differential equations: steps whose loss is no distance to a label."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.distributions import Categorical, Normal

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows


class _Actor(nn.Module):
    """Logits of 4 actions and a value of each state."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.policy, self.value = mlp(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.net(states))
        return self.policy(h), self.value(h).squeeze(-1)


@recipe
def policy_gradient() -> Recipe:
    def loss(logits: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
        advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
        return -(Categorical(logits=logits).log_prob(actions) * advantage).mean()

    return Recipe(
        module=mlp(6, 16, 4), inputs=rows(64, 6), loss=loss, targets=(classes(4, 64), rows(64))
    )


@recipe
def ppo() -> Recipe:
    """Clipped, with a value that is clipped too, entropy, and clipping by norm."""
    net = _Actor()
    optimizer = optim.Adam(net.parameters(), lr=3e-4, eps=1e-5)

    def loss(found: tuple[Tensor, Tensor], batch: dict[str, Tensor]) -> Tensor:
        logits, values = found
        policy = Categorical(logits=logits)
        ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
        gain = batch["advantages"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        clipped = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
        near = batch["values"] + (values - batch["values"]).clamp(-0.2, 0.2)
        off = torch.max((values - batch["returns"]) ** 2, (near - batch["returns"]) ** 2)
        return clipped + 0.25 * off.mean() - 0.01 * policy.entropy().mean()

    def update() -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    names = ("advantages", "values", "returns")
    batch = {"actions": classes(4, 64), "log_probs": -torch.rand(64) - 1}
    batch |= {name: rows(64) for name in names}
    return Recipe(
        module=net,
        inputs=rows(64, 6),
        loss=loss,
        targets=(batch,),
        options={"optimizer": update},
    )


@recipe
def grpo() -> Recipe:
    """Groups of answers to one question, each token by its group's advantage, near a kept policy."""

    def loss(logits: Tensor, ids: Tensor, old: Tensor, kept: Tensor, reward: Tensor) -> Tensor:
        log = logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
        groups = reward.view(-1, 4)
        gain = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        gain = gain.view(-1, 1)
        ratio = (log - old).exp()
        per_token = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        kl = (kept - log).exp() - (kept - log) - 1
        return -(per_token - 0.04 * kl).mean()

    return Recipe(
        module=mlp(6, 16, 10),
        inputs=rows(8, 5, 6),
        loss=loss,
        targets=(classes(10, 8, 5), -torch.rand(8, 5) - 2, -torch.rand(8, 5) - 2, rows(8)),
    )


@recipe
def preference_pairs() -> Recipe:
    """DPO, with the kept policy in the module."""

    class Dpo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy, self.kept = mlp(6, 16, 10), mlp(6, 16, 10).requires_grad_(False)

        def forward(self, x: Tensor, chosen: Tensor, rejected: Tensor) -> Tensor:
            def gap(net: nn.Module) -> Tensor:
                log = net(x).log_softmax(-1)
                pick = [log.gather(-1, i[..., None]).sum((1, 2)) for i in (chosen, rejected)]
                return pick[0] - pick[1]

            with torch.no_grad():
                kept = gap(self.kept)
            return -F.logsigmoid(0.1 * (gap(self.policy) - kept)).mean()

    inputs = (rows(16, 5, 6), classes(10, 16, 5), classes(10, 16, 5))
    return Recipe(module=Dpo(), inputs=inputs)


@recipe
def dqn() -> Recipe:
    """Double, with a target network that follows softly in the update."""

    class Dqn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.target = mlp(6, 16, 4), mlp(6, 16, 4).requires_grad_(False)

        def forward(self, s: Tensor, a: Tensor, r: Tensor, after: Tensor, done: Tensor) -> Tensor:
            q = self.net(s).gather(1, a[:, None]).squeeze(1)
            with torch.no_grad():
                best = self.net(after).argmax(1, keepdim=True)
                wanted = r + 0.99 * (1 - done) * self.target(after).gather(1, best).squeeze(1)
            return F.smooth_l1_loss(q, wanted)

    net = Dqn()
    optimizer = optim.AdamW(net.net.parameters(), lr=1e-3, amsgrad=True)

    def update() -> None:
        nn.utils.clip_grad_value_(net.net.parameters(), 100)
        optimizer.step()
        for kept, p in zip(net.target.parameters(), net.net.parameters(), strict=True):
            kept.data.copy_(0.005 * p.data + 0.995 * kept.data)

    inputs = (rows(64, 6), classes(4, 64), rows(64), rows(64, 6), classes(2, 64).float())
    return Recipe(module=net, inputs=inputs, options={"optimizer": update})


@recipe
def soft_actor() -> Recipe:
    """The actor's half of SAC: a squashed sample of noise that is an input, judged by a kept critic."""

    class Sac(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = mlp(6, 16, 4), mlp(8, 16, 1).requires_grad_(False)

        def forward(self, s: Tensor, noise: Tensor) -> Tensor:
            mean, log_std = self.actor(s).chunk(2, -1)
            policy = Normal(mean, log_std.clamp(-5, 2).exp())
            raw = mean + policy.stddev * noise
            a = raw.tanh()
            log = (policy.log_prob(raw) - (1 - a**2 + 1e-6).log()).sum(-1)
            return (0.2 * log - self.critic(torch.cat([s, a], 1)).squeeze(1)).mean()

    return Recipe(module=Sac(), inputs=(rows(64, 6), rows(64, 2)))


@recipe
def physics_informed() -> Recipe:
    """Burgers' equation: first and second derivatives by place and time, and an initial value."""

    class Pinn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
            )
            self.nu = nn.Parameter(torch.tensor(0.01))

        def forward(self, x: Tensor, t: Tensor, x0: Tensor) -> Tensor:
            x, t = x.requires_grad_(True), t.requires_grad_(True)
            u = self.net(torch.cat([x, t], 1))
            u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
            (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
            start = self.net(torch.cat([x0, torch.zeros_like(x0)], 1)) + (math.pi * x0).sin()
            return (u_t + u * u_x - self.nu * u_xx).square().mean() + start.square().mean()

    return Recipe(module=Pinn(), inputs=(rows(64, 1), torch.rand(64, 1), rows(32, 1)))


@recipe
def derivatives_by_functional_transforms() -> Recipe:
    """`torch.func`: a Jacobian of each row by vmap."""

    class Jacobian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

        def forward(self, x: Tensor) -> Tensor:
            jacobian = torch.func.vmap(torch.func.jacrev(self.net))(x)
            return jacobian.diagonal(dim1=1, dim2=2).sum(-1).square().mean()

    return Recipe(module=Jacobian(), inputs=rows(32, 3))


@recipe
def neural_ode() -> Recipe:
    """Runge-Kutta steps, unrolled."""

    class Ode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

        def forward(self, x: Tensor) -> Tensor:
            h = 0.1
            for _ in range(3):
                a = self.net(x)
                b = self.net(x + h / 2 * a)
                c = self.net(x + h / 2 * b)
                x = x + h / 6 * (a + 2 * b + 2 * c + self.net(x + h * c))
            return x

    return Recipe(module=Ode(), inputs=rows(64, 4), loss=F.mse_loss, targets=rows(64, 4))


@recipe
def meta_learning() -> Recipe:
    """MAML: an inner step by `functional_call`, differentiated through."""

    class Maml(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(self, x: Tensor, y: Tensor, x_new: Tensor, y_new: Tensor) -> Tensor:
            named = dict(self.net.named_parameters())
            inner = F.cross_entropy(torch.func.functional_call(self.net, named, (x,)), y)
            slopes = torch.autograd.grad(inner, list(named.values()), create_graph=True)
            fast = {n: p - 0.1 * s for (n, p), s in zip(named.items(), slopes, strict=True)}
            return F.cross_entropy(torch.func.functional_call(self.net, fast, (x_new,)), y_new)

    inputs = (rows(32, 6), classes(5, 32), rows(32, 6), classes(5, 32))
    return Recipe(module=Maml(), inputs=inputs)


@recipe
def returns_corrected_for_the_policy() -> Recipe:
    """IMPALA: V-trace targets in a loop backwards over time, truncated weights."""

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.policy, self.value = mlp(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

        def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
            h = F.gelu(self.net(states))
            return self.policy(h).log_softmax(-1), self.value(h).squeeze(-1)

    def loss(found: tuple[Tensor, Tensor], batch: dict[str, Tensor]) -> Tensor:
        (logs, values), (actions, old, reward, ended) = found, batch.values()
        log = logs[:-1].gather(-1, actions[..., None]).squeeze(-1)
        with torch.no_grad():
            rho, keep = (log - old).exp().clamp(max=1), 0.99 * (1 - ended)
            off = rho * (reward + keep * values[1:] - values[:-1])
            carried, targets = torch.zeros_like(reward[0]), []
            for t in reversed(range(len(reward))):
                carried = off[t] + keep[t] * rho[t] * carried
                targets.append(values[t] + carried)
            target = torch.stack(targets[::-1])
            after = torch.cat([target[1:], values[-1:]])
            gain = rho * (reward + keep * after - values[:-1])
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return -(log * gain).mean() + 0.5 * F.mse_loss(values[:-1], target) - 0.01 * entropy

    steps = (5, 8)
    batch = {
        "actions": classes(4, *steps), "log_probs": -torch.rand(*steps) - 1, "reward": rows(*steps),
        "ended": (torch.rand(*steps) < 0.1).float(),
    }  # fmt: skip
    return Recipe(module=Actor(), inputs=rows(6, 8, 6), loss=loss, targets=(batch,))


@recipe
def values_as_distributions() -> Recipe:
    """C51: the target's atoms are moved, and their chances scattered over the two nearest places."""

    class Atoms(nn.Module):
        at: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net, self.kept = mlp(6, 16, 3 * 21), mlp(6, 16, 3 * 21).requires_grad_(False)
            self.register_buffer("at", torch.linspace(-5, 5, 21))

        def forward(
            self, s: Tensor, a: Tensor, reward: Tensor, later: Tensor, ended: Tensor
        ) -> Tensor:
            count, every = len(s), torch.arange(len(s))
            with torch.no_grad():
                chances = self.kept(later).view(count, 3, 21).softmax(-1)
                best = (chances * self.at).sum(-1).argmax(1)
                moved = (reward[:, None] + 0.99 * (1 - ended[:, None]) * self.at).clamp(-5, 5)
                place = (moved + 5) / 0.5
                low, high = place.floor().long(), place.ceil().long()
                low = low - ((high > 0) & (low == high)).long()
                high = high + ((low < 20) & (low == high)).long()
                share, target = chances[every, best], torch.zeros(count, 21)
                target.scatter_add_(1, low.clamp(0, 20), share * (high - place))
                target.scatter_add_(1, high.clamp(0, 20), share * (place - low))
            logs = self.net(s).view(count, 3, 21).log_softmax(-1)[every, a]
            return -(target * logs).sum(1).mean()

    inputs = (rows(32, 6), classes(3, 32), rows(32), rows(32, 6), (torch.rand(32) < 0.2).float())
    return Recipe(module=Atoms(), inputs=inputs)


@recipe
def quantiles_of_returns() -> Recipe:
    """Implicit quantiles: cosines of drawn fractions, and Huber's loss of every pair."""

    class Quantiles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state, self.fraction, self.head = mlp(6, 16), nn.Linear(8, 16), mlp(16, 16, 1)

        def forward(self, x: Tensor, tau: Tensor, y: Tensor) -> Tensor:
            waves = torch.cos(math.pi * torch.arange(8) * tau[..., None])
            h = self.state(x)[:, None] * F.relu(self.fraction(waves))
            off = y[:, None] - self.head(h)
            weight = (tau[..., None] - (off.detach() < 0).float()).abs()
            each = F.huber_loss(off, torch.zeros_like(off), reduction="none", delta=1.0)
            return (weight * each).sum(1).mean()

    return Recipe(module=Quantiles(), inputs=(rows(32, 6), torch.rand(32, 5), rows(32, 7)))
