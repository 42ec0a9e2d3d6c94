"""Ways to have sessions with default options hold less, by what stands in a file: experiments.

`opened` adds an opening allocation: a buffer that the first node takes and frees at once. `veiled` hides
shapes, so that ONNX Runtime reuses no buffer. Neither is part of planner; `docs/measuring.md` says why.
Both work on an ONNX file as planner wrote it, and keep its order: what is added stands at the end of the
file, where ONNX Runtime's search begins, or is a view.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
from onnx import numpy_helper

from planner.graph.model import TrainingGraph
from planner.graph.schedule import default_order
from planner.runtime.memory.allocation import Kind, place

_SMALL = 1 << 16  # bytes: what is smaller is not veiled
_ELEMENTWISE = frozenset({"Add", "Div", "Equal", "Max", "Min", "Mul", "Pow", "Sub", "Where"})


def _marked(node: onnx.NodeProto, number: int) -> onnx.NodeProto:
    node.attribute.append(oh.make_attribute("__planner", f"scratch:{900_000 + number}"))
    return node


def opened(model: onnx.ModelProto, sizes: tuple[int, ...]) -> onnx.ModelProto:
    """A copy whose first nodes take buffers of these sizes, in bytes, one after the other.

    A product `[1, 0] x [0, n]` of bytes takes 4n bytes, and its kernel writes none of them
    (core/providers/cpu/quantization/matmul_integer.cc): memory that nobody touched is not resident. The
    second factor depends on the `Size` of an input, which is folded at no level.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    before = "planner__size"
    chain = [oh.make_node("Size", [graph.input[0].name], [before], name=f"{before}_node")]
    for index, size in enumerate(sizes):
        name = f"planner__opening_{index}"
        for part, dims, dtype in (
            ("none", (1, 1, 1, 1, 0), np.uint8),
            ("wide", (0, size // 4), np.int64),
        ):
            graph.initializer.append(
                numpy_helper.from_array(np.zeros(dims, dtype), f"{name}_{part}")
            )
        chain += [
            oh.make_node("Min", [before, f"{name}_wide"], [f"{name}_min"]),
            oh.make_node("Cast", [f"{name}_min"], [f"{name}_cast"], to=onnx.TensorProto.UINT8),
            oh.make_node("MatMulInteger", [f"{name}_none", f"{name}_cast"], [f"{name}_buffer"]),
            oh.make_node("Size", [f"{name}_buffer"], [f"{name}_size"]),
        ]
        before = f"{name}_size"
    for number, node in enumerate(chain):
        node.name = node.name or f"{node.output[0]}_node"
        graph.node.append(_marked(node, number))
    return made


def reused(graph: TrainingGraph) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of what ONNX Runtime puts into a buffer that was freed before."""
    order = default_order(graph)
    with_reuse = place(graph, order, reuse=True, host_in_arena=False).kind
    without = place(graph, order, reuse=False, host_in_arena=False).kind
    return [
        (t.name, t.shape, t.dtype)
        for t in graph.tensors
        if t.bytes > _SMALL
        and with_reuse.get(t.id) is Kind.SHARED
        and without.get(t.id) is Kind.OWN
    ]


def veiled(model: onnx.ModelProto, graph: TrainingGraph) -> tuple[onnx.ModelProto, int]:
    """A copy in which the shape of each large tensor that would reuse a buffer is learned as it is made,
    and how many views that takes.

    ONNX Runtime gives a freed buffer to a tensor of the same shape, as far as it knows shapes before a
    run (core/framework/allocation_planner.cc, `FindReusableTensor`). What an operation reads goes through
    `Reshape(x, z)` first, where z is a vector of zeros that is computed: the same dims, but unknown.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    shapes = {t.name: t.shape for t in graph.tensors}
    constants = {i.name for i in made.graph.initializer}
    producer = {name: node for node in made.graph.node for name in node.output}
    views: dict[str, list[onnx.NodeProto]] = {}
    ranks: set[int] = set()
    count = 0
    for name, shape, dtype in reused(graph):
        node = producer[name]
        if node.name in views:
            continue
        read = [i for i, v in enumerate(node.input) if shapes.get(v) and v not in constants]
        views[node.name] = []
        for i in read if node.op_type in _ELEMENTWISE else read[:1]:
            rank = len(shapes[node.input[i]])
            ranks.add(rank)
            count += 1
            view = oh.make_node(
                "Reshape", [node.input[i], f"planner__same_{rank}"], [f"veil_{count}"]
            )
            view.name = f"veil_{count}_node"
            node.input[i] = f"veil_{count}"
            views[node.name].append(_marked(view, 1000 + count))
        _declare(made.graph, name, shape, dtype)
    nodes = [made_of for node in made.graph.node for made_of in (*views.get(node.name, ()), node)]
    kept = [*_zeros(made.graph, ranks), *nodes]
    del made.graph.node[:]
    made.graph.node.extend(kept)
    return made, count


def _declare(graph: onnx.GraphProto, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Name the dims of a value that the file had sized: names of its own match no other's."""
    for info in list(graph.value_info):
        if info.name == name:
            graph.value_info.remove(info)
    kind = {"float": onnx.TensorProto.FLOAT}.get(dtype) or getattr(onnx.TensorProto, dtype.upper())
    dims = [f"{name}_dim_{axis}" for axis in range(len(shape))]
    graph.value_info.append(oh.make_tensor_value_info(name, kind, dims))


def _zeros(graph: onnx.GraphProto, ranks: set[int]) -> list[onnx.NodeProto]:
    nodes = [oh.make_node("Size", [graph.input[0].name], ["planner__n"], name="planner__n_node")]
    for rank in sorted(ranks):
        name = f"planner__same_{rank}"
        zeros = numpy_helper.from_array(np.zeros(rank, np.int64), f"{name}_zeros")
        graph.initializer.append(zeros)
        nodes.append(oh.make_node("Min", ["planner__n", zeros.name], [name], name=f"{name}_node"))
    return [_marked(node, 500 + i) for i, node in enumerate(nodes)]
