"""Stacked recurrent layers with dropout between them, traced layer by layer.

PyTorch's decomposition of the whole stack omits the dropout: it tests `num_layers < i - 1` with i a
layer's number, which is never true (torch/_decomp/decompositions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def by_layer(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in for `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu`.

    Args:
        run: that function; it runs single layers, and calls without dropout or on packed sequences.
    """

    def stacked(*args: Any) -> Any:
        # For a packed sequence, the weights are the fourth argument.
        if len(args) != 9 or not isinstance(args[3], bool):
            return run(*args)
        x, state, weights, has_biases, layers, dropout, train, both_ways, batch_first = args
        if not (dropout and train and layers > 1):
            return run(*args)
        x = x.transpose(0, 1) if batch_first else x
        each, ways = len(weights) // layers, 1 + both_ways
        ends: list[Any] = []
        for layer in range(layers):
            own = weights[each * layer : each * (layer + 1)]
            given = _part(state, ways * layer, ways * (layer + 1))
            x, *end = run(x, given, own, has_biases, 1, 0.0, train, both_ways, False)
            ends.append(end)
            if layer + 1 < layers:
                x = F.dropout(x, dropout)
        x = x.transpose(0, 1) if batch_first else x
        return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))

    return stacked


def _part(state: Any, start: int, end: int) -> Any:
    """Return the state of some layers."""
    if isinstance(state, Tensor):
        return state[start:end]
    return tuple(part[start:end] for part in state)
