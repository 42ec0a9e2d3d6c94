"""A clone of a model with one node of `planner.fused` in place of each group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np
import onnx_ir as ir

from planner.fuse.again import outputs_of, with_again
from planner.fuse.convolutions import convolutions_of, with_prepared
from planner.fuse.groups import Group, GroupSearch, groups_of
from planner.fuse.operators import row_of, types_of
from planner.fuse.program import Program, outside, program_of
from planner.graph.model import Operation, OpId, TensorId, TrainingGraph
from planner.graph.rules import FUSED_DOMAIN, POINTWISE
from planner.onnxio.bodies import reads
from planner.onnxio.names import FreeNames
from planner.targets.target import FusedKernels

_MOST_AXES = 4

Members = tuple[str, ...]
"""Names of the operations that a node replaces, then of those that it computes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """A model with groups fused.

    Attributes:
        members: members of each new node, by the node's name.
        order: names of all nodes, in a valid order close to the given one. The model's nodes are in one
            close to the original's: a base order of its own.
    """

    model: ir.Model
    members: Mapping[str, Members]
    order: tuple[str, ...]


def ground_of(
    model: ir.Model, graph: TrainingGraph, *, only_exact: bool, kernels: FusedKernels
) -> GroupSearch:
    """Return the graph in which groups are searched, with its constants and reductions.

    Args:
        graph: the graph of `model`, its operations in the order of the nodes.
        kernels: fused kernels of the target where it runs.
    """
    nodes = list(model.graph)
    values = {t.name: t for t in graph.tensors}
    constants: dict[TensorId, str] = {}
    for name, value in model.graph.initializers.items():
        tensor = values.get(name)
        if tensor is None or tensor.is_input or value.const_value is None:
            continue
        if (
            tensor.dtype in types_of(kernels, only_exact=only_exact)
            and math.prod(tensor.shape) == 1
        ):
            constants[tensor.id] = _text(value.const_value.numpy())
    axes: dict[OpId, int] = {}
    for op in graph.operations:
        row = row_of(op.op_type, op.domain)
        if row is None or not row.reduces or not (row.reads_one or kernels.normalizations):
            continue
        count = _last_axes if row.reads_one else _normalized_axes
        if found := count(nodes[op.id], graph, op):
            axes[op.id] = found
    return GroupSearch(
        graph=graph, constants=constants, axes=axes, only_exact=only_exact, kernels=kernels
    )


def _text(array: np.ndarray) -> str:
    """Return a constant in a program's notation, which reads back as the same number."""
    item = array.reshape(-1)[0]
    return str(int(item)) if array.dtype.kind in "biu" else str(item)


def _last_axes(node: ir.Node, graph: TrainingGraph, op: Operation) -> int:
    """Return the number of last axes that a reduction reduces and keeps; 0 for any other reduction."""
    rank = len(graph.tensors[op.inputs[0]].shape)
    axes: Sequence[int] | None = node.attributes.get_ints("axes")
    if axes is None:
        value = node.inputs[1] if len(node.inputs) > 1 else None
        fixed = value is not None and not value.is_graph_input() and value.const_value is not None
        axes = value.const_value.numpy().reshape(-1).tolist() if fixed else None  # type: ignore[union-attr]
    if not axes or not node.attributes.get_int("keepdims", 1):
        return 0
    last = sorted(axis % rank for axis in axes)
    is_last = last == list(range(rank - len(last), rank)) and len(last) <= _MOST_AXES
    return len(last) if is_last else 0


def _normalized_axes(node: ir.Node, graph: TrainingGraph, op: Operation) -> int:
    """Return the number of last axes that a normalization goes over; 0 where its steps are others.

    Before opset 13 a Softmax went over all axes from its `axis` on, as a LayerNormalization does.
    """
    opset = node.graph.opset_imports.get("", 0) if node.graph is not None else 0
    rank, is_layer = len(graph.tensors[op.inputs[0]].shape), op.op_type == "LayerNormalization"
    axis = node.attributes.get_int("axis", -1 if is_layer or opset >= 13 else 1)
    count = rank - axis % rank if rank else 0
    if not is_layer and opset >= 13 and count != 1:
        return 0
    # an output that is left out has no place among the operation's
    is_plain = all(value.name for value in node.outputs) and None not in node.inputs
    is_plain &= node.attributes.get_int("stash_type", 1) == 1
    return count if is_plain and count <= _MOST_AXES else 0


