"""Append gradients to the nodes of an ONNX model by onnxsim (`onnxsim.graph_grad`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, inliner, numpy_helper

from planner.export.errors import ExportError
from planner.export.from_onnx.plain import made_plain, opset_of
from planner.onnxio.bodies import all_proto_nodes, proto_reads
from planner.onnxio.load import value_types

_PREFIX = "backward."

_MORE_RESULTS = frozenset({"LayerNormalization", "MaxPool"})
"""Operators whose results beyond the first are auxiliary and may be left out."""


def in_plain_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the model's operators that have no gradient here, as far as others are equivalent."""
    from onnxsim import graph_grad

    _leave_unread(proto.graph)
    return made_plain(proto, frozenset(graph_grad.supported_ops() | _RULES.keys()))


def _leave_unread(graph: onnx.GraphProto) -> None:
    """Remove optional results that nothing reads: nodes with several results have no gradient here."""
    read = {value.name for value in graph.output}
    for node in all_proto_nodes(graph):
        read.update(proto_reads(node))
    for node in graph.node:
        while (
            node.op_type in _MORE_RESULTS and len(node.output) > 1 and node.output[-1] not in read
        ):
            del node.output[-1]


def differentiated(
    proto: onnx.ModelProto, parameters: Sequence[str]
) -> tuple[list[onnx.NodeProto], list[TensorProto], dict[str, str]]:
    """Return a model's nodes, and nodes that compute the gradients of its value `loss`.

    Args:
        parameters: names of initializers.

    Returns:
        (all nodes; constants of the added nodes; the gradient's name for each parameter).

    Raises:
        ExportError: an operator cannot be differentiated, or the loss does not depend on a parameter.
    """
    from onnxsim import graph_grad, qat_graph

    types = value_types(ir.from_proto(proto), {})
    shapes: dict[str, Sequence[int | str]] = {name: kind.shape for name, kind in types.items()}
    builder = qat_graph.GraphBuilder(prefix=_PREFIX)
    builder.nodes = list(proto.graph.node)
    constants = [t for t in proto.graph.initializer if t.name not in set(parameters)]
    builder.initializer += constants  # rules read sizes and positions from them
    with ExitStack() as stack:
        for op_type, rule in _RULES.items():
            stack.enter_context(graph_grad.custom_gradient(op_type, rule, override=True))
        try:
            gradients = graph_grad.build_backward(
                builder,
                nodes=_between(proto.graph.node, parameters),
                shapes=shapes,
                grad_outputs={"loss": builder.const(np.float32(1), "seed")},
                targets=list(parameters),
            )
        except ValueError as error:
            raise ExportError(
                f"onnxsim cannot differentiate the model: {_said(error, proto.graph.node)}; "
                "freeze the parameters before it (--freeze), or name those to train (--train)"
            ) from None
    imports = [helper.make_opsetid("", opset_of(proto))]
    for function in builder.functions:  # their operators are equal in both sets
        del function.opset_import[:]
        function.opset_import.extend(imports)
    imports += [helper.make_opsetid(d, 1) for d in {f.domain for f in builder.functions}]
    graph = helper.make_graph(builder.nodes, "g", [], [])
    whole = helper.make_model(graph, functions=builder.functions, opset_imports=imports)
    nodes = list(inliner.inline_local_functions(whole).graph.node)
    _give_axes(nodes[len(proto.graph.node) :], builder)
    return nodes, list(builder.initializer)[len(constants) :], gradients


def _said(error: ValueError, nodes: Sequence[onnx.NodeProto]) -> str:
    """Return onnxsim's message, with the first node added if it names only an operator."""
    text = str(error).partition("; onnxsim.")[0]
    op_type, _, _ = text.partition(" ")
    node = next((n for n in nodes if n.op_type == op_type), None)
    if node is None or "node " in text:
        return text
    return f"{text} (the first: node {node.name or node.output[0]!r})"


