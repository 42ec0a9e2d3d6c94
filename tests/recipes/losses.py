"""Losses, those of PyTorch and those that people write by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.arguments import Given
from planner.export.trace.step import Loss
from tests.recipes.kit import Recipe, classes, cnn, mlp, recipe, rows


def _classifier(loss: Loss, targets: Given | None = None) -> Recipe:
    """A perceptron of 5 classes on 128 rows."""
    wanted = classes(5, 128) if targets is None else targets
    return Recipe(module=mlp(6, 16, 5), inputs=rows(128, 6), loss=loss, targets=wanted)


@recipe
def cross_entropy_smoothing() -> Recipe:
    return _classifier(nn.CrossEntropyLoss(label_smoothing=0.1))


@recipe
def cross_entropy_weights() -> Recipe:
    return _classifier(nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 1.0, 2.0, 0.5])))


@recipe
def cross_entropy_ignore_index() -> Recipe:
    labels = classes(5, 32, 7)
    labels[:, 5:] = -100

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    return Recipe(module=mlp(6, 16, 5), inputs=rows(32, 7, 6), loss=loss, targets=labels)


@recipe
def cross_entropy_soft_labels() -> Recipe:
    return _classifier(F.cross_entropy, rows(128, 5).softmax(-1))


@recipe
def label_smoothing_by_hand() -> Recipe:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        log = F.log_softmax(logits, -1)
        nll = -log.gather(1, target[:, None]).squeeze(1)
        return (0.9 * nll - 0.1 * log.mean(-1)).mean()

    return _classifier(loss)


@recipe
def focal() -> Recipe:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        nll = F.cross_entropy(logits, target, reduction="none")
        return ((1 - torch.exp(-nll)) ** 2 * nll).mean()

    return _classifier(loss)


@recipe
def focal_sigmoid() -> Recipe:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        hot = F.one_hot(target, 5).float()
        p = logits.sigmoid()
        bce = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
        p_t = p * hot + (1 - p) * (1 - hot)
        alpha = 0.25 * hot + 0.75 * (1 - hot)
        return (alpha * (1 - p_t) ** 2 * bce).sum(-1).mean()

    return _classifier(loss)


@recipe
def poly_loss() -> Recipe:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        p = (F.one_hot(target, logits.shape[1]) * logits.softmax(-1)).sum(-1)
        return (F.cross_entropy(logits, target, reduction="none") + 1.0 * (1 - p)).mean()

    return _classifier(loss)


@recipe
def hard_example_mining() -> Recipe:
    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, reduction="none").topk(32)[0].mean()

    return _classifier(loss)


@recipe
def multi_label() -> Recipe:
    positive = torch.tensor([1.0, 3.0, 2.0, 1.0, 5.0])
    return _classifier(nn.BCEWithLogitsLoss(pos_weight=positive), classes(2, 128, 5).float())


@recipe
def ordinal() -> Recipe:
    def loss(logits: Tensor, rank: Tensor) -> Tensor:
        levels = (rank[:, None] > torch.arange(5)).float()
        return F.binary_cross_entropy_with_logits(logits, levels)

    return _classifier(loss, classes(6, 128))


@recipe
def dice_and_bce() -> Recipe:
    def loss(logits: Tensor, mask: Tensor) -> Tensor:
        p = logits.sigmoid()
        overlap = (p * mask).sum((1, 2, 3))
        dice = 1 - (2 * overlap + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return dice.mean() + F.binary_cross_entropy_with_logits(logits, mask)

    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    return Recipe(
        module=module, inputs=rows(2, 3, 8, 8), loss=loss, targets=classes(2, 2, 1, 8, 8).float()
    )


@recipe
def tversky() -> Recipe:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        p = logits.softmax(1)
        hot = F.one_hot(labels, 4).permute(0, 3, 1, 2)
        true = (p * hot).sum((0, 2, 3))
        false, missed = (p * (1 - hot)).sum((0, 2, 3)), ((1 - p) * hot).sum((0, 2, 3))
        return (1 - (true + 1) / (true + 0.3 * false + 0.7 * missed + 1)).pow(0.75).mean()

    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 1))
    return Recipe(module=module, inputs=rows(2, 3, 8, 8), loss=loss, targets=classes(4, 2, 8, 8))


@recipe
def info_nce() -> Recipe:
    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = mlp(6, 16, 8), mlp(10, 16, 8)
            self.scale = nn.Parameter(torch.tensor(2.6593))

        def forward(self, image: Tensor, text: Tensor) -> Tensor:
            a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
            logits = self.scale.exp().clamp(max=100) * a @ b.T
            labels = torch.arange(len(logits), device=logits.device)
            return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return Recipe(module=Clip(), inputs=(rows(128, 6), rows(128, 10)))


@recipe
def simclr() -> Recipe:
    def loss(z: Tensor) -> Tensor:
        z = F.normalize(z, dim=-1)
        similar = z @ z.T / 0.5
        similar.fill_diagonal_(float("-inf"))
        half = len(z) // 2
        return F.cross_entropy(similar, torch.arange(len(z)).roll(half))

    return Recipe(module=mlp(6, 16, 8), inputs=rows(128, 6), loss=loss)


@recipe
def supervised_contrastive() -> Recipe:
    def loss(z: Tensor, labels: Tensor) -> Tensor:
        z = F.normalize(z, dim=-1)
        others = ~torch.eye(len(z), dtype=torch.bool)
        logits = (z @ z.T / 0.1).masked_fill(~others, -1e9)
        log = logits - logits.logsumexp(1, keepdim=True)
        same = (labels[:, None] == labels) & others
        return -((log * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return _classifier(loss, classes(3, 128))


@recipe
def siglip() -> Recipe:
    class SigLip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)
            self.t, self.bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-5.0))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            a, b = F.normalize(self.a(x), dim=-1), F.normalize(self.b(y), dim=-1)
            logits = self.t.exp() * a @ b.T + self.bias
            return -F.logsigmoid((2 * torch.eye(len(x)) - 1) * logits).sum() / len(x)

    return Recipe(module=SigLip(), inputs=(rows(128, 6), rows(128, 6)))


@recipe
def triplet_semi_hard() -> Recipe:
    def loss(z: Tensor, labels: Tensor) -> Tensor:
        distance = torch.cdist(z, z)
        same = labels[:, None] == labels
        far = (distance * same).amax(1)
        near = distance.masked_fill(same, float("inf")).amin(1)
        return F.relu(far - near + 1.0).mean()

    return _classifier(loss, torch.arange(128) % 3)


@recipe
def ctc() -> Recipe:
    def loss(logits: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.full((logits.shape[0],), logits.shape[1], dtype=torch.long)
        log = logits.log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log, targets, steps, lengths)

    return Recipe(
        module=mlp(6, 16, 7),
        inputs=rows(2, 8, 6),
        loss=loss,
        targets=(classes(6, 2, 3) + 1, torch.tensor([3, 2])),
    )


@recipe
def distillation() -> Recipe:
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = mlp(6, 8, 5), mlp(6, 32, 5).requires_grad_(False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                teacher = self.teacher(x)
            return self.student(x), teacher

    def loss(results: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        student, teacher = results
        soft = F.kl_div(
            F.log_softmax(student / 2, -1),
            F.log_softmax(teacher / 2, -1),
            reduction="batchmean",
            log_target=True,
        )
        return 0.5 * F.cross_entropy(student, target) + 0.5 * 4 * soft

    return Recipe(module=Distilled(), inputs=rows(128, 6), loss=loss, targets=classes(5, 128))


@recipe
def vae() -> Recipe:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(6, 16, 8), mlp(4, 16, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, log_var = self.encode(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
            return self.decode(z), mean, log_var

    def loss(found: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, log_var = found
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1).mean()
        return F.mse_loss(made, x) + 0.1 * kl

    x = rows(128, 6)
    return Recipe(module=Vae(), inputs=x, loss=loss, targets=x.clone())


@recipe
def huber() -> Recipe:
    return _classifier(nn.HuberLoss(delta=0.5), rows(128, 5))


@recipe
def quantile() -> Recipe:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        q = torch.linspace(0.1, 0.9, 5)
        off = target - found
        return torch.maximum(q * off, (q - 1) * off).sum(-1).mean()

    return _classifier(loss, rows(128, 1))


@recipe
def log_cosh() -> Recipe:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        off = found - target
        return (off + F.softplus(-2 * off) - 0.6931).mean()

    return _classifier(loss, rows(128, 5))


@recipe
def masked_mse() -> Recipe:
    def loss(found: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return ((found - target) ** 2 * mask).sum() / mask.sum().clamp(min=1)

    return _classifier(loss, (rows(128, 5), classes(2, 128, 5).bool()))


@recipe
def uncertainty_weights() -> Recipe:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.heads = mlp(6, 16), nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 5)])
            self.log_vars = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor, value: Tensor, label: Tensor) -> Tensor:
            h = F.gelu(self.trunk(x))
            losses = torch.stack(
                [
                    F.mse_loss(self.heads[0](h).squeeze(1), value),
                    F.cross_entropy(self.heads[1](h), label),
                ]
            )
            return ((-self.log_vars).exp() * losses + self.log_vars).sum()

    return Recipe(
        module=Tasks(), inputs={"x": rows(128, 6), "value": rows(128), "label": classes(5, 128)}
    )


@recipe
def gaussian_nll() -> Recipe:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        mean, raw = found.chunk(2, -1)
        return F.gaussian_nll_loss(mean, target, F.softplus(raw) + 1e-3)

    return Recipe(module=mlp(6, 16, 4), inputs=rows(128, 6), loss=loss, targets=rows(128, 2))


@recipe
def mixture_density() -> Recipe:
    def loss(found: Tensor, y: Tensor) -> Tensor:
        pi, mean, log_sigma = found.chunk(3, -1)
        kinds = torch.distributions.Categorical(logits=pi)
        parts = torch.distributions.Normal(mean, log_sigma.exp())
        return -torch.distributions.MixtureSameFamily(kinds, parts).log_prob(y).mean()

    return Recipe(module=mlp(6, 16, 9), inputs=rows(128, 6), loss=loss, targets=rows(128))


@recipe
def structural_similarity() -> Recipe:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        def mean(x: Tensor) -> Tensor:
            return F.avg_pool2d(x, 3, 1)

        a, b = mean(found), mean(target)
        va, vb = mean(found**2) - a**2, mean(target**2) - b**2
        cov = mean(found * target) - a * b
        ssim = (2 * a * b + 0.01) * (2 * cov + 0.03) / ((a**2 + b**2 + 0.01) * (va + vb + 0.03))
        return 1 - ssim.mean()

    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 1, 3, padding=1))
    return Recipe(module=module, inputs=rows(2, 1, 8, 8), loss=loss, targets=torch.rand(2, 1, 8, 8))


@recipe
def perceptual() -> Recipe:
    """Features of a frozen network, and total variation."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Conv2d(3, 3, 3, padding=1)
            self.judge = cnn(norm=False)[:5].requires_grad_(False)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            made = self.net(x)
            smooth = made.diff(dim=-1).abs().mean() + made.diff(dim=-2).abs().mean()
            return F.l1_loss(self.judge(made), self.judge(y)) + 0.1 * smooth

    return Recipe(module=Made(), inputs=(rows(2, 3, 8, 8), rows(2, 3, 8, 8)))


@recipe
def frequency_loss() -> Recipe:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        a, b = torch.fft.rfft(found).abs(), torch.fft.rfft(target).abs()
        return F.l1_loss(a, b) + F.mse_loss(found, target)

    return Recipe(module=mlp(6, 16, 16), inputs=rows(32, 6), loss=loss, targets=rows(32, 16))
