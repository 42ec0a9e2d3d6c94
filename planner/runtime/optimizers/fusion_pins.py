"""Make a rewritten model proof against ONNX Runtime's optimizers.

The plan is made on an optimized graph, but a recomputed chain can allow a fusion that the original
did not: an intermediate value that the backward pass reads has one reader fewer in the copy. A fusion
would change both the numbers and the order. Therefore the rewritten model goes through the optimizers
once more. Wherever they took a node, its output gets a second reader (an anchor), which no fusion
accepts, and the node gets a unique attribute, which no merge of equal nodes accepts (the new file
order can allow a merge that the old one did not). This repeats until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

import onnx
import onnx_ir as ir

from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.graph.marks import PLANNER_ATTRIBUTE
from planner.lower.rewrite import Rewritten
from planner.onnxio.load import LoadedModel
from planner.runtime.device.client import optimize
from planner.runtime.messages import first_line
from planner.runtime.optimizers.shapes import without_large_initializers
from planner.runtime.options import asking_options
from planner.runtime.swapping import needs_of_graph, register_library
from planner.targets import HOST, Target

T = TypeVar("T")

_MAX_ROUNDS = 12
_ACTIVATIONS = frozenset(
    {
        "Elu",
        "HardSigmoid",
        "LeakyRelu",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Tanh",
        "ThresholdedRelu",
    }
)
"""Activations that ONNX Runtime fuses with a product."""


_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


class TakenError(ModelError):
    """The optimizers take nodes however they are pinned.

    Attributes:
        copied: values of the original model that these nodes recompute.
        nodes: the nodes' names, in the rewritten model.
    """

    def __init__(self, message: str, copied: frozenset[str], nodes: frozenset[str]) -> None:
        super().__init__(message)
        self.copied = copied
        self.nodes = nodes


def pin_against_fusion(
    lower: Callable[[frozenset[str]], Rewritten], loaded: LoadedModel
) -> Rewritten:
    """Lower with more and more pinned values until the CPU's optimizers leave every node alone; see
    `pinned`."""
    return pinned(lower, lambda rewritten: rewritten, loaded, enabled=True)


def pinned(
    lower: Callable[[frozenset[str]], Rewritten],
    read: Callable[[Rewritten], T],
    loaded: LoadedModel,
    *,
    enabled: bool,
    targets: Sequence[Target] = (HOST,),
) -> T:
    """Lower a model with enough pinned values that the optimizers leave every node alone; return what
    `read` makes of it.

    Args:
        lower: makes the rewritten model for a set of pinned values.
        read: called with each rewritten model while the optimizers run in a thread; must not change
            it. Only its result or exception for the last model counts.
        enabled: False where the model was not optimized before: the optimizers would then fuse the
            original's own nodes as well, and the check could not tell.
        targets: the targets whose optimizers must all leave the nodes alone.

    Raises:
        TakenError: a node is taken however it is pinned; the message names it.
        ModelError: the rewritten model does not load, or gets nodes that nobody planned.
    """
    pins: frozenset[str] = frozenset()
    rewritten = lower(pins)
    if not enabled:  # sessions that do fuse have to load it nevertheless
        fusable = _before_activations(rewritten.model)
        return read(lower(fusable) if fusable else rewritten)
    taken: list[ir.Node] = []
    for _ in range(_MAX_ROUNDS):
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(_survivors, rewritten.model, targets)
            found = _done(read, rewritten)
        try:
            survivors = asked.result()
        except ModelError:
            more = pins | _before_activations(rewritten.model)
            # a fusion may give its node a name that one of the original has (matmul_add_fusion.cc)
            more = more if more != pins else pins | rewritten.like.keys()
            if more == pins:
                raise
        else:
            taken = [node for node in rewritten.model.graph if node.name not in survivors]
            added = _added(rewritten.model, survivors, targets)
            if not taken and not added:
                return found.result()
            more = _more_pins(rewritten, pins, taken, added)
            if more == pins and not taken:
                _refuse(added, loaded)
            if more == pins:
                break
        pins = more
        rewritten = lower(pins)
    raise _taken_error(rewritten, taken, loaded)


def _more_pins(
    rewritten: Rewritten,
    pins: frozenset[str],
    taken: list[ir.Node],
    added: Sequence[str],
) -> frozenset[str]:
    """Return the pins, with the values of taken nodes added, or those around nodes that nobody
    planned."""
    if not taken:
        return pins | _around(rewritten.model, added)
    more = pins | {str(v.name) for node in taken for v in node.outputs if v.name}
    return more if more != pins else pins | _made_for(taken)  # a sum, fused into a convolution


def _taken_error(rewritten: Rewritten, taken: Sequence[ir.Node], loaded: LoadedModel) -> TakenError:
    names = ", ".join(repr(node.name) for node in taken[:3])
    return TakenError(
        f"ONNX Runtime's optimizers keep rewriting {names} in {loaded.path}",
        frozenset(
            copied
            for node in taken
            for value in node.outputs
            if (copied := rewritten.like.get(str(value.name))) is not None
        ),
        frozenset(str(node.name) for node in taken),
    )


def _done(read: Callable[[Rewritten], T], rewritten: Rewritten) -> Future[T]:
    """Return a call's result or exception as a future, until it is known whether it counts."""
    found: Future[T] = Future()
    try:
        found.set_result(read(rewritten))
    except Exception as error:
        found.set_exception(error)
    return found


