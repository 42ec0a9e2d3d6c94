"""Networks as people write them by hand: graphs and sequences."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.catalogue import Make, Step


class Formula(nn.Module):
    """A module of parts, and a function of them and the inputs: `forward(parts, *inputs)`."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.formula = forward
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))

    def forward(self, *inputs: Tensor) -> Any:
        return self.formula(self, *inputs)


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Build linear layers with activations between."""
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(sizes):
        layers += [nn.Linear(i, o), act()]
    return nn.Sequential(*layers[:-1])


def labels(classes: int, *shape: int) -> tuple[Tensor]:
    """Draw class labels."""
    return (torch.randint(0, classes, shape),)


def itself(out: Tensor) -> Tensor:
    """Return a step whose module returns the loss itself."""
    return out


# -- graphs ------------------------------------------------------------------------------------


def _sage(net: Any, x: Tensor, edges: Tensor) -> Tensor:
    source, target = edges
    for layer in (net.first, net.second):
        near = torch.zeros(len(x), x.shape[1]).scatter_reduce(
            0, target[:, None].expand(-1, x.shape[1]), x[source], "mean", include_self=False
        )
        x = F.normalize(layer(torch.cat([x, near], -1)), dim=-1)
    return x


def _isomorphism(net: Any, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
    source, target = edges
    for layer in (net.first, net.second):
        x = layer((1 + net.eps) * x + torch.zeros_like(x).index_add(0, target, x[source]))
    return net.out(torch.zeros(4, x.shape[1]).index_add(0, graph, x))


def _convolved(net: Any, x: Tensor, adjacency: Tensor) -> Tensor:
    adjacency = adjacency + torch.eye(len(x))
    scale = adjacency.sum(-1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale
    return adjacency @ net.second(F.relu(adjacency @ net.first(x)))


def _messages(net: Any, x: Tensor, place: Tensor, edges: Tensor) -> Tensor:
    """An equivariant layer (EGNN) that updates features and positions."""
    source, target = edges
    apart = place[target] - place[source]
    pair = torch.cat([x[target], x[source], apart.square().sum(-1, keepdim=True)], -1)
    message = F.silu(net.message(pair))
    place = place.index_add(0, target, apart * net.weight(message))
    x = x + net.update(torch.cat([x, torch.zeros_like(x).index_add(0, target, message)], -1))
    return torch.cat([x, place], -1)


def _edges(nodes: int, count: int) -> Tensor:
    return torch.randint(0, nodes, (2, count))


_GRAPHS: dict[str, Make] = {
    "GraphSAGE": lambda: Step(
        Formula(_sage, first=nn.Linear(16, 12), second=nn.Linear(24, 5)),
        (torch.randn(20, 8), _edges(20, 60)), F.cross_entropy, labels(5, 20),
    ),
    "graph isomorphism network": lambda: Step(
        Formula(
            _isomorphism, first=mlp(8, 16, 8), second=mlp(8, 16, 8), out=nn.Linear(8, 3),
            eps=torch.zeros(()),
        ),
        (torch.randn(20, 8), _edges(20, 60), torch.arange(20) // 5), F.cross_entropy, labels(3, 4),
    ),
    "graph convolution, dense": lambda: Step(
        Formula(_convolved, first=nn.Linear(8, 16), second=nn.Linear(16, 4)),
        (torch.randn(20, 8), (torch.rand(20, 20) > 0.7).float()), F.cross_entropy, labels(4, 20),
    ),
    "equivariant graph network": lambda: Step(
        Formula(
            _messages, message=nn.Linear(17, 8), weight=nn.Linear(8, 1), update=mlp(16, 16, 8)
        ),
        (torch.randn(10, 8), torch.randn(10, 3), _edges(10, 40)), F.mse_loss, (torch.randn(10, 11),),
    ),
}  # fmt: skip


# -- sequences ---------------------------------------------------------------------------------


class _Attentive(nn.Module):
    """Seq2seq with additive attention, teacher forcing."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(50, 16), nn.GRU(16, 16, batch_first=True)
        self.cell, self.score = nn.GRUCell(32, 16), mlp(32, 16, 1, act=nn.Tanh)
        self.out = nn.Linear(32, 50)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.words(source))
        state, made = state[0], []
        for step in range(target.shape[1]):
            asked = state[:, None].expand_as(memory)
            weight = self.score(torch.cat([memory, asked], -1)).softmax(1)
            seen = (weight * memory).sum(1)
            state = self.cell(torch.cat([self.words(target[:, step]), seen], -1), state)
            made.append(self.out(torch.cat([state, seen], -1)))
        return torch.stack(made, 2)


