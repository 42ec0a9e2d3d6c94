"""Steps of whole kinds of networks: language, graphs, recurrence, generation, physics."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from tests.recipes.kit import Encoder, Recipe, classes, cnn, mlp, recipe, rows


@recipe
def causal_lm() -> Recipe:
    """Labels shifted by one, padding ignored."""

    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        shifted = logits[..., :-1, :].contiguous().view(-1, logits.shape[-1])
        return F.cross_entropy(shifted, ids[..., 1:].contiguous().view(-1), ignore_index=0)

    ids = classes(40, 4, 12)
    net = Encoder(is_causal=True)
    return Recipe(
        module=net,
        inputs=ids,
        loss=loss,
        targets={"labels": ids.clone()},
        options={"optimizer": optim.AdamW(net.parameters(), lr=3e-4)},
    )


@recipe
def masked_lm() -> Recipe:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Encoder()

        def forward(self, ids: Tensor, is_masked: Tensor, padding: Tensor) -> Tensor:
            logits = self.net(ids.masked_fill(is_masked, 3), padding)
            wanted = ids.masked_fill(~is_masked, -100)
            return F.cross_entropy(logits.transpose(1, 2), wanted)

    padding = torch.zeros(4, 12, dtype=torch.bool)
    padding[1, 9:] = True
    mask = torch.rand(4, 12) < 0.3
    return Recipe(module=Masked(), inputs=(classes(40, 4, 12), mask, padding))


@recipe
def sequence_to_sequence() -> Recipe:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(40, 16)
            self.net = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)
            self.out = nn.Linear(16, 40)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            before = target[:, :-1]
            mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
            h = self.net(self.embed(source), self.embed(before), tgt_mask=mask)
            return F.cross_entropy(self.out(h).flatten(0, 1), target[:, 1:].flatten())

    return Recipe(module=Translator(), inputs=(classes(40, 4, 9), classes(40, 4, 7)))


@recipe
def teacher_forcing_with_attention() -> Recipe:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.encode = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True)
            self.cell, self.out = nn.GRUCell(16, 8), nn.Linear(8, 20)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory, last = self.encode(self.embed(source))
            h, loss = last[0], torch.zeros(())
            for i in range(target.shape[1] - 1):
                weights = torch.bmm(memory, h[:, :, None]).softmax(1)
                seen = (weights * memory).sum(1)
                h = self.cell(torch.cat([self.embed(target[:, i]), seen], 1), h)
                loss = loss + F.cross_entropy(self.out(h), target[:, i + 1])
            return loss

    return Recipe(module=Decoder(), inputs=(classes(20, 4, 6), classes(20, 4, 5)))


@recipe
def attention_with_masks() -> Recipe:
    """Rotary places, grouped heads, a mask of segments."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor, segment: Tensor) -> Tensor:
            q = self.q(x).unflatten(-1, (4, 4)).transpose(1, 2)
            k, v = self.kv(x).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, 1)
            angle = torch.arange(x.shape[1])[:, None] / 10 ** torch.arange(2)
            q, k = _turned(q, angle), _turned(k, angle)
            mask = (segment[:, :, None] == segment[:, None, :]).tril()[:, None]
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            return self.out(h.transpose(1, 2).flatten(2))

    return Recipe(
        module=Attention(),
        inputs=(rows(4, 12, 16), classes(2, 4, 12).sort()[0]),
        loss=F.mse_loss,
        targets=rows(4, 12, 16),
    )


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


