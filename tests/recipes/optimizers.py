"""Every class of `torch.optim`, with two settings each, and some of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.recipes.kit import RECIPES, Recipe, classes, mlp, recipe, rows

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SGD": ({"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "Adam": ({}, {"lr": 1e-2, "amsgrad": True, "weight_decay": 0.01}),
    "AdamW": ({}, {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-6, "maximize": True}),
    "NAdam": ({}, {"decoupled_weight_decay": True, "weight_decay": 0.01}),
    "RAdam": ({}, {"lr": 1e-2, "betas": (0.8, 0.9), "weight_decay": 0.01}),
    "Adamax": ({}, {"lr": 1e-2, "weight_decay": 0.01}),
    "Adagrad": ({}, {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "Adadelta": ({}, {"rho": 0.8, "weight_decay": 0.01}),
    "RMSprop": ({}, {"centered": True, "momentum": 0.9, "alpha": 0.9}),
    "Rprop": ({}, {"etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0)}),
    "ASGD": ({}, {"t0": 1.0, "lambd": 1e-3, "weight_decay": 0.01}),
    "Adafactor": ({}, {"beta2_decay": -0.6, "d": 2.0, "weight_decay": 0.01}),
    "Muon": ({}, {"lr": 0.02, "nesterov": False, "ns_steps": 3}),
    "LBFGS": ({}, {"history_size": 5}),
    "SparseAdam": ({}, {"betas": (0.8, 0.9)}),
}


class Lion(optim.Optimizer):
    """Signs of an average of gradients (Chen et al. 2023, arXiv:2302.06675), as people write it."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                average, (one, two) = state["exp_avg"], group["betas"]
                p.add_(torch.lerp(p.grad, average, one).sign_(), alpha=-group["lr"])
                average.lerp_(p.grad, 1 - two)


def _recipe(kind: Any, settings: dict[str, Any]) -> Recipe:
    """A perceptron of 5 classes on 128 rows; without biases for Muon, which takes matrices alone."""
    net = mlp(6, 16, 5)
    if kind is optim.Muon:
        for layer in (net[0], net[2]):
            layer.register_parameter("bias", None)
    return Recipe(
        module=net,
        inputs=rows(128, 6),
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options={"optimizer": kind(net.parameters(), **settings), "cast_for_cpu": True},
    )


for _name in sorted({*SETTINGS, *(n for n in optim.__all__ if n != "Optimizer")}):
    _kind = getattr(optim, _name)
    if not (isinstance(_kind, type) and issubclass(_kind, optim.Optimizer)):
        continue
    for _settings in SETTINGS.get(_name, ({}, {})):
        _title = ", ".join(f"{key}={value}" for key, value in _settings.items()) or "defaults"
        RECIPES[f"optimizers.{_name}({_title})"] = lambda k=_kind, s=_settings: _recipe(k, s)


@recipe
def lion() -> Recipe:
    return _recipe(Lion, {"lr": 1e-3, "weight_decay": 0.1})


@recipe
def fused_and_foreach() -> Recipe:
    return _recipe(optim.AdamW, {"fused": True})


@recipe
def matrices_by_muon_others_by_adamw() -> Recipe:
    net = mlp(6, 16, 5)
    muon = optim.Muon([p for p in net.parameters() if p.dim() > 1], lr=0.02)
    adamw = optim.AdamW([p for p in net.parameters() if p.dim() < 2])

    def update() -> None:
        muon.step()
        adamw.step()

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)

    options = {"optimizer": update, "cast_for_cpu": True}
    return Recipe(
        module=net, inputs=rows(128, 6), loss=loss, targets=classes(5, 128), options=options
    )


def _by_hand(net: nn.Module, update: Callable[[], object]) -> Recipe:
    """Five classes of 128 rows, and an update written out."""
    return Recipe(
        module=net,
        inputs=rows(128, 6),
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options={"optimizer": update},
    )


class Lamb(optim.Optimizer):
    """Adam whose step is as long as the weights (You et al. 2019, arXiv:1904.00962)."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].mul_(one).add_(p.grad, alpha=1 - one)
                state["v"].mul_(two).addcmul_(p.grad, p.grad, value=1 - two)
                m = state["m"] / (1 - one ** state["step"])
                v = state["v"] / (1 - two ** state["step"])
                way = m / (v.sqrt() + 1e-6) + group["weight_decay"] * p
                size, length = p.norm().clamp(0, 10), way.norm()
                trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
                p.add_(-group["lr"] * trust * way)


@recipe
def lamb() -> Recipe:
    net = mlp(6, 16, 5)
    return _by_hand(net, Lamb(net.parameters()).step)


@recipe
def schedule_free() -> Recipe:
    """An average in place of a schedule; gradients are taken between both (Defazio et al. 2024)."""
    net = mlp(6, 16, 5)
    fast = [p.detach().clone() for p in net.parameters()]
    slow = [p.detach().clone() for p in net.parameters()]
    count = torch.zeros(())

    @torch.no_grad()
    def update() -> None:
        count.add_(1)
        for p, z, x in zip(net.parameters(), fast, slow, strict=True):
            z.sub_(p.grad, alpha=0.1)
            x.lerp_(z, 1 / count)
            p.copy_(torch.lerp(z, x, 0.9))

    return _by_hand(net, update)


@recipe
def slow_gradients_amplified() -> Recipe:
    """Grokfast: an average of gradients is added to them, then AdamW."""
    net = mlp(6, 16, 5)
    averages = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)

    @torch.no_grad()
    def update() -> None:
        for name, p in net.named_parameters():
            averages[name] = averages[name] * 0.98 + p.grad * 0.02
            p.grad = p.grad + averages[name] * 2.0
        optimizer.step()

    return _by_hand(net, update)


@recipe
def gradients_cut_by_unit() -> Recipe:
    """Adaptive clipping of NFNets: by the norm of each unit's weights, then Nesterov's momentum."""
    net = mlp(6, 16, 5)
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    @torch.no_grad()
    def update() -> None:
        for p in net.parameters():
            axes = tuple(range(1, p.dim())) or (0,)
            most = p.norm(dim=axes, keepdim=True).clamp(min=1e-3) * 0.01
            size = p.grad.norm(dim=axes, keepdim=True)
            p.grad.copy_(torch.where(size > most, p.grad * most / size.clamp(min=1e-6), p.grad))
        optimizer.step()

    return _by_hand(net, update)


@recipe
def factors_of_second_moments() -> Recipe:
    """Shampoo, its roots by Newton's iteration, as no eigenvalues are at hand."""
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 5, bias=False))
    sides = [[1e-3 * torch.eye(n) for n in p.shape] for p in net.parameters()]

    def inverse_root(a: Tensor) -> Tensor:
        """Of second order, by coupled Newton-Schulz steps."""
        scale = a.norm()
        y, z, one = a / scale, torch.eye(len(a)), torch.eye(len(a))
        for _ in range(6):
            t = 1.5 * one - 0.5 * z @ y
            y, z = y @ t, t @ z
        return z / scale.sqrt()

    @torch.no_grad()
    def update() -> None:
        for p, (left, right) in zip(net.parameters(), sides, strict=True):
            left.add_(p.grad @ p.grad.T)
            right.add_(p.grad.T @ p.grad)
            p.sub_(0.05 * inverse_root(left) @ p.grad @ inverse_root(right))

    return _by_hand(net, update)
