"""What loops run between the backward pass and the next step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.recipes.kit import Recipe, classes, cnn, mlp, recipe, rows

Loop = Callable[[nn.Module], Any]
"""Makes what a loop runs behind `loss.backward()` for a module."""


def _trained(loop: Loop, module: nn.Module | None = None, **options: Any) -> Recipe:
    """A perceptron of 5 classes on 128 rows, and its loop."""
    net = mlp(6, 16, 5) if module is None else module
    return Recipe(
        module=net,
        inputs=rows(128, 6),
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options={"optimizer": loop(net), **options},
    )


@recipe
def clip_by_norm() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.AdamW(net.parameters(), lr=1e-3)

        def update() -> None:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()

        return update

    return _trained(loop)


@recipe
def clip_by_value() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def update() -> None:
            nn.utils.clip_grad_value_(net.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()

        return update

    return _trained(loop)


@recipe
def clip_each_unit() -> Recipe:
    """Adaptive clipping, as of normalizer-free networks."""

    def loop(net: nn.Module) -> Any:
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def update() -> None:
            for p in net.parameters():
                axes = tuple(range(1, p.dim())) or (0,)
                most = 0.01 * p.detach().norm(dim=axes, keepdim=True).clamp(min=1e-3)
                size = p.grad.norm(dim=axes, keepdim=True).clamp(min=1e-6)
                p.grad.copy_(torch.where(size > most, p.grad * most / size, p.grad))
            optimizer.step()

        return update

    return _trained(loop)


@recipe
def gradient_norm_as_output() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.Adam(net.parameters())

        def update() -> dict[str, Tensor]:
            grads = [p.grad for p in net.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(grads)
            optimizer.step()
            return {"grad_norm": norm, "weight_norm": net[0].weight.norm()}

        return update

    return _trained(loop)


@recipe
def accumulation() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.AdamW(net.parameters(), lr=1e-3)
        sums = [torch.zeros_like(p) for p in net.parameters()]
        count = torch.zeros(())

        def update() -> None:
            count.add_(1)
            for p, total in zip(net.parameters(), sums, strict=True):
                total.add_(p.grad, alpha=0.25)
            if count % 4 == 0:
                for p, total in zip(net.parameters(), sums, strict=True):
                    p.grad.copy_(total)
                    total.zero_()
                optimizer.step()

        return update

    return _trained(loop)


@recipe
def accumulation_with_a_python_count() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        sums = [torch.zeros_like(p) for p in net.parameters()]
        seen = {"steps": 0}

        def update() -> None:
            seen["steps"] += 1
            for p, total in zip(net.parameters(), sums, strict=True):
                total.add_(p.grad)
            if seen["steps"] % 2 == 0:
                for p, total in zip(net.parameters(), sums, strict=True):
                    p.grad.copy_(total / 2)
                    total.zero_()
                optimizer.step()

        return update

    return _trained(loop)


def _averaged(make: Callable[[nn.Module], AveragedModel]) -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.AdamW(net.parameters(), lr=1e-3)
        average = make(net)

        def update() -> None:
            optimizer.step()
            average.update_parameters(net)

        return update

    return _trained(loop)


@recipe
def ema() -> Recipe:
    return _averaged(lambda net: AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99)))


@recipe
def ema_by_hand_with_warm_up() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        shadow = copy.deepcopy(net).requires_grad_(False)
        count = torch.zeros(())

        @torch.no_grad()
        def update() -> None:
            optimizer.step()
            count.add_(1)
            decay = torch.minimum(torch.tensor(0.999), (1 + count) / (10 + count))
            for kept, p in zip(shadow.parameters(), net.parameters(), strict=True):
                kept.data = kept.data * decay + p.data * (1 - decay)

        return update

    return _trained(loop)


@recipe
def swa() -> Recipe:
    return _averaged(AveragedModel)


@recipe
def ema_of_batch_norm() -> Recipe:
    net = cnn()
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    def update() -> None:
        optimizer.step()
        average.update_parameters(net)

    return Recipe(
        module=net,
        inputs=rows(8, 3, 8, 8),
        loss=F.cross_entropy,
        targets=classes(5, 8),
        options={"optimizer": update},
    )


@recipe
def grad_scaler() -> Recipe:
    net = mlp(6, 16, 5)
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scaler.scale(torch.zeros(()))  # makes its tensors

    def loss(logits: Tensor, target: Tensor, scale: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), target) * scale

    def update() -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Recipe(
        module=net,
        inputs=rows(128, 6),
        loss=loss,
        targets={"target": classes(5, 128), "scale": scaler._scale},
        options={"optimizer": update, "autocast": torch.float16},
    )


def _scheduled(make: Callable[[optim.Optimizer], Any]) -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.AdamW(net.parameters(), lr=1e-2)
        scheduler = make(optimizer)

        def update() -> None:
            optimizer.step()
            scheduler.step()

        return update

    return _trained(loop)


@recipe
def cosine_in_the_graph() -> Recipe:
    return _scheduled(lambda o: CosineAnnealingLR(o, 100))


@recipe
def step_decay_in_the_graph() -> Recipe:
    return _scheduled(lambda o: StepLR(o, 2, 0.5))


@recipe
def linear_warm_up() -> Recipe:
    return _scheduled(lambda o: LinearLR(o, 0.1, total_iters=10))


@recipe
def warm_up_and_cosine() -> Recipe:
    """As transformers writes it, by a function of the step."""

    def factor(step: int) -> float:
        if step < 3:
            return step / 3
        return 0.5 * (1 + math.cos(math.pi * (step - 3) / 97))

    return _scheduled(lambda o: LambdaLR(o, factor))


@recipe
def one_cycle() -> Recipe:
    return _scheduled(lambda o: OneCycleLR(o, 0.1, total_steps=20))


@recipe
def warm_up_by_a_tensor() -> Recipe:
    def loop(net: nn.Module) -> Any:
        lr = torch.tensor(1e-3)
        count = torch.zeros(())

        @torch.no_grad()
        def update() -> None:
            count.add_(1)
            now = lr * torch.clamp(count / 5, max=1.0)
            for p in net.parameters():
                p.sub_(now * p.grad)

        return update

    return _trained(loop)


@recipe
def skips_what_is_not_finite() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.AdamW(net.parameters(), lr=1e-3)

        def update() -> dict[str, Tensor]:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()
            return {"grad_norm": norm}

        return update

    return _trained(loop)


@recipe
def gradient_centralization() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.AdamW(net.parameters(), lr=1e-3)

        def update() -> None:
            for p in net.parameters():
                if p.grad is not None and p.dim() > 1:
                    p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))
            optimizer.step()

        return update

    return _trained(loop)


@recipe
def lookahead() -> Recipe:
    def loop(net: nn.Module) -> Any:
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        slow = [p.detach().clone() for p in net.parameters()]
        count = torch.zeros(())

        @torch.no_grad()
        def update() -> None:
            optimizer.step()
            count.add_(1)
            if count % 2 == 0:
                for kept, p in zip(slow, net.parameters(), strict=True):
                    kept.lerp_(p, 0.5)
                    p.copy_(kept)

        return update

    return _trained(loop)


@recipe
def layer_wise_decay_of_the_rate() -> Recipe:
    def loop(net: nn.Module) -> Any:
        layers = [layer for layer in net.children() if isinstance(layer, nn.Linear)]
        groups = [
            {"params": list(layer.parameters()), "lr": 1e-3 * 0.5 ** (len(layers) - i)}
            for i, layer in enumerate(layers)
        ]
        return optim.AdamW(groups)

    return _trained(loop, mlp(6, 16, 16, 5))


@recipe
def two_optimizers() -> Recipe:
    def loop(net: nn.Module) -> Any:
        assert isinstance(net, nn.Sequential)
        first, second = optim.Adam(net[0].parameters()), optim.SGD(net[2].parameters(), lr=0.1)

        def update() -> None:
            first.step()
            second.step()

        return update

    return _trained(loop)


@recipe
def weights_kept_short() -> Recipe:
    """Max-norm after each step, and weights of a critic clipped."""

    def loop(net: nn.Module) -> Any:
        optimizer = optim.RMSprop(net.parameters(), lr=1e-3)

        @torch.no_grad()
        def update() -> None:
            optimizer.step()
            for p in net.parameters():
                p.clamp_(-0.3, 0.3)
                if p.dim() > 1:
                    p.copy_(torch.renorm(p, 2, 0, 0.5))

        return update

    return _trained(loop)


@recipe
def sign_descent() -> Recipe:
    def loop(net: nn.Module) -> Any:
        @torch.no_grad()
        def update() -> None:
            for p in net.parameters():
                if p.grad is not None:
                    p.data = p.data - 1e-3 * p.grad.sign()

        return update

    return _trained(loop)


@recipe
def planners_own_adamw() -> Recipe:
    return _trained(lambda net: "adamw")
