"""The copies that ONNX Runtime writes into a graph that it saves, under names that a plan can use.

ONNX Runtime puts a copy between a node on the device and one on the CPU: one for each value and
direction (core/optimizer/transformer_memcpy.cc). A saved graph has them as nodes, and a session that
reads it adds no others. They are the borders that a plan has to know, as ONNX Runtime decides them.

ONNX Runtime gives the host's side of a value its name, and the device's side a new one
(`relu_WebGpuExecutionProvider`). A plan is about values on the device: there the value keeps its
name, and its copy on the host is called `relu__on_host`. A value made on the CPU, or fed, keeps its
name on the host, and its copy on the device is called `tokens__on_device`. Graph outputs always keep
their names.
"""

from __future__ import annotations

import onnx_ir as ir

from planner.graph.rules import COPIES, TO_HOST
from planner.onnxio.names import FreeNames


def copies_of(model: ir.Model) -> list[ir.Node]:
    """Return the model's copies between host and device, in file order."""
    return [
        node for node in model.graph if node.op_type in COPIES and node.domain in ("", "ai.onnx")
    ]


def name_copies(model: ir.Model, provider: str) -> dict[str, str]:
    """Rename ONNX Runtime's own copies and their outputs in place; other copies stay as they are.

    Return the new name of each renamed node, by its old one.

    Args:
        provider: the suffix that ONNX Runtime gives to values that it made on the device.
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
