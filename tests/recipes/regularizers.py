"""What keeps a network from learning its examples by heart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.nn.utils import parametrizations

from tests.recipes.kit import Encoder, Recipe, classes, cnn, mlp, recipe, rows


def _classifier(module: nn.Module, **options: Any) -> Recipe:
    """5 classes of 128 rows."""
    return Recipe(
        module=module,
        inputs=rows(128, 6),
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options=options,
    )


def _whole(module: nn.Module, **options: Any) -> Recipe:
    """A module that takes rows and classes, and returns the loss."""
    inputs = {"x": rows(128, 6), "y": classes(5, 128)}
    return Recipe(module=module, inputs=inputs, options=options)


class _Net(nn.Module):
    """Holds a perceptron of 5 classes; its subclasses say what the loss is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 16, 16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError


@recipe
def decay_by_groups() -> Recipe:
    net = mlp(6, 16, 5)
    weights = [p for n, p in net.named_parameters() if n.endswith("weight")]
    biases = [p for n, p in net.named_parameters() if n.endswith("bias")]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    return _classifier(net, optimizer=optim.SGD(groups, lr=0.1, momentum=0.9))


@recipe
def no_decay_for_norms_and_biases() -> Recipe:
    """By the kind of module, as minGPT does it."""
    net = Encoder()
    spared = (nn.LayerNorm, nn.Embedding)
    none = {id(p) for m in net.modules() if isinstance(m, spared) for p in m.parameters()}
    none |= {id(p) for n, p in net.named_parameters() if n.endswith("bias")}
    groups = [
        {"params": [p for p in net.parameters() if id(p) not in none], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if id(p) in none], "weight_decay": 0.0},
    ]

    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    return Recipe(
        module=net,
        inputs=classes(40, 4, 12),
        loss=loss,
        targets=classes(40, 4, 12),
        options={"optimizer": optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))},
    )