def _survivors(model: ir.Model, targets: Sequence[Target]) -> set[str]:
    """Return the names of the nodes that the optimizers of all targets leave or make."""
    return set.intersection(*(_optimized_nodes(model, target) for target in targets))


def _added(model: ir.Model, after: set[str], targets: Sequence[Target]) -> list[str]:
    """Return the names of nodes that the optimizers added, without copies between memories."""
    if any(target.own_memory for target in targets):
        return []
    return sorted(after - {str(node.name) for node in model.graph})


def _around(model: ir.Model, added: Sequence[str]) -> set[str]:
    """Return the values to pin around nodes that the optimizers added.

    These are values whose name an added node's name begins with, and their producers' inputs: pinned,
    they leave no room for a pair of quantizers next to a value
    (core/optimizer/qdq_transformer/qdq_propagation.cc). Where no name matches, they are the values
    around all quantizers: a transpose that moves past one takes it along
    (core/optimizer/transpose_optimization/onnx_transpose_optimization.cc).
    """
    named = [
        node
        for node in model.graph
        if any(v.name and any(name.startswith(v.name) for name in added) for v in node.outputs)
    ]
    around = named or [node for node in model.graph if node.op_type in _QUANTIZERS]
    values = {v for node in around for v in (*node.outputs, *node.inputs) if v is not None}
    return {str(v.name) for v in values if v.producer() is not None}


def _refuse(added: Sequence[str], loaded: LoadedModel) -> NoReturn:
    raise ModelError(
        f"ONNX Runtime's optimizers add nodes to the rewritten {loaded.path} ({added[0]!r}), so "
        "that it would not run as planned; plan the graph as it is with --no-ort-optimize"
    )


def _made_for(nodes: list[ir.Node]) -> set[str]:
    """Return the values that only these nodes read."""
    values = {value for node in nodes for value in node.inputs if value is not None}
    return {str(v.name) for v in values if v.producer() is not None and len(v.uses()) == 1}


def _before_activations(model: ir.Model) -> frozenset[str]:
    """Return the outputs of added nodes that ONNX Runtime would fuse with the activation after them.

    Such a fusion copies the activation's attributes, the unique one included, to a FusedGemm, which does
    not know it (gemm_activation_fusion.cc), and the session does not load.
    """
    return frozenset(
        str(value.name)
        for node in model.graph
        if PLANNER_ATTRIBUTE in node.attributes
        for value in node.outputs
        if [reader.op_type in _ACTIVATIONS for reader in value.consumers()] == [True]
    )


def _optimized_nodes(model: ir.Model, target: Target) -> set[str]:
    """Return the names of the nodes that remain after ONNX Runtime's full set of optimizations."""
    import onnxruntime as ort

    light = without_large_initializers(model)
    with temporary_folder() as folder:
        path = folder / "optimized.onnx"
        if target.own_memory:
            source = folder / "rewritten.onnx"
            ir.save(light, source)
            optimize(target, source, path, level="all")
            return _names_in(path)
        options = asking_options("all")
        options.optimized_model_filepath = str(path)
        if needs_of_graph(light):
            register_library(options)
        try:
            ort.InferenceSession(
                ir.to_proto(light).SerializeToString(), options, providers=[target.provider]
            )
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime cannot load the rewritten model: {first_line(error)}"
            ) from error
        return _names_in(path)


def _names_in(path: Path) -> set[str]:
    """Return the names of a file's nodes, without checking the file."""
    proto = onnx.load(path, format="protobuf", load_external_data=False)
    return {node.name for node in proto.graph.node}