def _causal(net: Any, x: Tensor) -> Tensor:
    """A temporal convolutional network, weight-normalized."""
    for i, layer in enumerate(net.layers):
        x = x + F.relu(layer(F.pad(x, (2 * 2**i, 0))))
    return net.out(x[..., -1])


def _tcn() -> nn.Module:
    weighted = torch.nn.utils.parametrizations.weight_norm
    layers = nn.ModuleList(weighted(nn.Conv1d(8, 8, 3, dilation=2**i)) for i in range(3))
    return Formula(_causal, layers=layers, out=nn.Linear(8, 3))


def _wavenet(net: Any, x: Tensor) -> Tensor:
    x, skipped = net.inside(x), 0.0
    for i, (gated, mixed) in enumerate(zip(net.gated, net.mixed, strict=True)):
        a, b = gated(F.pad(x, (2**i, 0))).chunk(2, 1)
        made = mixed(torch.tanh(a) * torch.sigmoid(b))
        x, skipped = x + made, skipped + made
    return net.out(F.relu(skipped))


def _speech() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        found, _ = net.steps(F.relu(net.front(x)).transpose(1, 2))
        return net.out(found).log_softmax(-1).transpose(0, 1)

    steps = nn.LSTM(8, 8, bidirectional=True, batch_first=True)
    return Formula(forward, front=nn.Conv1d(10, 8, 3, 2, 1), steps=steps, out=nn.Linear(16, 12))


def _linear_state(net: Any, x: Tensor) -> Tensor:
    """A diagonal state-space layer as a long convolution by FFT."""
    length = x.shape[-1]
    power = torch.exp(-F.softplus(net.decay)[..., None] * torch.arange(length))
    kernel = (net.mix[..., None] * power).sum(1)
    spectrum = torch.fft.rfft(x, 2 * length) * torch.fft.rfft(kernel, 2 * length)
    return net.out(torch.fft.irfft(spectrum, 2 * length)[..., :length].transpose(1, 2))


def _linear_attention(net: Any, x: Tensor) -> Tensor:
    q, k, v = net.qkv(x).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    sums = torch.cumsum(k[..., :, None] * v[..., None, :], 1)
    found = torch.einsum("btd,btde->bte", q, sums)
    return net.out(found / (q * torch.cumsum(k, 1)).sum(-1, keepdim=True))


class _Decoder(nn.Module):
    """A transformer from scratch: rotary positions, RMSNorm, SwiGLU, tied embeddings."""

    def __init__(self, layers: int = 2, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(60, width)
        parts = {
            "norm": nn.RMSNorm(width), "qkv": nn.Linear(width, 3 * width, bias=False),
            "mix": nn.Linear(width, width, bias=False), "after": nn.RMSNorm(width),
            "wide": nn.Linear(width, 4 * width, bias=False),
            "narrow": nn.Linear(2 * width, width, bias=False),
        }  # fmt: skip
        self.blocks = nn.ModuleList(nn.ModuleDict(copy.deepcopy(parts)) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        angle = torch.outer(torch.arange(x.shape[1]), 10000.0 ** (-torch.arange(4) / 4))
        turn = torch.polar(torch.ones_like(angle), angle)
        for block in self.blocks:
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for t in block["qkv"](block["norm"](x)).chunk(3, -1)
            )
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turn).flatten(
                    -2
                )
                for t in (q, k)
            )
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["mix"](found.transpose(1, 2).flatten(-2))
            gate, wide = block["wide"](block["after"](x)).chunk(2, -1)
            x = x + block["narrow"](F.silu(gate) * wide)
        return (self.norm(x) @ self.words.weight.T).transpose(1, 2)


