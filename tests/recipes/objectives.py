"""Objectives beside plain distances: contrast, ranking, transport, survival, detection, information."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows

LOW, HIGH = slice(2), slice(2, 4)
"""Corners of a box."""


@recipe
def momentum_contrast() -> Recipe:
    """MoCo: a queue of keys that the step writes on, and a key encoder that follows."""

    class Moco(nn.Module):
        queue: Tensor
        at: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = mlp(6, 16, 8), mlp(6, 16, 8).requires_grad_(False)
            self.register_buffer("queue", F.normalize(rows(64, 8)))
            self.register_buffer("at", torch.zeros((), dtype=torch.int64))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            q = F.normalize(self.query(a))
            with torch.no_grad():
                k = F.normalize(self.key(b))
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1)
            with torch.no_grad():
                places = (self.at + torch.arange(len(k))) % len(self.queue)
                self.queue[places] = k
                self.at.add_(len(k)).remainder_(len(self.queue))
            return F.cross_entropy(logits / 0.2, torch.zeros(len(q), dtype=torch.int64))

    net = Moco()
    optimizer = optim.SGD(net.query.parameters(), lr=0.03, momentum=0.9)

    @torch.no_grad()
    def update() -> None:
        optimizer.step()
        for kept, p in zip(net.key.parameters(), net.query.parameters(), strict=True):
            kept.mul_(0.99).add_(p, alpha=0.01)

    return Recipe(module=net, inputs=(rows(16, 6), rows(16, 6)), options={"optimizer": update})


@recipe
def variance_and_covariance() -> Recipe:
    """VICReg."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = (nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
            self.net = nn.Sequential(*hidden, nn.Linear(16, 12))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            p, q = self.net(a), self.net(b)
            loss = 25 * F.mse_loss(p, q)
            for z in (p, q):
                spread = (z.var(0) + 1e-4).sqrt()
                z = z - z.mean(0)
                shared = (z.T @ z / (len(z) - 1)).fill_diagonal_(0)
                loss = loss + 25 * F.relu(1 - spread).mean() + shared.pow(2).sum() / z.shape[1]
            return loss

    return Recipe(module=Views(), inputs=(rows(64, 6), rows(64, 6)))