def with_fusion(
    model: ir.Model,
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    only_exact: bool,
    kernels: FusedKernels,
    without: Collection[str] = (),
) -> Fused | None:
    """Fuse all groups; return None where there are none.

    Args:
        model: the model that `graph` was built from; it is not changed.
        order: order of the graph's operations.
        only_exact: fuse only operations that keep ONNX Runtime's own bits.
        kernels: fused kernels of the target where the model runs.
        without: names of the first operations of groups that stay as they are.
    """

    def is_asked(op: OpId) -> bool:
        return graph.operations[op].name not in without

    ground = ground_of(model, graph, only_exact=only_exact, kernels=kernels)
    found = [group for group in groups_of(ground) if is_asked(group.operations[0])]
    fused = frozenset(op for group in found for op in group.operations)
    groups = with_again(ground, found)
    programs = _programs(ground, groups, fused)
    convolved = convolutions_of(model, graph, only_exact=only_exact) if kernels.convolutions else []
    convolved = with_prepared(graph, [one for one in convolved if is_asked(one.operations[0])])
    if not programs and not convolved:
        return None
    build = _GroupWriter(model.clone(), graph)
    members: dict[str, Members] = {}
    name_of = {op.id: op.name for op in graph.operations}

    def put(node: NewNode, operations: Sequence[OpId], again: Sequence[OpId] = ()) -> None:
        name = build.put(node, graph.operations[operations[0]].name)
        members[name] = tuple(graph.operations[op].name for op in (*operations, *again))
        name_of.update(dict.fromkeys(operations, name))

    for group, program in programs:
        node = NewNode(POINTWISE, program.inputs, program.outputs, {"program": program.text})
        put(node, group.operations, group.again)
    for one in convolved:
        made = graph.operations[one.operations[-1]].outputs
        window = {"window": one.window} if one.window else {}
        node = NewNode(one.op_type, one.inputs, made, window)
        put(node, (*one.operations, *one.prepares))
    gone = fused - {op for group in groups for op in group.operations}
    build.remove({*gone, *(op for group, _ in programs for op in group.operations)})
    build.remove(op for one in convolved for op in (*one.operations, *one.prepares))
    build.put_in(build.ordered({name_of[op.id]: op.id for op in graph.operations}))
    place = {name_of[op]: i for i, op in enumerate(order)}  # a group's last one
    return Fused(model=build.model, members=members, order=build.ordered(place))


def _programs(
    ground: GroupSearch, groups: Sequence[Group], fused: frozenset[OpId]
) -> list[tuple[Group, Program]]:
    """Return each group that becomes a node, with its program. A single operation stays as it is."""
    graph = ground.graph
    reads = Counter(t for group in groups for t in outside(ground, group))
    found: list[tuple[Group, Program]] = []
    for group, outputs in zip(groups, outputs_of(ground, groups, fused), strict=True):
        if len(group.operations) + len(group.again) < 2:
            continue
        mine = set(group.operations)
        dying = frozenset(
            t
            for t in outside(ground, group)
            if reads[t] == 1 and mine.issuperset(c for c in graph.tensors[t].consumers)
        )
        program = program_of(ground, group, outputs, dying)
        if program is not None:
            found.append((group, program))
    return found


class NewNode(NamedTuple):
    """A node of `planner.fused`, whose outputs replace tensors of the graph."""

    op_type: str
    inputs: Sequence[TensorId]
    outputs: Sequence[TensorId]
    attributes: Mapping[str, str]


class _GroupWriter:
    """Puts nodes of groups into one model, in place of their operations."""

    def __init__(self, model: ir.Model, graph: TrainingGraph) -> None:
        self.model, self.graph = model, graph
        self._nodes = list(model.graph)
        self._names = FreeNames(model)
        inputs = (*model.graph.inputs, *model.graph.initializers.values())
        made = (value for node in self._nodes for value in node.outputs)
        self._values = {str(v.name): v for v in (*inputs, *made) if v.name}
        model.graph.opset_imports[FUSED_DOMAIN] = 1

    def put(self, new: NewNode, first: str) -> str:
        """Add a node, make its outputs replace the operations' results, and return its name.

        Args:
            first: name of the first operation that it replaces.
        """
        tensors = self.graph.tensors
        before = [self._values[tensors[t].name] for t in new.outputs]
        node = ir.Node(
            FUSED_DOMAIN,
            new.op_type,
            [self._values[tensors[t].name] for t in new.inputs],
            attributes=[ir.AttrString(name, text) for name, text in new.attributes.items()],
            outputs=[ir.Value(shape=value.shape, type=value.type) for value in before],
            version=1,
            name=self._names.fresh(f"{first}__fused"),
        )
        for old, made in zip(before, node.outputs, strict=True):
            name, old.name = str(old.name), None
            ir.convenience.replace_all_uses_with(old, made, replace_graph_outputs=True)
            made.name = name
            self._values[name] = made
        self.model.graph.append(node)
        return str(node.name)

    def remove(self, operations: Iterable[OpId]) -> None:
        """Remove nodes whose results nothing reads any more."""
        self.model.graph.remove([self._nodes[op] for op in operations])

    def ordered(self, place: Mapping[str, int]) -> tuple[str, ...]:
        """Return the nodes' names in a topological order close to their places."""
        nodes = {str(node.name): node for node in self.model.graph}
        made = {value: name for name, node in nodes.items() for value in node.outputs}
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(nodes)
        for name, node in nodes.items():
            graph.add_edges_from((made[value], name) for value in reads(node) if value in made)
        return tuple(nx.lexicographical_topological_sort(graph, place.__getitem__))

    def put_in(self, order: Sequence[str]) -> None:
        """Put the nodes in an order of their names."""
        nodes = {str(node.name): node for node in self.model.graph}
        self.model.graph.remove(list(nodes.values()))
        self.model.graph.extend(nodes[name] for name in order)