@recipe
def mixture_of_experts() -> Recipe:
    """The two best experts of each row by a dense mask, and a loss that balances them."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.route = nn.Linear(6, 4)
            self.experts = nn.ModuleList(mlp(6, 16, 5) for _ in range(4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            share = self.route(x).softmax(-1)
            best, which = share.topk(2, -1)
            gates = torch.zeros_like(share).scatter(1, which, best / best.sum(-1, keepdim=True))
            every = torch.stack([expert(x) for expert in self.experts], 1)
            balance = 4 * ((gates > 0).float().mean(0) * share.mean(0)).sum()
            return F.cross_entropy((gates[..., None] * every).sum(1), y) + 0.01 * balance

    return Recipe(module=Experts(), inputs=(rows(128, 6), classes(5, 128)))


@recipe
def mixture_of_experts_by_indices() -> Recipe:
    """Rows gathered by `torch.where`, as Mixtral was written."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.route = nn.Linear(6, 4)
            self.experts = nn.ModuleList(nn.Linear(6, 5) for _ in range(4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            share, which = self.route(x).softmax(-1).max(-1)
            out = x.new_zeros(len(x), 5)
            for i, expert in enumerate(self.experts):
                (picked,) = torch.where(which == i)
                out.index_add_(0, picked, expert(x[picked]) * share[picked, None])
            return F.cross_entropy(out, y)

    return Recipe(module=Experts(), inputs=(rows(128, 6), classes(5, 128)))


@recipe
def quantization_aware() -> Recipe:
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
    net.qconfig = get_default_qat_qconfig("x86")
    prepared = prepare_qat(net.train())
    prepared(rows(128, 6))
    return Recipe(
        module=prepared,
        inputs=rows(128, 6),
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options={"specialize": True},
    )


@recipe
def quantization_by_hand() -> Recipe:
    """Straight-through rounding with a learned step."""

    class Rounded(nn.Linear):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self.step = nn.Parameter(torch.tensor(0.05))

        def forward(self, x: Tensor) -> Tensor:
            scaled = (self.weight / self.step).clamp(-8, 7)
            rounded = scaled + (scaled.round() - scaled).detach()
            return F.linear(x, rounded * self.step, self.bias)

    net = nn.Sequential(Rounded(6, 16), nn.ReLU(), Rounded(16, 5))
    return Recipe(module=net, inputs=rows(128, 6), loss=F.cross_entropy, targets=classes(5, 128))


@recipe
def lstm_with_carried_state() -> Recipe:
    """Truncated backpropagation: the state goes from batch to batch as inputs and a buffer."""

    class Carried(nn.Module):
        h: Tensor
        c: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net, self.out = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 5)
            self.register_buffer("h", torch.zeros(1, 4, 8))
            self.register_buffer("c", torch.zeros(1, 4, 8))

        def forward(self, x: Tensor) -> Tensor:
            y, (h, c) = self.net(x, (self.h.clone(), self.c.clone()))
            self.h.copy_(h.detach())
            self.c.copy_(c.detach())
            return self.out(y).flatten(0, 1)

    return Recipe(
        module=Carried(), inputs=rows(4, 5, 6), loss=F.cross_entropy, targets=classes(5, 20)
    )


@recipe
def gru_of_two_directions() -> Recipe:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.GRU(6, 8, 2, bidirectional=True, batch_first=True)
            self.out = nn.Linear(16, 5)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = self.net(x)[0] * mask[..., None]
            return self.out(h.sum(1) / mask.sum(1, keepdim=True))

    mask = (torch.arange(5) < torch.tensor([[5], [3], [4], [2]])).float()
    return Recipe(
        module=Tagger(),
        inputs=(rows(4, 5, 6), mask),
        loss=F.cross_entropy,
        targets=classes(5, 4),
    )


@recipe
def graph_convolution() -> Recipe:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            source, target = edges
            degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target))) + 1
            h = F.relu(self._spread(self.a(x), source, target) / degree[:, None])
            return self._spread(self.b(h), source, target) / degree[:, None]

        def _spread(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
            return x.index_add(0, target, x[source])

    return Recipe(
        module=Graph(),
        inputs=(rows(30, 6), classes(30, 2, 80)),
        loss=lambda logits, y, mask: (
            F.cross_entropy(logits, y, reduction="none") * mask
        ).sum() / mask.sum(),
        targets=(classes(5, 30), classes(2, 30).float()),
    )  # fmt: skip


@recipe
def graph_attention() -> Recipe:
    """A softmax over the edges into each node, and a readout of each graph."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.score, self.out = nn.Linear(6, 8), nn.Linear(16, 1), nn.Linear(8, 5)

        def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
            h, (source, target) = self.inside(x), edges
            score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], 1)).squeeze(1), 0.2)
            top = torch.full((len(x),), -1e9).scatter_reduce(0, target, score.detach(), "amax")
            weight = (score - top[target]).exp()
            total = torch.zeros(len(x)).scatter_add(0, target, weight)
            share = (weight / total[target])[:, None]
            h = torch.zeros_like(h).scatter_add(0, target[:, None].expand(-1, 8), share * h[source])
            read = torch.zeros(3, 8).scatter_reduce(
                0, graph[:, None].expand(-1, 8), h, "mean", include_self=False
            )
            return self.out(read)

    return Recipe(
        module=Graph(),
        inputs=(rows(30, 6), classes(30, 2, 80), torch.arange(30) // 10),
        loss=F.cross_entropy,
        targets=classes(5, 3),
    )


@recipe
def siamese() -> Recipe:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 8)

        def forward(self, a: Tensor, b: Tensor, is_same: Tensor) -> Tensor:
            d = F.pairwise_distance(self.net(a), self.net(b))
            return (is_same * d**2 + (1 - is_same) * F.relu(1 - d) ** 2).mean()

    return Recipe(module=Siamese(), inputs=(rows(64, 6), rows(64, 6), classes(2, 64).float()))


@recipe
def arc_face() -> Recipe:
    class Faces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.centers = mlp(6, 16, 8), nn.Parameter(rows(5, 8))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            cosine = F.linear(F.normalize(self.net(x)), F.normalize(self.centers))
            angle = cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos()
            hot = F.one_hot(y, 5).bool()
            return F.cross_entropy(16 * torch.where(hot, (angle + 0.2).cos(), cosine), y)

    return Recipe(module=Faces(), inputs=(rows(64, 6), classes(5, 64)))


@recipe
def self_distillation_with_a_moving_teacher() -> Recipe:
    """BYOL: the teacher follows in the update."""

    class Byol(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.guess = mlp(6, 16, 8), mlp(8, 16, 8)
            self.teacher = mlp(6, 16, 8).requires_grad_(False)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            p, q = self.guess(self.online(a)), self.guess(self.online(b))
            with torch.no_grad():
                s, t = self.teacher(a), self.teacher(b)
            return 2 - (F.cosine_similarity(p, t) + F.cosine_similarity(q, s)).mean()

    net = Byol()
    wanted = [p for p in net.parameters() if p.requires_grad]
    optimizer = optim.AdamW(wanted, lr=1e-3)

    @torch.no_grad()
    def update() -> None:
        optimizer.step()
        for kept, p in zip(net.teacher.parameters(), net.online.parameters(), strict=True):
            kept.lerp_(p, 0.01)

    return Recipe(module=net, inputs=(rows(64, 6), rows(64, 6)), options={"optimizer": update})


@recipe
def masked_autoencoder() -> Recipe:
    class Mae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 16), nn.Linear(16, 6)
            self.mask = nn.Parameter(torch.zeros(16))

        def forward(self, x: Tensor, order: Tensor) -> Tensor:
            kept = order[:, :3, None]
            h = self.encode(x.gather(1, kept.expand(-1, -1, 6)))
            every = self.mask.expand(len(x), 8, 16).scatter(1, kept.expand(-1, -1, 16), h)
            off = (self.decode(every) - x).square().mean(-1)
            return off.gather(1, order[:, 3:]).mean()

    order = torch.stack([torch.randperm(8) for _ in range(16)])
    return Recipe(module=Mae(), inputs=(rows(16, 8, 6), order))


@recipe
def language_model_of_transformers() -> Recipe:
    """A small GPT-2 of transformers, which returns its own loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    net = GPT2LMHeadModel(config)
    ids = classes(40, 4, 12)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    return Recipe(module=net, inputs=inputs)


@recipe
def segmentation() -> Recipe:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = cnn()[:3], nn.Conv2d(8, 16, 3, padding=1)
            self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            top = self.a(x)
            low = F.silu(self.b(F.max_pool2d(top, 2)))
            return self.out(torch.cat([top, self.up(low)], 1))

    return Recipe(
        module=UNet(), inputs=rows(2, 3, 8, 8), loss=F.cross_entropy, targets=classes(4, 2, 8, 8)
    )
