"""Which axes of an operand of a matrix product are batches, rows and columns, by its attributes."""

from __future__ import annotations


def plain_order(rank: int, *, swapped: bool, batch_behind: bool) -> list[int]:
    """The operand's axes in the order that MatMul reads: [*batch, rows, columns].

    onnxruntime/docs/ContribOperators.md, FusedMatMul; tests compare with what ONNX Runtime computes.

    Args:
        swapped: `transA` or `transB`: the last two axes change places, after what follows.
        batch_behind: `transBatchA` or `transBatchB`: the first axis stands behind the batch, as in
            [rows, *batch, columns]. It changes nothing below rank 3.
    """
    order = list(range(rank))
    if batch_behind and rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if swapped and rank > 1:
        order[-2:] = order[:-3:-1]
    return order
