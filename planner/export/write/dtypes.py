"""Element types of PyTorch and their numpy counterparts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from planner.export.errors import UnsupportedType

HALF = frozenset({torch.float16, torch.bfloat16})

_NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the numpy type of a torch type; raise UnsupportedType if none exists."""
    if dtype not in _NUMPY:
        raise UnsupportedType(dtype)
    return np.dtype(_NUMPY[dtype])


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Return the torch type of a numpy type."""
    return next(ours for ours, theirs in _NUMPY.items() if np.dtype(theirs) == dtype)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as real (`torch.view_as_real`), its form in a graph; others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's elements as an array: complex ones as [..., 2], bfloat16 by ml_dtypes."""
    plain = as_real(tensor.detach().cpu()).contiguous()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy().astype(numpy_dtype(plain.dtype), copy=False)
