"""The axes of a matrix product's operands (batches, rows, columns), by its attributes."""

from __future__ import annotations


def plain_order(rank: int, *, swapped: bool, batch_behind: bool) -> list[int]:
    """Return the operand's axes in the order that MatMul reads: [*batch, rows, columns].

    Source: onnxruntime/docs/ContribOperators.md, FusedMatMul; tests compare with ONNX Runtime's results.

    Args:
        swapped: `transA` or `transB`: swap the last two axes, after the move by `batch_behind`.
        batch_behind: `transBatchA` or `transBatchB`: the operand is [rows, *batch, columns], and its
            first axis moves behind the batch. It changes nothing below rank 3.
    """
    order = list(range(rank))
    if batch_behind and rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if swapped and rank > 1:
        order[-2:] = order[:-3:-1]
    return order