def _translated(net: Any, source: Tensor, target: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    padding = source == 0
    found = net.body(
        net.words(source), net.words(target), tgt_mask=mask, src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )  # fmt: skip
    return net.out(found).transpose(1, 2)


def _tagged(net: Any, words: Tensor, tags: Tensor) -> Tensor:
    """Negative log-likelihood of a linear-chain conditional random field over a bidirectional LSTM."""
    score = net.out(net.steps(net.words(words))[0])
    total = score[:, 0]
    for step in range(1, score.shape[1]):
        total = torch.logsumexp(total[:, :, None] + net.pass_, 1) + score[:, step]
    path = score.gather(2, tags[..., None]).sum((1, 2)) + net.pass_[tags[:, :-1], tags[:, 1:]].sum(
        1
    )
    return (torch.logsumexp(total, 1) - path).mean()


_SEQUENCES: dict[str, Make] = {
    "seq2seq, additive attention": lambda: Step(
        _Attentive(), (*labels(50, 2, 6), *labels(50, 2, 5)), F.cross_entropy, labels(50, 2, 5)
    ),
    "temporal convolutional network": lambda: Step(
        _tcn(), (torch.randn(2, 8, 20),), F.cross_entropy, labels(3, 2)
    ),
    "WaveNet": lambda: Step(
        Formula(
            _wavenet, inside=nn.Conv1d(1, 8, 1), out=nn.Conv1d(8, 32, 1),
            gated=nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4)),
            mixed=nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4)),
        ),
        (torch.randn(2, 1, 40),), F.cross_entropy, labels(32, 2, 40),
    ),
    "speech, CTC": lambda: Step(
        _speech(), (torch.randn(2, 10, 40),),
        lambda out, y: F.ctc_loss(out, y, torch.tensor([20, 20]), torch.tensor([5, 4])),
        (torch.randint(1, 12, (2, 5)),),
    ),
    "state-space layer, FFT": lambda: Step(
        Formula(_linear_state, decay=torch.randn(8, 4), mix=torch.randn(8, 4), out=nn.Linear(8, 8)),
        (torch.randn(2, 8, 16),), F.mse_loss, (torch.randn(2, 16, 8),),
    ),
    "linear attention": lambda: Step(
        Formula(_linear_attention, qkv=nn.Linear(16, 48), out=nn.Linear(16, 16)),
        (torch.randn(2, 12, 16),), F.mse_loss, (torch.randn(2, 12, 16),),
    ),
    "decoder from scratch": lambda: Step(
        _Decoder(), labels(60, 2, 12), F.cross_entropy, labels(60, 2, 12)
    ),
    "nn.Transformer": lambda: Step(
        Formula(
            _translated, words=nn.Embedding(50, 16), out=nn.Linear(16, 50),
            body=nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
        ),
        (*labels(50, 2, 7), *labels(50, 2, 5)), F.cross_entropy, labels(50, 2, 5),
    ),
    "nn.TransformerEncoder, norm first": lambda: Step(
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu"),
            2, enable_nested_tensor=False,
        ),
        (torch.randn(2, 9, 16),), F.mse_loss, (torch.randn(2, 9, 16),),
    ),
    "tagger, conditional random field": lambda: Step(
        Formula(
            _tagged, words=nn.Embedding(50, 16), out=nn.Linear(16, 5), pass_=torch.randn(5, 5),
            steps=nn.LSTM(16, 8, bidirectional=True, batch_first=True),
        ),
        (*labels(50, 2, 7), *labels(5, 2, 7)), itself, (),
    ),
    "LSTM cells, its own results": lambda: Step(
        _Cells(), (torch.randn(2, 7, 8),), F.mse_loss, (torch.randn(2, 7, 8),)
    ),
}  # fmt: skip


class _Cells(nn.Module):
    """A cell in a Python loop; every second step reads the cell's own last result."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 16)
        made: list[Tensor] = []
        for step in range(x.shape[1]):
            read = x[:, step] if step % 2 == 0 else made[-1]
            h, c = self.cell(read, (h, c))
            made.append(self.out(h))
        return torch.stack(made, 1)


SEQUENCES_AND_GRAPHS: dict[str, Make] = _GRAPHS | _SEQUENCES
