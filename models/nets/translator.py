"""A Transformer that translates: Vaswani et al., "Attention Is All You Need" (2017).

The default size is that of `transformer_iwslt_de_en` in fairseq (facebookresearch/fairseq):
six layers on each side, 512 wide, four heads, 1024 in the feedforward, normalized after each residual.
Tokens of both languages share one embedding, which is the output's weights, too. Positions are
learned ones here, where the paper's are sines: a table of the same size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.nets.transformer import EMBEDDING_STD, Embeddings, drop


class CrossAttention(nn.Module):
    """Multi-head attention of one sequence to another, or to itself."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.causal, self.dropout = heads, causal, dropout

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Queries [batch, seq, width], keys and values from [batch, other, width] -> as the first."""
        batch, seq, width = x.shape
        q = self._heads(self.query(x))
        k, v = (self._heads(part) for part in self.key_value(memory).split(width, dim=2))
        scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(q.shape[3]))
        if self.causal:
            future = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        mixed = drop(F.softmax(scores, dim=3), self.dropout) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))

    def _heads(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        return x.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)


class TranslatorLayer(nn.Module):
    """Self-attention, cross-attention in a decoder, and a feedforward of twice the width; each with a
    residual, normalized after it."""

    def __init__(self, width: int, heads: int, *, decoder: bool, dropout: float) -> None:
        super().__init__()
        self.itself = CrossAttention(width, heads, causal=decoder, dropout=dropout)
        self.itself_norm = nn.LayerNorm(width)
        self.decoder, self.dropout = decoder, dropout
        if decoder:
            self.other = CrossAttention(width, heads, causal=False, dropout=dropout)
            self.other_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.feedforward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """[batch, seq, width], and the encoder's output -> as the first."""
        x = self.itself_norm(x + drop(self.itself(x, x), self.dropout))
        if memory is not None:
            x = self.other_norm(x + drop(self.other(x, memory), self.dropout))
        more = self.down(F.relu(self.up(x)))
        return self.feedforward_norm(x + drop(more, self.dropout))


class Translator(nn.Module):
    """Encoder and decoder. One tensor holds a batch: the first half of the tokens is the source, the
    second half the translation so far."""

    def __init__(
        self,
        *,
        vocabulary: int = 10000,
        positions: int = 1024,
        width: int = 512,
        heads: int = 4,
        layers: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = Embeddings(vocabulary, positions, width)
        self.encoder = nn.ModuleList(
            TranslatorLayer(width, heads, decoder=False, dropout=dropout) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            TranslatorLayer(width, heads, decoder=True, dropout=dropout) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.token.weight
        self.dropout = dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, 2 seq] int64 -> logits [batch, seq, vocabulary]."""
        source, target = tokens.chunk(2, dim=1)
        memory = drop(self.embed(source), self.dropout)
        for layer in self.encoder:
            memory = layer(memory)
        x = drop(self.embed(target), self.dropout)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(x)

    def initial_std(self, parameter: str) -> float:
        """Return the same standard deviation for every weight."""
        del parameter
        return EMBEDDING_STD
