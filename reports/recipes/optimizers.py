"""Every class of `torch.optim`, with two settings each, and one of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from reports.recipes.kit import RECIPES, Recipe, classes, mlp, recipe, rows

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
