"""Linear algebra of small matrices, unrolled: ONNX has no operator for it except Det.

Each elimination is unrolled step by step, about a dozen nodes per row. This suits the matrices of a flow,
a pose or a covariance, not large ones: sizes are fixed, and at most 32. Gradients are expressed by the
inverse, as PyTorch's are, and need few nodes. Singular matrices are not detected.
"""

from __future__ import annotations

import math
import traceback
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from planner.export.errors import ExportError
from planner.export.lines import line_of_user

LARGEST = 32
"""Largest number of rows of a matrix that is unrolled."""

_TERMS = 12
"""Terms of the matrix exponential's series: for norms up to 1/2, exact beyond float64's last digit."""

_SQUARINGS = 16
"""Number of squarings: the matrix exponential is exact up to a norm of 2 ** 15."""


def _size(a: Tensor, what: str) -> int:
    n = a.shape[-1]
    if not isinstance(n, int) or n > LARGEST or a.is_complex():
        line = line_of_user(traceback.extract_stack())
        where = f", at {line}" if line else ""
        raise ExportError(
            f"{what} of {list(a.shape)}{where}: ONNX has no such operator, and planner writes it "
            f"out only for real matrices of up to {LARGEST} rows; compute it outside the step, "
            "and pass it as an input"
        )
    return n


def _mirrored(a: Tensor) -> Tensor:
    return a.transpose(-1, -2)


class _Spelled(Function):
    """An autograd function with its own gradient, which `torch.func.vmap` supports as well."""

    generate_vmap_rule = True


class _Eliminated(_Spelled):
    """Elimination of [..., n, n] -> (inverse, pivots [..., n], sign of the row permutation [...])."""

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Eliminate by Gauss-Jordan with partial pivoting."""
        n = a.shape[-1]
        rows = torch.arange(n)
        work = torch.cat([a, torch.eye(n, dtype=a.dtype).expand(a.shape)], -1)
        left = torch.ones(a.shape[:-1], dtype=torch.bool)
        chosen: list[Tensor] = []
        pivots: list[Tensor] = []
        for k in range(n):
            column = work[..., k]
            best = torch.where(left, column.abs(), -1.0).argmax(-1, keepdim=True)
            here = rows == best
            left = left & ~here
            row = work.gather(-2, best.unsqueeze(-1).expand(*best.shape, 2 * n))
            pivot = row[..., k : k + 1]
            row = row / pivot
            work = torch.where(here.unsqueeze(-1), row, work - column.unsqueeze(-1) * row)
            chosen.append(best)
            pivots.append(pivot[..., 0, 0])
        order = torch.cat(chosen, -1)
        inverse = work[..., n:].gather(-2, order.unsqueeze(-1).expand(a.shape))
        behind = torch.ones(n, n, dtype=torch.bool).triu(1)
        swaps = ((order.unsqueeze(-1) > order.unsqueeze(-2)) & behind).to(torch.int64).sum((-1, -2))
        sign = (1 - 2 * (swaps % 2)).to(a.dtype)
        return inverse, torch.stack(pivots, -1), sign

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[0])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, d_inverse: Tensor, *_: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradient through the inverse only: the pivots are used through `_Determinant`."""
        (inverse,) = ctx.saved_tensors
        turned = _mirrored(inverse)
        return -(turned @ d_inverse @ turned)


class _Cholesky(_Spelled):
    """Cholesky factorization of [..., n, n], symmetric and positive -> (lower factor, its inverse)."""

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        n = a.shape[-1]
        rows = torch.arange(n)
        rest, columns = a, []
        for k in range(n):
            column = torch.where(rows >= k, rest[..., k], 0.0) / rest[..., k : k + 1, k].sqrt()
            columns.append(column)
            if k + 1 < n:
                rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
        lower = torch.stack(columns, -1)
        return lower, _triangle_inverse(lower)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, d_lower: Tensor, d_inverse: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        # A = L L^T and J = L^-1. With dL' = dL - J^T dJ J^T the symmetric gradient of A is that of
        # J^T P(L^T dL') J, where P keeps the lower triangle and halves the diagonal.
        lower, inverse = ctx.saved_tensors
        turned = _mirrored(inverse)
        d_lower = d_lower - turned @ d_inverse @ turned
        inner = (_mirrored(lower) @ d_lower).tril()
        inner = inner - 0.5 * torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
        found = turned @ inner @ inverse
        return 0.5 * (found + _mirrored(found))


def _triangle_inverse(lower: Tensor) -> Tensor:
    """Invert a lower triangle, row by row."""
    n = lower.shape[-1]
    one = torch.eye(n, dtype=lower.dtype)
    found = (one[:1] / lower[..., :1, :1]).expand(*lower.shape[:-2], 1, n)
    for k in range(1, n):
        known = lower[..., k : k + 1, :k] @ found
        found = torch.cat([found, (one[k] - known) / lower[..., k : k + 1, k : k + 1]], -2)
    return found


