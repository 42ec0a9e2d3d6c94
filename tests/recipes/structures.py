"""Steps with a structure of their own: graphs, trees, scenes, codes, experts, two networks at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.recipes.kit import Recipe, classes, mlp, recipe, rows


@recipe
def finite_scalars_and_residual_codes() -> Recipe:
    """FSQ: values rounded to levels, straight through; then codes of what is left, twice."""

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = mlp(6, 16, 4), mlp(8, 16, 6)
            self.books = nn.Parameter(rows(2, 8, 4))

        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            bounded = torch.tanh(z) * 2.5
            levels = bounded + (bounded.round() - bounded).detach()
            rest, total, kept = z, torch.zeros_like(z), torch.zeros(())
            for book in self.books:
                code = book[torch.cdist(rest.detach(), book.detach()).argmin(1)]
                kept = (
                    kept + F.mse_loss(code, rest.detach()) + 0.25 * F.mse_loss(rest, code.detach())
                )
                total, rest = total + code, rest - code.detach()
            both = torch.cat([levels, z + (total - z).detach()], 1)
            return F.mse_loss(self.decode(both), x) + kept

    return Recipe(module=Codes(), inputs=rows(64, 6))


@recipe
def product_keys() -> Recipe:
    """A memory of 64 values behind two halves of a key: the best of each by `topk`, then of all pairs."""

    class Keys(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.keys = nn.Linear(6, 8), nn.Parameter(rows(2, 8, 4))
            self.values, self.head = nn.EmbeddingBag(64, 8, mode="sum"), nn.Linear(8, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            halves = self.query(x).unflatten(-1, (2, 4))
            scores, at = torch.einsum("bhd,hkd->bhk", halves, self.keys).topk(3, -1)
            pairs = (scores[:, 0, :, None] + scores[:, 1, None]).flatten(1)
            places = (at[:, 0, :, None] * 8 + at[:, 1, None]).flatten(1)
            best, which = pairs.topk(4, 1)
            found = self.values(places.gather(1, which), per_sample_weights=best.softmax(1))
            return F.cross_entropy(self.head(found), y)

    return Recipe(module=Keys(), inputs=(rows(32, 6), classes(5, 32)))


@recipe
def experts_choose_rows() -> Recipe:
    """Each expert takes its best rows, which are scattered back by `index_add`."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.route, self.head = nn.Linear(8, 4, bias=False), nn.Linear(8, 5)
            self.up, self.down = (
                nn.Parameter(0.3 * rows(4, 8, 16)),
                nn.Parameter(0.3 * rows(4, 16, 8)),
            )

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            share, rows_of = self.route(x).softmax(-1).T.topk(8, -1)
            made = torch.bmm(F.gelu(torch.bmm(x[rows_of], self.up)), self.down)
            made = (made * share[..., None]).flatten(0, 1)
            return F.cross_entropy(
                self.head(x + torch.zeros_like(x).index_add(0, rows_of.flatten(), made)), y
            )

    return Recipe(module=Experts(), inputs=(rows(16, 8), classes(5, 16)))


@recipe
def forest() -> Recipe:
    """Oblivious trees: soft choices of features, gates, leaves by products of ways."""

    class Trees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.choose, self.at = nn.Parameter(rows(4, 3, 6)), nn.Parameter(rows(4, 3))
            self.heat, self.leaves = nn.Parameter(torch.zeros(4, 3)), nn.Parameter(rows(4, 8, 5))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            value = torch.einsum("bf,tdf->btd", x, self.choose.softmax(-1))
            gate = F.hardsigmoid((value - self.at) * torch.exp(-self.heat))
            ways = torch.stack([gate, 1 - gate], -1)
            reach = torch.einsum("bti,btj,btk->btijk", *ways.unbind(2)).flatten(2)
            return F.cross_entropy(torch.einsum("btl,tlc->bc", reach, self.leaves), y)

    return Recipe(module=Trees(), inputs=(rows(32, 6), classes(5, 32)))


