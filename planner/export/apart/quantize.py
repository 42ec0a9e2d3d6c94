"""Fake quantization as PyTorch's kernels compute it, in operators that ONNX has.

Rounding has no gradient: each operator has its own backward operator (straight-through, or learned),
which is decomposed here too. Source: aten/src/ATen/native/quantized (fake_quant_per_tensor_affine.cpp,
fake_quant_per_channel_affine.cpp), and for the observer fused_obs_fake_quant.cpp with
`ChooseQuantizationParams` (cpu/QuantUtils.h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from planner.export.errors import ExportError

aten = torch.ops.aten

_SMALLEST = 6.1e-5
"""Least scale: smaller ones are raised to it (SMALL_SCALE_THRESHOLD)."""


QUANTIZE: dict[Any, Callable[..., Any]] = {}
"""Decompositions by operator."""


def takes_apart(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decomposition of an operator, a function of its arguments."""

    def register(how: Callable[..., Any]) -> Callable[..., Any]:
        QUANTIZE[operator] = how
        return how

    return register


def _rounded(x: Tensor, scale: Any, zero: Any) -> Tensor:
    return torch.round(x * (1.0 / scale)) + zero


@takes_apart(aten.fake_quantize_per_tensor_affine_cachemask.default)
def per_tensor(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return (dequantized values, mask of the elements that pass the gradient)."""
    steps = _rounded(x, scale, zero)
    return (steps.clamp(low, high) - zero) * scale, (steps >= low) & (steps <= high)


@takes_apart(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def switched(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Quantize like `per_tensor` if enabled; else return x and a mask of True."""
    made, passed = per_tensor(x, scale, zero.to(x.dtype), low, high)
    is_on = enabled.reshape(()) != 0
    return torch.where(is_on, made, x), passed | ~is_on


@takes_apart(aten.fake_quantize_per_channel_affine_cachemask.default)
def per_channel(
    x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Quantize like `per_tensor`, with a scale for each position along the axis."""
    return per_tensor(x, _along(scale, x, axis), _along(zero.to(x.dtype), x, axis), low, high)


def _along(vector: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return vector.reshape(shape)


def _learned(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    return per_tensor(x, scale, torch.round(zero.clamp(low, high)), low, high)[0]


def _learned_gradients(
    dy: Tensor, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, and of scale and zero point per element (Jain et al. 2020, LSQ+)."""
    zero = torch.round(zero.clamp(low, high))
    steps = _rounded(x, scale, zero)
    kept = steps.clamp(low, high)
    inside = steps == kept
    none = torch.zeros((), dtype=x.dtype)
    back = (kept - zero) * scale
    of_scale = dy * torch.where(inside, (back - x) / scale, kept - zero)
    return torch.where(inside, dy, none), of_scale, torch.where(inside, none, -scale * dy)


@takes_apart(aten._fake_quantize_learnable_per_tensor_affine.default)
def learned(
    x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, factor: float = 1.0
) -> Tensor:
    del factor
    return _learned(x, scale.reshape(()), zero.reshape(()), low, high)


@takes_apart(aten._fake_quantize_learnable_per_tensor_affine_backward.default)
def learned_backward(
    dy: Tensor, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, factor: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    found = _learned_gradients(dy, x, scale.reshape(()), zero.reshape(()), low, high)
    return found[0], (found[1].sum() * factor).reshape(1), (found[2].sum() * factor).reshape(1)


@takes_apart(aten._fake_quantize_learnable_per_channel_affine.default)
def learned_channels(
    x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int, factor: float = 1.0
) -> Tensor:
    del factor
    return _learned(x, _along(scale, x, axis), _along(zero, x, axis), low, high)


@takes_apart(aten._fake_quantize_learnable_per_channel_affine_backward.default)
def learned_channels_backward(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero: Tensor,
    axis: int,
    low: int,
    high: int,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    found = _learned_gradients(dy, x, _along(scale, x, axis), _along(zero, x, axis), low, high)
    others = [at for at in range(x.dim()) if at != axis % x.dim()]
    return found[0], found[1].sum(others) * factor, found[2].sum(others) * factor


# -- the observer ----------------------------------------------------------------------------------


def _parameters(
    least: Tensor, most: Tensor, low: int, high: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Return (scale, zero point) for values observed between `least` and `most`, in float64."""
    least, most = least.double(), most.double()
    on_both_sides = (least < 0) & (most > 0) & symmetric
    below, above = -((high - low) // 2 + 1), (high - low) // 2
    widest = torch.maximum((least / below).abs(), (most / above).abs())
    least = torch.where(on_both_sides, widest * below, least).clamp_max(0.0)
    most = torch.where(on_both_sides, widest * above, most).clamp_min(0.0)
    scale = (most - least) / (high - low)
    scale = torch.where(scale.float() == 0, 0.1, scale)
    widened = _SMALLEST / scale
    is_small = widened > 1
    # The other end of a one-sided range stays 0.
    least = torch.where(is_small, least * widened, least)
    most = torch.where(is_small, most * widened, most)
    scale = torch.where(is_small, _SMALLEST, scale)
    is_lower = abs(low) - (least / scale).abs() < abs(high) - (most / scale).abs()
    zero = torch.where(is_lower, low - least / scale, high - most / scale)
    zero = torch.where((least < 0) & (most > 0) & symmetric, (low + high) / 2, zero)
    return scale, torch.round(zero.clamp(low, high))


@takes_apart(aten._fused_moving_avg_obs_fq_helper_functional.default)
def observed(
    x: Tensor,
    observes: Tensor,
    quantizes: Tensor,
    least: Tensor,
    most: Tensor,
    scale: Tensor,
    zero: Tensor,
    share: float,
    low: int,
    high: int,
    axis: int,
    by_channel: bool = False,
    symmetric: bool = False,
) -> tuple[Tensor, ...]:
    """Return (dequantized values, mask that passes the gradient, the new range and parameters)."""
    if not least.numel():
        raise ExportError(
            "the observer of per-channel fake quantization has no ranges yet: run the module "
            "once on the example inputs before the export"
        )
    watches, is_on = observes.reshape(()) != 0, quantizes.reshape(()) != 0
    others = [at for at in range(x.dim()) if not by_channel or at != axis % x.dim()]
    seen = (f(x, others).reshape(least.shape) for f in (torch.amin, torch.amax))
    moved = [
        torch.where(watches, torch.where(torch.isinf(old), new, old + share * (new - old)), old)
        for old, new in zip((least, most), seen, strict=True)
    ]
    made = _parameters(moved[0], moved[1], low, high, symmetric)
    scale = torch.where(is_on, made[0].to(scale.dtype), scale)
    zero = torch.where(is_on, made[1].to(zero.dtype), zero)
    if by_channel:
        result, passed = per_channel(x, scale, zero, axis, low, high)
    else:
        result, passed = per_tensor(x, scale.reshape(()), zero.reshape(()).to(x.dtype), low, high)
    return torch.where(is_on, result, x), passed | ~is_on, *moved, scale, zero