class _Triangle(_Spelled):
    """The inverse of a lower triangle."""

    @staticmethod
    def forward(lower: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _triangle_inverse(lower)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, d_inverse: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        turned = _mirrored(ctx.saved_tensors[0])
        return -(turned @ d_inverse @ turned).tril()


class _Solved(_Spelled):
    """Solution of `lower @ mirrored(lower) @ x = b` -> (x, the inverse of `lower`).

    Elements above the triangle are ignored; their gradient is PyTorch's, which is not 0.
    """

    @staticmethod
    def forward(b: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inverse = _triangle_inverse(lower.tril())
        return _mirrored(inverse) @ (inverse @ b), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        found, inverse = output
        ctx.save_for_backward(inputs[1], inverse, found)
        ctx.mark_non_differentiable(inverse)

    @staticmethod
    def backward(ctx: Any, d: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        lower, inverse, found = ctx.saved_tensors
        db = _mirrored(inverse) @ (inverse @ d)
        shared = db @ _mirrored(found)
        return db, -(shared + _mirrored(shared)) @ lower


class _Logarithm(_Spelled):
    """log |det a|, from a, its inverse and its pivots; the gradient is the transposed inverse."""

    @staticmethod
    def forward(a: Tensor, inverse: Tensor, pivots: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del a, inverse
        return pivots.abs().log().sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return d[..., None, None] * _mirrored(ctx.saved_tensors[0]), None, None


class _Determinant(_Spelled):
    @staticmethod
    def forward(a: Tensor, inverse: Tensor, value: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del a, inverse
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inverse, value = ctx.saved_tensors
        return (d * value)[..., None, None] * _mirrored(inverse), None, None


class SLogDet(NamedTuple):
    """Result of `slogdet`, with the fields of `torch.linalg.slogdet`."""

    sign: Tensor
    logabsdet: Tensor


def inv(A: Tensor) -> Tensor:
    """Compute `torch.linalg.inv`."""
    _size(A, "torch.linalg.inv")
    return _Eliminated.apply(A)[0]  # pyright: ignore[reportIndexIssue, reportReturnType, reportOptionalSubscript]


def _eliminated(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _Eliminated.apply(a.detach())  # pyright: ignore[reportReturnType]


def det(A: Tensor) -> Tensor:
    """Compute `torch.linalg.det`; the gradient of a singular matrix is not finite."""
    _size(A, "torch.linalg.det")
    inverse, pivots, sign = _eliminated(A)
    value = pivots[..., 0]
    for k in range(1, pivots.shape[-1]):
        value = value * pivots[..., k]
    return _Determinant.apply(A, inverse, value * sign)  # pyright: ignore[reportReturnType]


def slogdet(A: Tensor) -> SLogDet:
    """Compute `torch.linalg.slogdet`."""
    _size(A, "torch.linalg.slogdet")
    inverse, pivots, sign = _eliminated(A)
    signs = pivots.sign()
    for k in range(pivots.shape[-1]):
        sign = sign * signs[..., k]
    return SLogDet(sign, _Logarithm.apply(A, inverse, pivots))  # pyright: ignore[reportArgumentType]


def logdet(A: Tensor) -> Tensor:
    """Compute `torch.logdet`: NaN if the determinant is negative."""
    found = slogdet(A)
    return torch.where(found.sign < 0, math.nan, found.logabsdet)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Compute `torch.linalg.solve` by the inverse, with one step of refinement on the residual."""
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    if not left:
        return _mirrored(solve(_mirrored(A), _mirrored(B)))
    wide = B.unsqueeze(-1) if is_vector else B
    inverse = inv(A)
    found = inverse @ wide
    found = found + inverse @ (wide - A @ found)
    return found.squeeze(-1) if is_vector else found


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Compute `torch.linalg.cholesky`."""
    _size(A, "torch.linalg.cholesky")
    lower = _Cholesky.apply(A)[0]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]
    return _mirrored(lower) if upper else lower  # pyright: ignore[reportArgumentType, reportReturnType]


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Compute `torch.linalg.solve_triangular`."""
    n = _size(A, "torch.linalg.solve_triangular")
    lower = (_mirrored(A) if upper else A).tril()
    if unitriangular:
        lower = lower.tril(-1) + torch.eye(n, dtype=A.dtype)
    inverse = _Triangle.apply(lower)
    turned: Any = _mirrored(inverse) if upper else inverse  # pyright: ignore[reportArgumentType]
    return turned @ B if left else B @ turned


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """Compute `torch.cholesky_solve`."""
    _size(L, "torch.cholesky_solve")
    lead = torch.broadcast_shapes(B.shape[:-2], L.shape[:-2])
    lower = _mirrored(L) if upper else L
    given = (B.expand(*lead, *B.shape[-2:]), lower.expand(*lead, *lower.shape[-2:]))
    return _Solved.apply(*given)[0]  # pyright: ignore[reportIndexIssue, reportReturnType, reportOptionalSubscript]


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """Compute `torch.cholesky_inverse`."""
    one = torch.eye(_size(L, "torch.cholesky_inverse"), dtype=L.dtype)
    return cholesky_solve(one.expand(L.shape), L, upper)


def matrix_exp(A: Tensor) -> Tensor:
    """Compute `torch.linalg.matrix_exp` by a series below norm 1/2, squared repeatedly."""
    n = _size(A, "torch.linalg.matrix_exp")
    norm = A.detach().abs().sum(-2).amax(-1)[..., None, None]
    halvings = torch.ceil(torch.log2(norm.clamp_min(1e-30))).clamp(-1, _SQUARINGS - 1) + 1
    scaled = A / torch.exp2(halvings)
    one = torch.eye(n, dtype=A.dtype)
    found = one + scaled / _TERMS
    for k in range(_TERMS - 1, 0, -1):
        found = one + scaled @ found / k
    for k in range(_SQUARINGS):
        found = torch.where(halvings > k, found @ found, found)
    return found