@recipe
def gradient_penalty_by_inputs() -> Recipe:
    """Of WGAN-GP: the mixture's weights are an input."""

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 16, 1)

        def forward(self, real: Tensor, fake: Tensor, share: Tensor) -> Tensor:
            mixed = (share * real + (1 - share) * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(self.net(mixed).sum(), mixed, create_graph=True)
            penalty = (slope.norm(2, dim=1) - 1).square().mean()
            return self.net(fake).mean() - self.net(real).mean() + 10 * penalty

    return Recipe(module=Critic(), inputs=(rows(64, 6), rows(64, 6), torch.rand(64, 1)))


@recipe
def gradient_penalty_by_parameters() -> Recipe:
    class Penalized(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.net(x), y)
            slopes = torch.autograd.grad(loss, list(self.net.parameters()), create_graph=True)
            return loss + 0.1 * sum((s.square().sum() for s in slopes), torch.zeros(()))

    return _whole(Penalized())


@recipe
def jacobian_penalty() -> Recipe:
    """One random projection, given as an input."""

    class Penalized(_Net):
        def forward(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
            x = x.requires_grad_()
            logits = self.net(x)
            (slope,) = torch.autograd.grad(logits, x, v, create_graph=True)
            return F.cross_entropy(logits, y) + 0.01 * slope.square().sum(1).mean()

    inputs = {"x": rows(128, 6), "y": classes(5, 128), "v": rows(128, 5)}
    return Recipe(module=Penalized(), inputs=inputs)


@recipe
def adversarial_training() -> Recipe:
    """Fast gradient signs: a step by the input, then the loss there."""

    class Adversarial(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x = x.requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(self.net(x), y), x)
            return F.cross_entropy(self.net((x + 0.1 * slope.sign()).detach()), y)

    return _whole(Adversarial())


@recipe
def virtual_adversarial() -> Recipe:
    class Virtual(_Net):
        def forward(self, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
            logits = self.net(x)
            kept = logits.detach().log_softmax(-1)
            d = (1e-1 * F.normalize(noise)).requires_grad_()
            apart = F.kl_div(self.net(x + d).log_softmax(-1), kept, log_target=True)
            (slope,) = torch.autograd.grad(apart, d)
            far = self.net(x + F.normalize(slope.detach())).log_softmax(-1)
            return F.cross_entropy(logits, y) + F.kl_div(far, kept, log_target=True)

    inputs = {"x": rows(128, 6), "y": classes(5, 128), "noise": rows(128, 6)}
    return Recipe(module=Virtual(), inputs=inputs)


@recipe
def weight_norm() -> Recipe:
    net = mlp(6, 16, 5)
    for layer in (net[0], net[2]):
        parametrizations.weight_norm(layer)
    return _classifier(net, optimizer=optim.Adam(net.parameters()))


@recipe
def spectral_norm() -> Recipe:
    net = mlp(6, 16, 5)
    for layer in (net[0], net[2]):
        parametrizations.spectral_norm(layer)
    return _classifier(net, optimizer=optim.Adam(net.parameters()))


@recipe
def spectral_norm_by_hooks() -> Recipe:
    """The older form, `torch.nn.utils.spectral_norm`."""
    net = mlp(6, 16, 5)
    net[0] = nn.utils.spectral_norm(nn.Linear(6, 16))
    return _classifier(net)


@recipe
def orthogonal() -> Recipe:
    net = mlp(6, 16, 5)
    parametrizations.orthogonal(net[2], orthogonal_map="cayley")
    return _classifier(net)


@recipe
def orthogonality_penalty() -> Recipe:
    class Penalized(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.net(x), y)
            for p in self.net.parameters():
                if p.dim() == 2:
                    loss = loss + 1e-2 * (p @ p.T - torch.eye(len(p))).square().sum()
            return loss

    return _whole(Penalized())


@recipe
def lasso_and_ridge() -> Recipe:
    class Penalized(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            ones = sum(p.abs().sum() for p in self.net.parameters())
            squares = sum(p.pow(2).sum() for p in self.net.parameters())
            return F.cross_entropy(self.net(x), y) + 1e-4 * ones + 1e-3 * squares

    return _whole(Penalized())


@recipe
def dropout() -> Recipe:
    net = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 5))
    return _classifier(net, optimizer=optim.AdamW(net.parameters()))


@recipe
def dropout_kinds() -> Recipe:
    """Of channels and of scaled exponential units."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Dropout2d(0.2), nn.SELU(), nn.AlphaDropout(0.1),
        nn.Flatten(), nn.FeatureAlphaDropout(0.1), nn.Linear(288, 5),
    )  # fmt: skip
    return Recipe(module=net, inputs=rows(8, 3, 8, 8), loss=F.cross_entropy, targets=classes(5, 8))


@recipe
def dropout_as_inputs() -> Recipe:
    net = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 5))
    return _classifier(net, random="inputs")


@recipe
def stochastic_depth() -> Recipe:
    class Deep(_Net):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 16)
            self.blocks = nn.ModuleList(mlp(16, 32, 16) for _ in range(3))
            self.net = mlp(16, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                kept = torch.rand(len(x), 1, device=x.device).add(0.8).floor()
                x = x + block(x) / 0.8 * kept
            return F.cross_entropy(self.net(x), y)

    return _whole(Deep())


@recipe
def noise_on_inputs_and_weights() -> Recipe:
    class Noisy(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x = x + 0.1 * torch.randn_like(x)
            last = self.net[4]
            weight = last.weight + 0.01 * torch.randn_like(last.weight)
            return F.cross_entropy(F.linear(self.net[:4](x), weight, last.bias), y)

    return _whole(Noisy())


@recipe
def mixup() -> Recipe:
    """The order and the share are inputs."""

    class Mixed(_Net):
        def forward(  # type: ignore[override]
            self, x: Tensor, y: Tensor, order: Tensor, share: Tensor
        ) -> Tensor:
            logits = self.net(share * x + (1 - share) * x[order])
            first, second = F.cross_entropy(logits, y), F.cross_entropy(logits, y[order])
            return share * first + (1 - share) * second

    inputs = {
        "x": rows(128, 6), "y": classes(5, 128),
        "order": torch.randperm(128), "share": torch.tensor(0.7),
    }  # fmt: skip
    return Recipe(module=Mixed(), inputs=inputs)


@recipe
def mixup_drawn_in_the_step() -> Recipe:
    class Mixed(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            share = torch.rand(())
            logits = self.net(share * x + (1 - share) * x.flip(0))
            other = F.cross_entropy(logits, y.flip(0))
            return share * F.cross_entropy(logits, y) + (1 - share) * other

    return _whole(Mixed())


@recipe
def cutmix() -> Recipe:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = cnn(norm=False)

        def forward(self, x: Tensor, y: Tensor, box: Tensor) -> Tensor:
            logits = self.net(torch.where(box, x.flip(0), x))
            share = 1 - box.float().mean()
            other = F.cross_entropy(logits, y.flip(0))
            return share * F.cross_entropy(logits, y) + (1 - share) * other

    box = torch.zeros(8, 8, dtype=torch.bool)
    box[2:5, 3:7] = True
    return Recipe(module=Cut(), inputs=(rows(8, 3, 8, 8), classes(5, 8), box))


@recipe
def label_noise_as_inputs() -> Recipe:
    class Flipped(_Net):
        def forward(  # type: ignore[override]
            self, x: Tensor, y: Tensor, is_noisy: Tensor, other: Tensor
        ) -> Tensor:
            return F.cross_entropy(self.net(x), torch.where(is_noisy, other, y))

    inputs = {
        "x": rows(128, 6), "y": classes(5, 128),
        "is_noisy": torch.rand(128) < 0.1, "other": classes(5, 128),
    }  # fmt: skip
    return Recipe(module=Flipped(), inputs=inputs)


@recipe
def r_drop() -> Recipe:
    """Two passes of one network with masks of their own."""

    class Twice(_Net):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 16, 5)
            self.net.insert(2, nn.Dropout(0.1))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            a, b = self.net(x), self.net(x)
            p, q = a.log_softmax(-1), b.log_softmax(-1)
            apart = F.kl_div(p, q, log_target=True) + F.kl_div(q, p, log_target=True)
            return F.cross_entropy(a, y) + F.cross_entropy(b, y) + apart

    return _whole(Twice())


@recipe
def confidence_penalty() -> Recipe:
    class Confident(_Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.net(x)
            return (
                F.cross_entropy(logits, y)
                - 0.1 * torch.distributions.Categorical(logits=logits).entropy().mean()
            )

    return _whole(Confident())


@recipe
def weight_standardization() -> Recipe:
    class Standardized(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            var, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
            return self._conv_forward(x, (self.weight - mean) * (var + 1e-6).rsqrt(), self.bias)

    net = cnn(norm=False)
    net[0] = Standardized(3, 8, 3, padding=1)
    return Recipe(module=net, inputs=rows(8, 3, 8, 8), loss=F.cross_entropy, targets=classes(5, 8))


@recipe
def batch_norm_frozen_and_moving() -> Recipe:
    """One keeps its statistics, by `eval` within `train`, the other moves them."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = cnn(), nn.BatchNorm2d(3)

        def train(self, mode: bool = True) -> Half:
            super().train(mode)
            self.b.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.a(self.b(x))

    net = Half()
    return Recipe(
        module=net,
        inputs=rows(8, 3, 8, 8),
        loss=F.cross_entropy,
        targets=classes(5, 8),
        options={"optimizer": optim.SGD(net.parameters(), lr=0.1)},
    )
