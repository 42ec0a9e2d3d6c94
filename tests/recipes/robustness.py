"""Steps that hold beyond their rows, or learn otherwise: environments, groups, labels of its own, flat
minima, privacy, domains, gradients of one's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows


@recipe
def invariant_risk() -> Recipe:
    """IRM: the gradient by a scale that is 1, of each environment."""

    class Invariant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            risk, penalty = torch.zeros(()), torch.zeros(())
            for a, b in zip(x, y, strict=True):
                scale = torch.ones((), requires_grad=True)
                loss = F.binary_cross_entropy_with_logits(self.net(a).squeeze(-1) * scale, b)
                (slope,) = torch.autograd.grad(loss, scale, create_graph=True)
                risk, penalty = risk + loss, penalty + slope**2
            return risk + 10 * penalty

    return Recipe(module=Invariant(), inputs=(rows(3, 32, 6), classes(2, 3, 32).float()))


@recipe
def groups_weighted_by_their_loss() -> Recipe:
    """Group DRO: weights that the step moves, by the mean loss of each group that is there."""

    class Groups(nn.Module):
        weights: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)
            self.register_buffer("weights", torch.full((4,), 0.25))

        def forward(self, x: Tensor, y: Tensor, group: Tensor) -> Tensor:
            each = F.cross_entropy(self.net(x), y, reduction="none")
            means = torch.zeros(4).scatter_reduce(0, group, each, "mean", include_self=False)
            with torch.no_grad():
                self.weights.mul_(torch.exp(0.1 * means))
                self.weights.div_(self.weights.sum())
            return (means * self.weights.clone()).sum()

    return Recipe(module=Groups(), inputs=(rows(64, 6), classes(5, 64), classes(3, 64)))


@recipe
def pseudo_labels() -> Recipe:
    """FixMatch: labels where a weak view is sure, none of them at first."""

    class Semi(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(self, x: Tensor, y: Tensor, weak: Tensor, strong: Tensor) -> Tensor:
            with torch.no_grad():
                sure, label = self.net(weak).softmax(1).max(1)
            each = F.cross_entropy(self.net(strong), label, reduction="none")
            return F.cross_entropy(self.net(x), y) + (each * (sure > 0.3)).mean()

    return Recipe(module=Semi(), inputs=(rows(32, 6), classes(5, 32), rows(64, 6), rows(64, 6)))


@recipe
def flat_minima() -> Recipe:
    """SAM: the loss at parameters moved along their gradient, by `functional_call`."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            named = dict(self.net.named_parameters())
            loss = F.cross_entropy(self.net(x), y)
            slopes = torch.autograd.grad(loss, list(named.values()))
            size = torch.stack([s.norm() for s in slopes]).norm() + 1e-12
            moved = {
                n: p + 0.05 * s / size for (n, p), s in zip(named.items(), slopes, strict=True)
            }
            return F.cross_entropy(functional_call(self.net, moved, (x,)), y)

    return Recipe(module=Flat(), inputs=(rows(64, 6), classes(5, 64)))


@recipe
def gradients_of_each_row() -> Recipe:
    """Private training: `vmap` of `grad`, each row's gradient cut to a norm, noise as an input."""

    class Private(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(4, 8, 3)

        def forward(self, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
            named = dict(self.net.named_parameters())

            def of_one(held: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
                return F.cross_entropy(functional_call(self.net, held, (a[None],)), b[None])

            fixed = {n: p.detach() for n, p in named.items()}
            each = vmap(grad(of_one), in_dims=(None, 0, 0))(fixed, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
            share = (1 / (norms + 1e-6)).clamp(max=1)
            total, at = torch.zeros(()), 0
            for name, p in named.items():
                mean = torch.einsum("b,b...->...", share, each[name]) / len(x)
                drawn = noise[at : at + p.numel()].view_as(p)
                total, at = total + (p * (mean + 0.01 * drawn)).sum(), at + p.numel()
            return total

    count = sum(p.numel() for p in mlp(4, 8, 3).parameters())
    return Recipe(module=Private(), inputs=(rows(16, 4), classes(3, 16), rows(count)))


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.share * grads[0], None


@recipe
def domains_made_alike() -> Recipe:
    """A gradient turned around before the classifier of domains; labels of one domain alone."""

    class Domains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.label, self.domain = mlp(6, 16, 8), nn.Linear(8, 5), mlp(8, 8, 1)

        def forward(self, x: Tensor, y: Tensor, domain: Tensor) -> Tensor:
            z = self.net(x)
            each = F.cross_entropy(self.label(z), y, ignore_index=-1, reduction="none")
            guess = self.domain(_Reversed.apply(z, 0.3)).squeeze(1)
            return each.sum() / (y >= 0).sum() + F.binary_cross_entropy_with_logits(guess, domain)

    y = classes(5, 32)
    y[16:] = -1
    return Recipe(module=Domains(), inputs=(rows(32, 6), y, (y < 0).float()))


class _Aligned(torch.autograd.Function):
    """A linear map whose gradient goes back through another matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, back = ctx.saved_tensors
        return grads[0] @ back, grads[0].T @ x, None


@recipe
def feedback_alignment() -> Recipe:
    class Aligned(nn.Module):
        back: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 16), nn.Parameter(0.2 * rows(5, 16))
            self.register_buffer("back", 0.2 * rows(5, 16))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            return F.cross_entropy(_Aligned.apply(h, self.second, self.back), y)  # type: ignore[arg-type]

    return Recipe(module=Aligned(), inputs=(rows(32, 6), classes(5, 32)))


@recipe
def layers_that_train_alone() -> Recipe:
    """Forward-forward: each layer's goodness on good and bad rows, detached from the next."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 16)])

        def forward(self, good: Tensor, bad: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            total, each = torch.zeros(()), {}
            for i, layer in enumerate(self.layers):
                good, bad = (
                    F.relu(layer(x / (x.norm(dim=1, keepdim=True) + 1e-4))) for x in (good, bad)
                )
                loss = F.softplus(
                    torch.cat([2 - good.square().mean(1), bad.square().mean(1) - 2])
                ).mean()
                total, each[f"loss_{i}"] = total + loss, loss.detach()
                good, bad = good.detach(), bad.detach()
            return total, each

    return Recipe(module=Alone(), inputs=(rows(16, 6), rows(16, 6)))