@recipe
def multi_similarity() -> Recipe:
    """Pairs mined within the batch, weighted by logarithms of sums."""

    def loss(found: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(found)
        near = z @ z.T
        same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
        other = y[:, None] != y
        hardest = near.masked_fill(~other, -torch.inf).amax(1, keepdim=True)
        easiest = near.masked_fill(~same, torch.inf).amin(1, keepdim=True)
        same, other = same & (near - 0.1 < hardest), other & (near + 0.1 > easiest)
        pull = torch.where(same, torch.exp(-2 * (near - 0.5)), 0).sum(1).log1p() / 2
        push = torch.where(other, torch.exp(40 * (near - 0.5)), 0).sum(1).log1p() / 40
        return (pull + push).mean()

    return Recipe(module=mlp(6, 16, 8), inputs=rows(32, 6), loss=loss, targets=classes(4, 32))


@recipe
def centers_that_move() -> Recipe:
    """Center loss: a center of each class is moved to its rows by `index_add_` in the step."""

    class Centers(nn.Module):
        centers: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = mlp(6, 16, 8), nn.Linear(8, 5)
            self.register_buffer("centers", rows(5, 8))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z = self.net(x)
            off = z - self.centers[y]
            with torch.no_grad():
                counts = torch.bincount(y, minlength=5) + 1
                moved = torch.zeros_like(self.centers).index_add_(0, y, off)
                self.centers.add_(0.5 * moved / counts[:, None])
            return F.cross_entropy(self.head(z), y) + 0.01 * off.square().sum(1).mean()

    return Recipe(module=Centers(), inputs=(rows(64, 6), classes(5, 64)))


@recipe
def prototypes_by_transport() -> Recipe:
    """SwAV: codes of one view by Sinkhorn's iterations, predicted from the other."""

    class Swav(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.heads = mlp(6, 16, 8), nn.Linear(8, 10, bias=False)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            p, q = (self.heads(F.normalize(self.net(x))) for x in (a, b))
            return self.swapped(p, q) + self.swapped(q, p)

        def swapped(self, known: Tensor, guessed: Tensor) -> Tensor:
            return -(self.codes(known) * F.log_softmax(guessed / 0.1, 1)).sum(1).mean()

        @torch.no_grad()
        def codes(self, scores: Tensor) -> Tensor:
            plan = torch.exp(scores / 0.05).T
            plan /= plan.sum()
            for _ in range(3):
                plan /= plan.sum(1, keepdim=True) * plan.shape[0]
                plan /= plan.sum(0, keepdim=True) * plan.shape[1]
            return (plan * plan.shape[1]).T

    net = Swav()

    @torch.no_grad()
    def update() -> None:
        optimizer.step()
        net.heads.weight.copy_(F.normalize(net.heads.weight))

    optimizer = optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-6)
    return Recipe(module=net, inputs=(rows(32, 6), rows(32, 6)), options={"optimizer": update})


@recipe
def soft_time_warping() -> Recipe:
    """Soft-DTW: a table of minima, softened, row by row."""

    def loss(made: Tensor, y: Tensor) -> Tensor:
        apart = torch.cdist(made, y).square()
        batch, n, m = apart.shape
        far = torch.full((batch,), 1e8)
        above = [torch.zeros(batch), *[far] * m]
        for i in range(n):
            row = [far]
            for j in range(m):
                ways = torch.stack([above[j], above[j + 1], row[j]], -1)
                row.append(apart[:, i, j] - torch.logsumexp(-ways, -1))
            above = row
        return above[-1].mean()

    return Recipe(module=mlp(3, 16, 2), inputs=rows(4, 6, 3), loss=loss, targets=rows(4, 5, 2))


@recipe
def lambda_rank() -> Recipe:
    """Pairs of documents, weighted by what an exchange does to the gain."""

    def loss(scores: Tensor, gain: Tensor) -> Tensor:
        s = scores.squeeze(-1)
        places = s.detach().argsort(1, descending=True).argsort(1)
        value, discount = 2**gain - 1, 1 / torch.log2(places + 2.0)
        best = value.sort(1, descending=True)[0] / torch.log2(torch.arange(gain.shape[1]) + 2.0)
        change = (value[:, :, None] - value[:, None]) * (discount[:, :, None] - discount[:, None])
        weight = change.abs() / best.sum(1).clamp(min=1e-8)[:, None, None]
        better = gain[:, :, None] > gain[:, None]
        each = F.softplus(s[:, None] - s[:, :, None]) * weight
        return torch.where(better, each, 0).sum((1, 2)).mean()

    relevance = classes(4, 8, 10).float()
    return Recipe(module=mlp(6, 16, 1), inputs=rows(8, 10, 6), loss=loss, targets=relevance)


@recipe
def proportional_hazards() -> Recipe:
    """Cox's partial likelihood: running logarithms of sums in the order of the times."""

    def loss(risk: Tensor, time: Tensor, died: Tensor) -> Tensor:
        order = time.argsort(descending=True)
        risk, died = risk.squeeze(-1)[order], died[order]
        return -((risk - torch.logcumsumexp(risk, 0)) * died).sum() / died.sum().clamp(min=1)

    targets = (torch.rand(64), (torch.rand(64) < 0.7).float())
    return Recipe(module=mlp(6, 16, 1), inputs=rows(64, 6), loss=loss, targets=targets)


@recipe
def evidence() -> Recipe:
    """Evidential regression: the likelihood of a Student's t by `lgamma`."""

    def loss(found: Tensor, y: Tensor) -> Tensor:
        mean, v, a, b = found.unbind(-1)
        v, a, b = F.softplus(v) + 1e-3, F.softplus(a) + 1.001, F.softplus(b) + 1e-3
        omega = 2 * b * (1 + v)
        off = y - mean
        nll = 0.5 * torch.log(math.pi / v) - a * omega.log()
        nll = nll + torch.lgamma(a) - torch.lgamma(a + 0.5)
        nll = nll + (a + 0.5) * torch.log(off**2 * v + omega)
        return (nll + 0.01 * off.abs() * (2 * v + a)).mean()

    return Recipe(module=mlp(6, 16, 4), inputs=rows(64, 6), loss=loss, targets=rows(64))


@recipe
def lovasz_softmax() -> Recipe:
    """The extension of the intersection over the union: errors sorted, differences of a running ratio."""

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        chances = logits.softmax(1).movedim(1, -1).reshape(-1, 5)
        losses = []
        for k in range(5):
            is_class = (y.reshape(-1) == k).float()
            errors, order = (is_class - chances[:, k]).abs().sort(descending=True)
            sorted_class = is_class[order]
            whole = sorted_class.sum()
            ratio = 1 - (whole - sorted_class.cumsum(0)) / (whole + (1 - sorted_class).cumsum(0))
            steps = torch.cat([ratio[:1], ratio[1:] - ratio[:-1]])
            losses.append((errors * steps).sum() * (whole > 0))
        return torch.stack(losses).mean()

    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
    return Recipe(module=net, inputs=rows(2, 3, 8, 8), loss=loss, targets=classes(5, 2, 8, 8))


@recipe
def boxes_matched_to_anchors() -> Recipe:
    """A detector's loss: anchors matched by overlap, focal classes, complete-IoU boxes."""

    def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
        both = (high - low).clamp(min=0).prod(-1)
        areas = [(x[..., 2:] - x[..., :2]).prod(-1) for x in (a, b)]
        return both / (areas[0] + areas[1] - both + 1e-7), both

    def penalty(made: Tensor, wanted: Tensor, iou: Tensor) -> Tensor:
        """How far middles and shapes are apart."""
        low, high = [torch.cat([made[..., None, s], wanted[..., None, s]], -2) for s in (LOW, HIGH)]
        middles = (low + high) / 2
        apart = (middles[..., 0, :] - middles[..., 1, :]).square().sum(-1)
        hull = (high.amax(-2) - low.amin(-2)).square().sum(-1)
        sizes = high - low
        angles = torch.atan2(sizes[..., 0], sizes[..., 1])
        shape = 4 / math.pi**2 * (angles[..., 0] - angles[..., 1]).square()
        with torch.no_grad():
            share = shape / (1 - iou + shape + 1e-7)
        return apart / (hull + 1e-7) + share * shape

    class Detector(nn.Module):
        anchors: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Conv2d(3, 2 * 8, 3, padding=1)
            at = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0))
            ends = [torch.cat([at - s, at + s], 1) for s in (0.8, 1.6)]
            self.register_buffer("anchors", torch.stack(ends, 1).reshape(-1, 4))

        def forward(self, x: Tensor, boxes: Tensor, y: Tensor, is_there: Tensor) -> Tensor:
            out = self.net(x).permute(0, 2, 3, 1).reshape(len(x), -1, 8)
            shared, _ = overlap(self.anchors[None, :, None], boxes[:, None])
            shared = torch.where(is_there[:, None], shared, -1)
            best, which = shared.max(-1)
            kept = best > 0.3
            wanted = boxes.gather(1, which[..., None].expand(-1, -1, 4))
            hot = F.one_hot(y.gather(1, which), 4) * kept[..., None]
            logits, made = out[..., :4], self.anchors + out[..., 4:]
            chance = logits.sigmoid()
            sure = chance * hot + (1 - chance) * (1 - hot)
            bce = F.binary_cross_entropy_with_logits(logits, hot.float(), reduction="none")
            focal = ((1 - sure) ** 2 * bce).sum()
            iou, _ = overlap(made, wanted)
            ciou = 1 - iou + penalty(made, wanted, iou)
            return (focal + torch.where(kept, ciou, 0).sum()) / kept.sum().clamp(min=1)

    corner = torch.rand(2, 3, 2) * 3
    boxes = torch.cat([corner, corner + 1 + torch.rand(2, 3, 2) * 2], -1)
    there = torch.tensor([[True, True, False], [True, False, False]])
    return Recipe(module=Detector(), inputs=(rows(2, 3, 6, 6), boxes, classes(4, 2, 3), there))


