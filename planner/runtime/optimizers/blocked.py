"""ONNX Runtime's blocked layout of images (NCHWc), in sessions of default options.

At its level ALL, on the CPU, ONNX Runtime stores images in blocks of channels wherever a convolution
has constant weights, or a pool has whole blocks of channels (core/optimizer/nchwc_transformer.cc). It
lays weights out anew, puts `ReorderInput` and `ReorderOutput` at the borders, and uses other kernels,
whose last bits may differ. The channels of a block depend on the processor: 16 with AVX-512, 8 with
SSE or AVX2 (core/mlas/lib/platform.cpp).

    a pool that gives the same bits either way    stays in the plain layout, at no cost
                                                  (`planner.lower.plain_pools`)
                                                  (of equal zeros of both signs, a maximum may return the
                                                  other one; the same holds for windows of NaNs or of
                                                  negative infinities alone)
    everything else                               is planned as a session lays it out, on the graph of
                                                  the level ALL
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import helper

from planner.errors import UsageError
from planner.files.temporary import temporary_folder
from planner.onnxio.shape_rules.blocked import DOMAIN
from planner.runtime.options import asking_options
from planner.targets import HOST
from planner.targets.keys import BLOCK_KEY

_MAX_BLOCK = 64

_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})

_SAME_BITS_SINCE = 19
"""The version since which AveragePool has its own kernel in the plain layout, which adds in the order
of the blocked one (core/providers/cpu/nn/pool.cc); older ones use MLAS, which adds in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The part of a model that a session of default options stores in blocks.

    Attributes:
        nodes: names of these nodes in the plain graph.
        same_bits: whether all of them are pools with the same bits in either layout, none of them in
            another node's body.
        has_weights: whether weights are laid out anew.
        has_more: whether the level ALL changes the graph in other ways: it fuses a sum into the
            convolution before it (core/optimizer/conv_add_act_fusion.cc), say.
    """

    nodes: tuple[str, ...] = ()
    same_bits: bool = False
    has_weights: bool = False
    has_more: bool = False


def blocked_nodes(model: ir.Model, original: ir.Model) -> list[ir.Node]:
    """Return the nodes of the blocked layout that the level ALL added to an original, bodies
    included."""
    known = {str(node.name) for node in original.graph.all_nodes() if node.domain == DOMAIN}
    return [n for n in model.graph.all_nodes() if n.domain == DOMAIN and n.name not in known]


def layout_of(original: ir.Model, plain: ir.Model, session: ir.Model) -> Layout:
    """Return the part of a model that ONNX Runtime's level ALL stores in blocks.

    Args:
        plain: `original` as the level EXTENDED leaves it; session: as ALL leaves it.
    """
    graph = plain.graph
    fixed = {
        name
        for part in (graph, *graph.subgraphs())
        for name, value in part.initializers.items()
        if value not in part.inputs
    }
    new = blocked_nodes(session, original)
    left = [node for node in session.graph.all_nodes() if node.domain != DOMAIN]
    has_more = _operators(left) != _operators(graph.all_nodes())
    if not new:
        return Layout(has_more=has_more)
    found = [node for node in graph.all_nodes() if _may_be_laid_out(node, fixed)]
    stay = {(n.op_type, str(v.name)) for n in left for v in n.outputs}
    gone = [n for n in found if (n.op_type, str(n.outputs[0].name)) not in stay] or found
    has_weights = any(node.op_type == "Conv" for node in new)
    opset = graph.opset_imports.get("", 1)
    return Layout(
        nodes=tuple(str(node.name or node.outputs[0].name) for node in gone),
        same_bits=not has_weights
        and all(node.graph is graph and _has_same_bits(node, opset) for node in gone),
        has_weights=has_weights,
        has_more=has_more,
    )


def _operators(nodes: Iterable[ir.Node]) -> Counter[tuple[str, str]]:
    """Count the nodes of each operator, without the pools that may be laid out."""
    return Counter((n.domain, n.op_type) for n in nodes if n.op_type not in _POOLS)


def holds_blocked_weights(model: ir.Model) -> bool:
    """Tell whether a model has weights in the layout of one kind of processor."""
    nodes = model.graph.all_nodes()
    return any(node.domain == DOMAIN and node.op_type == "Conv" for node in nodes)


@functools.cache
def block_channels() -> int:
    """Return the channels of a block on this machine's processor; 0 where ONNX Runtime has no such
    layout."""
    block = 1
    while block < _MAX_BLOCK:
        block *= 2
        if _is_laid_out(block):
            return block
    return 0


def check_block(props: Mapping[str, str], where: str) -> None:
    """Raise UsageError where a file that planner wrote has weights in the layout of another processor.

    Args:
        props: the file's metadata.
    """
    said = props.get(BLOCK_KEY)
    if said is not None and said != str(block_channels()):
        here = block_channels()
        layout = f"blocks of {here}" if here else "no blocked layout"
        raise UsageError(
            f"{where} has weights in blocks of {said} channels (NCHWc), for the kind of processor that "
            f"it was planned on; here ONNX Runtime has {layout}: plan the original model on this machine"
        )


def _may_be_laid_out(node: ir.Node, fixed: Set[str]) -> bool:
    """Tell whether a node is a pool, or a convolution whose weights are one of these initializers."""
    if node.domain == DOMAIN:
        return False
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    is_fixed = weights is not None and weights.name in fixed
    return node.op_type in _POOLS or (node.op_type in ("Conv", "FusedConv") and is_fixed)


def _has_same_bits(node: ir.Node, opset: int) -> bool:
    """Tell whether a pool gives the same bits in either layout.

    A maximum always does, an average where both kernels add in one order.
    """
    if node.op_type == "MaxPool":
        return True
    given = node.attributes
    is_plain = (
        given.get_int("ceil_mode", 0) == 0
        and all(d == 1 for d in given.get_ints("dilations", ()))
        and given.get_string("auto_pad", "NOTSET") == "NOTSET"
    )
    return node.op_type == "AveragePool" and opset >= _SAME_BITS_SINCE and is_plain


def _is_laid_out(channels: int) -> bool:
    """Tell whether a pool with this many channels is laid out in blocks."""
    import onnxruntime as ort

    image = [1, channels, 2, 2]
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1])],
        "probe",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, image)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    with temporary_folder() as folder:
        path = folder / "probe.onnx"
        options = asking_options("all")
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=[HOST.provider])
        return any(node.domain == DOMAIN for node in onnx.load(path).graph.node)