def _between(nodes: Sequence[onnx.NodeProto], parameters: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes that depend on parameters and that the loss depends on."""
    reached, needed = set(parameters), {"loss"}
    for node in nodes:
        if not reached.isdisjoint(node.input):
            reached.update(node.output)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            needed.update(node.input)
    return [n for n in nodes if not (reached.isdisjoint(n.output) or needed.isdisjoint(n.output))]


def _give_axes(nodes: Sequence[onnx.NodeProto], builder: Any) -> None:
    """Convert the axes of means to operands: onnxsim writes them as in operator sets before 18."""
    for node in nodes:
        for attribute in [a for a in node.attribute if a.name == "axes"]:
            name = builder.name("axes")
            axes = np.array(attribute.ints, np.int64)
            builder.initializer.append(numpy_helper.from_array(axes, name))
            node.input.append(name)
            node.attribute.remove(attribute)


def _log_softmax(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    """Differentiate LogSoftmax: `g - softmax sum(g)` along the axis."""
    share = ctx.b.op("Exp", [node.output[0]])
    axes = ctx.int64_const([_axis(node, -1)])
    total = ctx.b.op("ReduceSum", [gradient, axes], keepdims=1)
    return [ctx.b.sub(gradient, ctx.b.mul(share, total))]


def _gather(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    """Differentiate Gather: add the gradient's rows to zeros at the positions read.

    Indices may have any rank. onnxsim's own gradient is a product with a matrix of a column for each row.
    """
    data, indices = node.input
    shape, axis = ctx.shape(data), _axis(node, 0)
    axis %= len(shape)
    places = len(ctx.shape(indices))
    if axis:  # move the axis to the front
        order = [
            *range(axis, axis + places),
            *range(axis),
            *range(axis + places, len(shape) - 1 + places),
        ]
        gradient = ctx.b.transpose(gradient, order)
    first = [shape[axis], *shape[:axis], *shape[axis + 1 :]]
    zeros = ctx.b.op("ConstantOfShape", [ctx.int64_const(first)])
    wide = ctx.b.op("Cast", [indices], to=TensorProto.INT64)  # ScatterND takes no int32
    rows = ctx.b.op("Unsqueeze", [wide, ctx.int64_const([places])])
    added = ctx.b.op("ScatterND", [zeros, rows, gradient], reduction="add")
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return [ctx.b.transpose(added, back) if axis else added, None]


def _gather_nd(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    """Differentiate GatherND: add the gradient's parts to zeros at the positions read."""
    if any(attribute.name == "batch_dims" and attribute.i for attribute in node.attribute):
        from onnxsim.graph_grad import UnsupportedOpError

        raise UnsupportedOpError(
            f"GatherND with batch_dims is not differentiated here (node {node.output[0]!r}): "
            "put the batch into the indices"
        )
    data, indices = node.input
    zeros = ctx.b.op("ConstantOfShape", [ctx.int64_const(ctx.shape(data))])
    return [ctx.b.op("ScatterND", [zeros, indices, gradient], reduction="add"), None]


def _matmul(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    """Differentiate MatMul: `g B^T` and `A^T g`.

    If B is one matrix for all of A's, its gradient is one product over all rows. onnxsim's own gradient
    holds a product for each of A's matrices, and adds them up.
    """
    left, right = node.input
    rows, columns = ctx.shape(left), ctx.shape(right)
    if min(len(rows), len(columns)) < 2:
        from onnxsim.graph_grad import UnsupportedOpError

        raise UnsupportedOpError(
            f"MatMul of a vector is not differentiated here (node {node.output[0]!r})"
        )
    whole = ctx.shape(node.output[0])
    of_left = ctx.b.matmul(gradient, ctx.transpose_last_two(right, columns))
    batch = [*whole[:-2]]
    of_left = ctx.reduce_to(of_left, [*batch, *rows[-2:]], rows)
    if len(columns) == 2:
        flat = [ctx.int64_const([-1, width]) for width in (rows[-1], whole[-1])]
        tall, wide = (
            ctx.b.op("Reshape", [value, shape])
            for value, shape in zip((left, gradient), flat, strict=True)
        )
        return [of_left, ctx.b.op("Gemm", [tall, wide], transA=1)]
    of_right = ctx.b.matmul(ctx.transpose_last_two(left, rows), gradient)
    return [of_left, ctx.reduce_to(of_right, [*batch, *columns[-2:]], columns)]


def _power(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    """Differentiate Pow: `g n x^(n - 1)`, and `g x^n log x` (0 where x is 0, as in PyTorch)."""
    base, exponent = node.input[0], ctx.b.op("Cast", [node.input[1]], to=TensorProto.FLOAT)
    lower = ctx.b.op("Pow", [base, ctx.b.sub(exponent, ctx.b.const(np.float32(1)))])
    slope = ctx.b.mul(exponent, lower)
    zero = ctx.b.const(np.float32(0))
    logarithm = ctx.b.op("Where", [ctx.b.op("Equal", [base, zero]), zero, ctx.b.op("Log", [base])])
    steep = ctx.b.mul(node.output[0], logarithm)
    whole = ctx.shape(node.output[0])
    return [
        ctx.reduce_to(ctx.b.mul(gradient, part), whole, ctx.shape(name))
        for part, name in zip((slope, steep), node.input, strict=True)
    ]


def _sum(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    whole = ctx.shape(node.output[0])
    return [ctx.reduce_to(gradient, whole, ctx.shape(name)) for name in node.input]


def _cast_like(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    """Pass the gradient through: constants of functions are cast this way, from float32 to float32."""
    return [gradient, None]


def _flatten(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    return [ctx.b.op("Reshape", [gradient, ctx.int64_const(ctx.shape(node.input[0]))])]


def _none(ctx: Any, node: onnx.NodeProto, gradient: str) -> list[str | None]:
    return [None] * len(node.input)


def _axis(node: onnx.NodeProto, default: int) -> int:
    given = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    return given[0] if given else default


_RULES = {
    "CastLike": _cast_like,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "LogSoftmax": _log_softmax,
    "MatMul": _matmul,
    "OneHot": _none,
    "Pow": _power,
    "Sum": _sum,
}
"""Gradients that onnxsim lacks, or for which its own are too large."""