@recipe
def several_aggregators() -> Recipe:
    """PNA: means, extremes and spreads of what edges bring; nodes that none reaches stay at 0."""

    class Aggregated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge, self.node, self.head = nn.Linear(12, 8), nn.Linear(38, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
            source, into = edges
            sent = F.relu(self.edge(torch.cat([x[source], x[into]], 1)))
            at, none = into[:, None].expand_as(sent), torch.zeros(len(x), 8)
            found = [
                none.scatter_reduce(0, at, sent, kind, include_self=False)
                for kind in ("mean", "amax", "amin")
            ]
            square = none.scatter_reduce(0, at, sent**2, "mean", include_self=False)
            spread = (F.relu(square - found[0] ** 2) + 1e-5).sqrt()
            return F.cross_entropy(self.head(self.node(torch.cat([x, *found, spread], 1))), y)

    return Recipe(module=Aggregated(), inputs=(rows(10, 6), classes(9, 2, 30), classes(3, 10)))


@recipe
def nearest_points() -> Recipe:
    """Edges between the nearest points (DGCNN), and the Chamfer distance of what is decoded."""

    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge, self.decode = mlp(6, 16, 8), mlp(8, 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            near = torch.cdist(x, x).topk(4, largest=False)[1]
            beside = x.gather(1, near.flatten(1)[..., None].expand(-1, -1, 3)).view(*near.shape, 3)
            pairs = torch.cat([x[:, :, None].expand_as(beside), beside - x[:, :, None]], -1)
            made = self.decode(self.edge(pairs).amax(2))
            apart = torch.cdist(made, x)
            return apart.min(1)[0].mean() + apart.min(2)[0].mean()

    return Recipe(module=Points(), inputs=rows(3, 12, 3))


@recipe
def splats() -> Recipe:
    """Gaussians drawn over each other from near to far: ordered by depth, light left by `cumprod`."""

    class Splats(nn.Module):
        grid: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.at, self.depth = nn.Parameter(torch.rand(8, 2)), nn.Parameter(rows(8))
            self.size, self.turn = nn.Parameter(rows(8, 2) - 1), nn.Parameter(rows(8))
            self.light, self.color = nn.Parameter(rows(8)), nn.Parameter(rows(8, 3))
            grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, 8)] * 2, indexing="xy"), -1)
            self.register_buffer("grid", grid)

        def forward(self, image: Tensor) -> Tensor:
            cos, sin = self.turn.cos(), self.turn.sin()
            turn = torch.stack([cos, -sin, sin, cos], -1).view(8, 2, 2)
            half = torch.diag_embed(torch.exp(-self.size)) @ turn
            away = torch.einsum("kij,khwj->khwi", half, self.grid - self.at[:, None, None])
            alpha = self.light.sigmoid()[:, None, None] * torch.exp(-0.5 * away.square().sum(-1))
            order = self.depth.argsort()
            alpha, color = alpha[order].clamp(max=0.99), self.color[order].sigmoid()
            left = torch.cumprod(torch.cat([torch.ones_like(alpha[:1]), 1 - alpha[:-1]]), 0)
            return F.l1_loss(torch.einsum("khw,kc->chw", alpha * left, color), image)

    return Recipe(module=Splats(), inputs=torch.rand(3, 8, 8))


@recipe
def cellular_automaton() -> Recipe:
    """Cells that see their neighbours by fixed filters and change where a mask of the inputs says so."""

    class Cells(nn.Module):
        sobel: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.rule = nn.Sequential(nn.Conv2d(18, 16, 1), nn.ReLU(), nn.Conv2d(16, 6, 1))
            x = torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([-1.0, 0, 1])) / 8
            self.register_buffer("sobel", torch.stack([x, x.T]).repeat(6, 1, 1)[:, None])

        def forward(self, x: Tensor, awake: Tensor, image: Tensor) -> Tensor:
            for t in range(4):
                padded = F.pad(x, (1, 1, 1, 1), mode="circular")
                seen = torch.cat([x, F.conv2d(padded, self.sobel, groups=6)], 1)
                was = F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1
                x = x + self.rule(seen) * awake[t]
                x = x * (was & (F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1))
            return F.mse_loss(x[:, :4], image)

    awake = (torch.rand(4, 2, 1, 8, 8) < 0.5).float()
    return Recipe(module=Cells(), inputs=(torch.rand(2, 6, 8, 8), awake, torch.rand(2, 4, 8, 8)))


@recipe
def tensor_train() -> Recipe:
    """A layer as a train of small tensors, and one of Kronecker factors, by `einsum`."""

    class Train(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shapes = ((1, 2, 3, 3), (3, 3, 2, 3), (3, 2, 2, 1))
            self.cores = nn.ParameterList(rows(*shape) / 2 for shape in shapes)
            self.a, self.b = nn.Parameter(rows(3, 4) / 2), nn.Parameter(rows(2, 3) / 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = torch.einsum("bijk,xipy,yjqz,zkrx->bpqr", x.view(-1, 2, 3, 2), *self.cores)
            return F.mse_loss(F.gelu(h.flatten(1)) @ torch.kron(self.a, self.b).T, y)

    return Recipe(module=Train(), inputs=(rows(16, 12), rows(16, 6)))


@recipe
def both_sides_of_a_game() -> Recipe:
    """Generator and discriminator in one step, by one loss, with an optimizer each."""

    class Game(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.judge = mlp(4, 16, 6), mlp(6, 16, 1)

        def forward(self, noise: Tensor, real: Tensor) -> Tensor:
            made = self.maker(noise)
            judged = (
                F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(made.detach())).mean()
            )
            fixed = {n: p.detach() for n, p in self.judge.named_parameters()}
            fooled = F.softplus(-torch.func.functional_call(self.judge, fixed, (made,))).mean()
            return judged + fooled

    net = Game()
    optimizers = (
        optim.Adam(net.maker.parameters(), lr=1e-4, betas=(0.0, 0.9)),
        optim.RMSprop(net.judge.parameters(), lr=4e-4),
    )

    def update() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return Recipe(module=net, inputs=(rows(32, 4), rows(32, 6)), options={"optimizer": update})
