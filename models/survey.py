"""What training graphs hold: `python -m models.survey FILE...` prints a Markdown table.

*saved* is what the backward pass reads of the forward one: the activations that a plain
execution keeps until the loss is known. Tensors under several names (Reshape) count once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

LOSS = "loss"
_RENAMING = {"Identity", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The sizes of a training graph, in bytes."""

    nodes: int
    inputs: int
    """All graph inputs: data, parameters, buffers, optimizer state."""
    saved: int
    """Values made before the loss, or with it, and read after it."""


def survey(model: ModelProto) -> Survey:
    """Measure a model whose shapes are static and whose file order is forward, then backward."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    size = {info.name: _bytes(info) for info in [*graph.input, *graph.output, *graph.value_info]}
    source = _sources(graph)
    inputs = {info.name for info in graph.input}
    end = 1 + next(i for i, node in enumerate(graph.node) if LOSS in node.output)
    made = {source.get(name, name) for node in graph.node[:end] for name in node.output if name}
    read = {source.get(name, name) for node in graph.node[end:] for name in node.input if name}
    return Survey(
        nodes=len(graph.node),
        inputs=sum(size[name] for name in inputs),
        saved=sum(size[name] for name in (made - inputs) & read),
    )


def _sources(graph: GraphProto) -> dict[str, str]:
    """Map each value that only renames or reshapes a tensor to that tensor."""
    source: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in _RENAMING:
            source[node.output[0]] = source.get(node.input[0], node.input[0])
    return source


def _bytes(info: ValueInfoProto) -> int:
    tensor = info.type.tensor_type
    if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise ValueError(f"{info.name} has no static shape")
    elements = math.prod(dim.dim_value for dim in tensor.shape.dim)
    return elements * helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize


def table(paths: Iterable[Path]) -> str:
    """Return a Markdown table with one row per file."""
    rows = ["| file | nodes | inputs MiB | saved MiB |", "|---|---:|---:|---:|"]
    for path in paths:
        found = survey(onnx.load(path, load_external_data=False))
        sizes = f"{found.inputs / 2**20:.1f} | {found.saved / 2**20:.1f}"
        rows.append(f"| `{path.name}` | {found.nodes} | {sizes} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    print(table(Path(argument) for argument in arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
