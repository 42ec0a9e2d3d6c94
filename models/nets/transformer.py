"""Transformers: a GPT-2 decoder (Radford et al., 2019), a BERT encoder (Devlin et al., 2018) and a
vision transformer (Dosovitskiy et al., 2020)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMBEDDING_STD = 0.02
"""Standard deviation of the initial weights in both papers' reference code."""


class Attention(nn.Module):
    """Multi-head self-attention; with `fused`, PyTorch's scaled_dot_product_attention."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, dropout: float, fused: bool
    ) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.causal, self.dropout, self.fused = heads, causal, dropout, fused

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same."""
        batch, seq, width = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = self._fused(q, k, v) if self.fused else self._explicit(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout, is_causal=self.causal
        )

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[batch, heads, seq, head width] each; materializes the [.., seq, seq] scores."""
        seq = q.shape[2]
        scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(q.shape[3]))
        if self.causal:
            future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        return drop(F.softmax(scores, dim=3), self.dropout) @ v


class Feedforward(nn.Module):
    """Linear to four times the width, GELU, linear back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same."""
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and feedforward, each with a residual; normalized before (GPT, a `decoder`) or after
    (BERT). A decoder is causal unless told otherwise."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        decoder: bool,
        dropout: float,
        fused: bool,
        causal: bool | None = None,
    ) -> None:
        super().__init__()
        self.attention = Attention(
            width,
            heads,
            causal=decoder if causal is None else causal,
            dropout=dropout,
            fused=fused,
        )
        self.attention_norm = nn.LayerNorm(width)
        self.feedforward = Feedforward(width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.decoder, self.dropout = decoder, dropout

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same."""
        if self.decoder:
            x = x + drop(self.attention(self.attention_norm(x)), self.dropout)
            return x + drop(self.feedforward(self.feedforward_norm(x)), self.dropout)
        x = self.attention_norm(x + drop(self.attention(x), self.dropout))
        return self.feedforward_norm(x + drop(self.feedforward(x), self.dropout))


class Embeddings(nn.Module):
    """Token plus learned position embeddings."""

    def __init__(self, vocabulary: int, positions: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(positions, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] int64 -> [batch, seq, width]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(places)


class GPT(nn.Module):
    """Decoder-only language model; the output weights are the token embedding. GPT-2 small."""

    def __init__(
        self,
        *,
        vocabulary: int = 50257,
        positions: int = 1024,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        dropout: float = 0.0,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.embed = Embeddings(vocabulary, positions, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, decoder=True, dropout=dropout, fused=fused) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.token.weight
        self.dropout = dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] int64 -> logits [batch, seq, vocabulary]."""
        x = drop(self.embed(tokens), self.dropout)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def initial_std(self, parameter: str) -> float:
        """Return the standard deviation: GPT-2 shrinks projections into the residual stream by depth."""
        into_residual = parameter.endswith(("attention.out.weight", "feedforward.down.weight"))
        return EMBEDDING_STD / (math.sqrt(2 * len(self.blocks)) if into_residual else 1)


class BERTClassifier(nn.Module):
    """Bidirectional encoder with a pooled classification head. BERT-base; one segment."""

    def __init__(
        self,
        *,
        vocabulary: int = 30522,
        positions: int = 512,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        classes: int = 2,
        dropout: float = 0.0,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.embed = Embeddings(vocabulary, positions, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, heads, decoder=False, dropout=dropout, fused=fused) for _ in range(layers)
        )
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        self.dropout = dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] int64 -> logits [batch, classes], from the first position."""
        x = drop(self.norm(self.embed(tokens)), self.dropout)
        for block in self.blocks:
            x = block(x)
        return self.head(drop(torch.tanh(self.pooler(x[:, 0])), self.dropout))

    def initial_std(self, parameter: str) -> float:
        """One standard deviation for every weight."""
        del parameter
        return EMBEDDING_STD


class ViT(nn.Module):
    """Image classifier over patches: a strided convolution, learned positions, a mean over patches
    (the variant without a class token). ViT-S/16."""

    def __init__(
        self,
        *,
        image_size: int = 224,
        patch: int = 16,
        width: int = 384,
        heads: int = 6,
        layers: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, decoder=True, dropout=0.0, fused=False, causal=False)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, 3, side, side] -> logits [batch, classes]."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))

    def initial_std(self, parameter: str) -> float:
        """One standard deviation for every weight."""
        del parameter
        return EMBEDDING_STD


def drop(x: Tensor, probability: float) -> Tensor:
    """Apply dropout in training; a probability of zero leaves no node in the graph."""
    return F.dropout(x, probability, training=True) if probability else x
