"""A Llama decoder (Touvron et al., 2023): RMS normalization, rotary positions, gated feedforward."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.nets.transformer import EMBEDDING_STD

ROTARY_BASE = 10000.0
"""The base of the angles, as in Su et al., 2021."""


class RotaryAttention(nn.Module):
    """Causal multi-head self-attention with rotary positions in queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.heads = heads

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, width] -> the same; `cos` and `sin` are [seq, head width]."""
        batch, seq, width = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        q, k = _turned(q, cos, sin), _turned(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))


class GatedFeedforward(nn.Module):
    """SwiGLU: the up projection is multiplied by a gate, then projected down (Shazeer, 2020)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    """Attention and feedforward, each after a normalization and with a residual."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = RotaryAttention(width, heads)
        self.feedforward_norm = nn.RMSNorm(width, eps=1e-5)
        self.feedforward = GatedFeedforward(width, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, width] -> the same; `cos` and `sin` are [seq, head width]."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feedforward(self.feedforward_norm(x))


class Llama(nn.Module):
    """A decoder-only language model with untied output weights. About 90 M parameters."""

    def __init__(
        self,
        *,
        vocabulary: int = 8192,
        width: int = 640,
        heads: int = 10,
        layers: int = 16,
    ) -> None:
        super().__init__()
        inner = 64 * math.ceil(8 * width / 3 / 64)  # two thirds of four times the width, in 64s
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head_width = width // heads

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] int64 -> logits [batch, seq, vocabulary]."""
        cos, sin = self._rotary(tokens.shape[1], tokens.device)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))

    def _rotary(self, seq: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of each position's angles, [seq, head width] each."""
        half = torch.arange(0, self.head_width, 2, device=device) / self.head_width
        places = torch.arange(seq, device=device, dtype=torch.float32)
        angles = places[:, None] * ROTARY_BASE**-half
        angles = torch.cat((angles, angles), dim=1)
        return angles.cos(), angles.sin()

    def initial_std(self, parameter: str) -> float:
        """Return the same standard deviation for every weight."""
        del parameter
        return EMBEDDING_STD


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair by its position's angle: [batch, heads, seq, head width] -> the same."""
    first, second = x.chunk(2, dim=3)
    return x * cos + torch.cat((-second, first), dim=3) * sin