@recipe
def keypoints() -> Recipe:
    """Places as means over heat maps, by `einsum`, beside maps that are drawn around the true ones."""

    def loss(maps: Tensor, places: Tensor) -> Tensor:
        n = maps.shape[-1]
        grid = torch.linspace(0, 1, n)
        share = maps.flatten(2).softmax(-1).unflatten(2, (n, n))
        x, y = torch.einsum("bkhw,w->bk", share, grid), torch.einsum("bkhw,h->bk", share, grid)
        across, down = (grid - places[..., :1]).square(), (grid - places[..., 1:]).square()
        drawn = torch.exp(-(across[..., None, :] + down[..., None]) / 0.02)
        off = (torch.stack([x, y], -1) - places).norm(dim=-1).mean()
        return off + F.kl_div(share.clamp(min=1e-9).log(), drawn / drawn.sum((2, 3), keepdim=True))

    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 4, 1))
    return Recipe(module=net, inputs=rows(2, 3, 8, 8), loss=loss, targets=torch.rand(2, 4, 2))


@recipe
def mutual_information() -> Recipe:
    """MINE: the gradient of a logarithm of a mean is corrected by a moving average."""

    class Mine(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 1)
            self.register_buffer("mean", torch.ones(()))

        def forward(self, x: Tensor, y: Tensor, order: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            joint = self.net(torch.cat([x, y], 1)).mean()
            apart = self.net(torch.cat([x, y[order]], 1)).exp().mean()
            with torch.no_grad():
                self.mean.lerp_(apart, 0.01)
            return apart / self.mean.detach() - joint, {"bound": (joint - apart.log()).detach()}

    return Recipe(module=Mine(), inputs=(rows(64, 3), rows(64, 3), torch.randperm(64)))


@recipe
def sliced_transport() -> Recipe:
    """The distance of two sorted sets, along directions that are inputs, and of means of kernels."""

    def loss(made: Tensor, y: Tensor, directions: Tensor) -> Tensor:
        d = F.normalize(directions)
        apart = ((made @ d.T).sort(0)[0] - (y @ d.T).sort(0)[0]).abs().pow(2).mean()
        both = torch.cat([made, y])
        square = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()
        kernel = sum(torch.exp(-square / (2 * s * s)) for s in (0.5, 1.0, 2.0, 4.0))
        sign = torch.cat([torch.ones(len(made)), -torch.ones(len(y))]) / len(y)
        return apart + 0.1 * sign @ kernel @ sign

    return Recipe(
        module=mlp(6, 16, 3), inputs=rows(32, 6), loss=loss, targets=(rows(32, 3), rows(8, 3))
    )
