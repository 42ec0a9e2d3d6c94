"""Norms and distances of arrays: computed in float32 for float32, for speed, else in float64."""

from __future__ import annotations

import math

import numpy as np


def is_equal(one: np.ndarray | None, other: np.ndarray) -> bool:
    """Tell whether two arrays have the same numbers, or the same bytes."""
    if one is None or one.shape != other.shape:
        return False
    return bool((one == other).all()) or one.tobytes() == other.tobytes()


def norm(array: np.ndarray) -> float:
    """Return the Euclidean norm; it is not finite if an element is not, or if squares overflow."""
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    flat = np.ascontiguousarray(wide).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(square) if (square := float(np.dot(flat, flat))) >= 0 else math.nan


def off_by(one: np.ndarray, other: np.ndarray) -> float:
    """Return the norm of the difference; equal infinities and pairs of not-a-number count as equal."""
    if one.shape != other.shape:
        return math.inf
    is_float = one.dtype == other.dtype and one.dtype in (np.float32, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        off = norm(one - other) if is_float else math.nan
    if math.isfinite(off):
        return off
    a, b = one.astype(np.float64), other.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        off = norm(np.where(same, 0.0, a - b))
    return off if math.isfinite(off) else math.inf


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Return the norm of the difference, divided by the norm of the second array."""
    off, whole = off_by(one, other), norm(other)
    if not off:
        return 0.0
    return off / whole if whole > 0 else math.inf


def is_near(one: np.ndarray, other: np.ndarray, share: float, *, floor: float) -> bool:
    """Tell whether the distance is within `share` of the norm of the second array, or within `floor`.

    The norm counts only finite elements.
    """
    whole = norm(other)
    if not math.isfinite(whole):
        whole = norm(np.where(np.isfinite(other), other, 0))
    return off_by(one, other) <= max(floor, share * whole if math.isfinite(whole) else 0.0)
