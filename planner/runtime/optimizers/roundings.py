"""Keep a session's roundings to float16 in the file that it writes.

A float16 node without a kernel gets casts to float32 around it, called `InsertedPrecisionFreeCast_...`.
ONNX Runtime removes a rounding whose readers are all casts with such names, and keeps one that a cast of
the model's own reads (`UnsafeCast` in core/optimizer/insert_cast_transformer.cc). That reader may be
removed in the same pass, with a cast back to float16 after it. A session of the file that was then
written removes the rounding as well, and last bits differ:

    first session      Cast to float16 ─┬─ InsertedPrecisionFreeCast_a
                                        └─ Cast to float32 ── Cast to float16       these two go
    second session     Cast to float16 ─── InsertedPrecisionFreeCast_a              these two go

A cast with another name stays as in the first session (measured with ONNX Runtime 1.31.1).
"""

from __future__ import annotations

import onnx_ir as ir

_FREE = "InsertedPrecisionFreeCast_"


def keep_roundings(model: ir.Model) -> bool:
    """Rename such casts in place; return whether there were any."""
    found = [node for node in model.graph.all_nodes() if str(node.name).startswith(_FREE)]
    for node in found:
        node.name = f"Cast:{node.outputs[0].name}"
    return bool(found)
