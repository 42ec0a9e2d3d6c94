"""What PyTorch's autograd keeps from forward to backward: what papers call activation memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def saved_bytes(module: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    """Return the bytes of all storages that a forward pass saves for the backward pass, without
    parameters.

    Each storage counts once, whoever else keeps it: the output of one layer that is the input of the
    next, say. (`torch.autograd.graph.saved_tensors_hooks` shows each tensor as it is saved.)
    """
    own = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *module.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no other storage gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = F.cross_entropy(module(inputs), labels)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())
