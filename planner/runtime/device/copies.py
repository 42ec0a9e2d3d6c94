"""The copies that ONNX Runtime writes into a graph it saves, under names that a plan can use.

Between a node on the device and one on the CPU, ONNX Runtime puts a copy: one for each value and
direction (core/optimizer/transformer_memcpy.cc). A saved graph has them as nodes, and a session that
reads it adds no others. So they are the borders that a plan has to know, found by the one who decides.

ONNX Runtime gives the host's side of a value its name, and the device's side one of its own
(`relu_WebGpuExecutionProvider`). A plan speaks of what is on the device: there the value keeps its name,
and what is on the host is called `relu__on_host`. A value made on the CPU, or fed, keeps its name on the
host, and is `tokens__on_device` beyond the border. Outputs of the graph keep theirs in any case.
"""

from __future__ import annotations

import onnx_ir as ir

from planner.graph.rules import COPIES, TO_HOST
from planner.onnxio.names import FreeNames


def copies_of(model: ir.Model) -> list[ir.Node]:
    """The model's copies between host and device, in file order."""
    return [
        node for node in model.graph if node.op_type in COPIES and node.domain in ("", "ai.onnx")
    ]


def name_copies(model: ir.Model, provider: str) -> dict[str, str]:
    """Rename ONNX Runtime's own copies and what they make, in place; others stay as they are.

    Returns the new name of each renamed node, by its old one.

    Args:
        provider: its name is the suffix of the values that ONNX Runtime made on the device.
    """
    graph = model.graph
    outputs = {str(v.name) for v in graph.outputs}
    fresh = FreeNames(model).fresh
    renamed: dict[str, str] = {}
    for node in copies_of(model):
        to_host = node.op_type == TO_HOST
        on_device, on_host = node.inputs[0] if to_host else node.outputs[0], node.outputs[0]
        if on_device is None or not str(on_device.name).endswith(f"_{provider}"):
            continue
        name = str(on_device.name).removesuffix(f"_{provider}")
        if to_host and name not in outputs:
            on_host.name = fresh(f"{name}__on_host")
            on_device.name = name
        else:
            on_device.name = fresh(f"{name}__on_device")
        old = str(node.name)
        node.name = renamed[old] = fresh(f"{name}__to_host" if to_host else f"{name}__to_device")
    return renamed
