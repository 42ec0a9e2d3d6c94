"""Write a plan into a model: recomputed nodes, swaps, barriers, anchors, and the file order.

Inputs, outputs, initializers, operator sets and metadata stay as they are. Every added node carries
the attribute `__planner` = "<role>:<number>": ONNX Runtime's common-subexpression elimination keeps it
apart from its original, and anyone can tell it from the user's own nodes. Its metadata states its purpose
(`planner.lower.annotate` adds the reason).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from planner.formulate import Formulation
from planner.graph.marks import PLANNER_ATTRIBUTE
from planner.graph.model import Role, TrainingGraph
from planner.graph.rules import COMING_IN, SWAP_DOMAIN, SWAP_OPERATORS
from planner.graph.schedule import behind_parents, reverse_dfs_order
from planner.lower.order.anchors import own_type
from planner.lower.order.realize import UnanchoredError, realize
from planner.lower.order.riders import carried
from planner.lower.sequence import Sequencer
from planner.lower.steps import PlannedStep, swap_attributes
from planner.onnxio.bodies import captured, has_bodies, rewire
from planner.onnxio.load import ValueType
from planner.onnxio.names import FreeNames, initializer
from planner.plan.problem import Action
from planner.targets import HOST, Target
from planner.targets.keys import NEEDS_KEY, NEEDS_SWAPS

METADATA_PREFIX = "pkg.planner."

_NO_BYTES = frozenset({Role.BARRIER, Role.SWAP_OUT_DONE, Role.SWAP_IN_DONE, Role.STORE_TO})
"""Roles of nodes that have a tensor but move none of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The rewritten model.

    Attributes:
        planned_order: names of all its nodes, in the order in which ONNX Runtime must run them.
        anchors: number of nodes that pin the order (`planner.lower.order.anchors`).
        action_nodes: for each action of the schedule, the name of its node.
        like: for each new value, the original value whose type and shape it has.
        types: types of all added values.
        on_cpu: names of added nodes that run on the CPU, on a target with a memory of its own.
    """

    model: ir.Model
    planned_order: tuple[str, ...]
    anchors: int
    action_nodes: tuple[str, ...]
    like: Mapping[str, str]
    types: Mapping[str, ValueType]
    on_cpu: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions that will run the file.

    Attributes:
        target: the target that they run on.
        order: their execution order, "default" or "priority".
    """

    target: Target = HOST
    order: str = "default"


_AS_USUAL = Sessions()


def rewrite(
    model: ir.Model,
    graph: TrainingGraph,
    formulation: Formulation,
    actions: Sequence[Action],
    *,
    pinned: frozenset[str] = frozenset(),
    sessions: Sessions = _AS_USUAL,
) -> Rewritten:
    """Lower a schedule to a rewritten model.

    Args:
        model: the model that `graph` was built from; it is cloned, not changed.
        graph: the model's graph, in file order.
        formulation: the problem that the schedule solves.
        actions: the schedule.
        pinned: values that get an anchor of their own, which prevents fusions, and whose nodes get the
            unique attribute, which prevents common-subexpression elimination.
        sessions: the sessions that will run the file.
    """
    opset = model.graph.opset_imports.get("", 1)
    names = FreeNames(model)
    sequencer = Sequencer(graph, formulation, names, sessions.target, opset)
    steps = sequencer.build(actions)
    if pinned:
        steps = [s for step in steps for s in (step, *_pins(sequencer, step, pinned))]
    file_steps, planned = _arrange(sequencer, steps, sessions.order)
    writer = _Writer(model.clone(), graph, names, pinned)
    writer.write(file_steps)
    anchors = sum(step.role is Role.ANCHOR for step in planned)
    return Rewritten(
        model=writer.model,
        planned_order=tuple(step.name for step in planned),
        anchors=anchors,
        action_nodes=tuple(sequencer.action_nodes),
        like=_likeness(graph, steps),
        types={**_added_types(sequencer, planned), **writer.types},
        on_cpu=frozenset(step.name for step in planned if step.on_cpu),
    )


def _pins(sequencer: Sequencer, step: PlannedStep, pinned: frozenset[str]) -> list[PlannedStep]:
    anchors = [sequencer.anchor(step, v) for v in step.writes.values() if v in pinned]
    return [anchor for anchor in anchors if anchor is not None]


def _likeness(graph: TrainingGraph, steps: Sequence[PlannedStep]) -> dict[str, str]:
    found: dict[str, str] = {}
    for step in steps:
        if step.op is not None:
            found.update((new, old) for old, new in step.writes.items() if new != old)
        elif step.tensor is not None and step.role is not Role.ANCHOR:
            tensor = graph.tensors[step.tensor]
            if own_type(step.op_type, tensor) is None:
                found[step.writes[""]] = tensor.name
    return found


def _added_types(sequencer: Sequencer, steps: Sequence[PlannedStep]) -> dict[str, ValueType]:
    """Return the types of the steps' outputs that the original model does not have."""
    tensors = sequencer.graph.tensors
    found: dict[str, ValueType] = {}
    for step in steps:
        if step.op is None:
            assert step.tensor is not None
            tensor = tensors[step.tensor]
            own = own_type(step.op_type, tensor) or (tensor.dtype, tensor.shape)
            found[step.writes[""]] = _value_type(*own)
            continue
        for old, new in step.writes.items():
            if new not in ("", old):
                tensor = tensors[sequencer.ids[old]]
                found[new] = _value_type(tensor.dtype, tensor.shape)
    return found


def _value_type(dtype: str, shape: tuple[int, ...]) -> ValueType:
    return ValueType(dtype=ir.DataType[dtype.upper()], shape=shape)


def _arrange(
    sequencer: Sequencer, steps: list[PlannedStep], order: str
) -> tuple[list[PlannedStep], list[PlannedStep]]:
    """Return (steps in file order, steps in the order they will run), anchors included."""
    if order == "priority":
        return steps, steps
    parents = _parents(steps)
    bound = carried(parents, [_may_ride(sequencer.graph, step) for step in steps])
    anchored = [
        next((i for i in (step, *riders) if sequencer.can_anchor(steps[i])), None)
        for step, riders in zip(bound.carriers, bound.riders, strict=True)
    ]
    try:
        rank = [_file_place(sequencer.graph, steps[i]) for i in bound.carriers]
        plan = realize(bound.parents, [step is not None for step in anchored], rank)
    except UnanchoredError as error:
        step = bound.carriers[error.step]
        copy = sequencer.host_copy(steps[step])
        return _arrange(sequencer, [*steps[: step + 1], copy, *steps[step + 1 :]], order)
    file_steps = [steps[i] for i in bound.first]
    for place in plan.body:
        file_steps += [steps[i] for i in (bound.carriers[place], *bound.riders[place])]
    for place, is_anchor in plan.roots:
        step = anchored[place] if is_anchor else bound.carriers[place]
        assert step is not None
        added = sequencer.anchor(steps[step]) if is_anchor else steps[step]
        assert added is not None
        file_steps.append(added)
    in_file = range(len(file_steps))
    planned = [file_steps[i] for i in reverse_dfs_order(_parents(file_steps), in_file)]
    wanted = {id(steps[i]): i for i in bound.carriers}
    as_run = [wanted[id(step)] for step in planned if id(step) in wanted]
    if as_run != sorted(as_run):
        raise AssertionError("the rewritten file's default order is not the planned one")
    if sequencer.graph.shapes_follow:
        planned = _with_shapes_behind(sequencer.graph, planned, file_steps)
    return file_steps, planned


def _parents(steps: Sequence[PlannedStep]) -> list[list[int]]:
    """Return for each step the steps whose outputs it reads."""
    made_by = {value: i for i, step in enumerate(steps) for value in step.writes.values()}
    return [sorted({made_by[v] for v in step.reads.values() if v in made_by}) for step in steps]


def _file_place(graph: TrainingGraph, step: PlannedStep) -> int:
    """Return the place in the original file of a step's operation, or of the producer that it copies."""
    if step.op is not None:
        return step.op
    assert step.tensor is not None
    return graph.tensors[step.tensor].producer or 0


def _may_ride(graph: TrainingGraph, step: PlannedStep) -> bool:
    """Tell whether a step moves no bytes."""
    return step.role is Role.BARRIER or (step.op is not None and graph.operations[step.op].is_view)


def _with_shapes_behind(
    graph: TrainingGraph, planned: list[PlannedStep], file_steps: Sequence[PlannedStep]
) -> list[PlannedStep]:
    """Return `planned` in the order of a build that moves every Shape and Size directly after its
    input."""
    parents = _parents(planned)
    place = {step.name: i for i, step in enumerate(file_steps)}
    moving = {
        i
        for i, step in enumerate(planned)
        if step.role is Role.ANCHOR
        or (step.op is not None and graph.operations[step.op].op_type in ("Shape", "Size"))
    }
    index = [place[step.name] for step in planned]
    return [planned[i] for i in behind_parents(range(len(planned)), parents, moving, index)]


class _Writer:
    """Rebuilds the node list of one cloned model."""

    def __init__(
        self, model: ir.Model, graph: TrainingGraph, names: FreeNames, pinned: frozenset[str]
    ) -> None:
        self.model = model
        self.names = names
        self.zeros: dict[str, ir.Value] = {}
        self.types: dict[str, ValueType] = {}  # of the added initializers
        self.pinned = pinned
        self.graph = graph
        self.nodes = {str(node.name): node for node in model.graph}
        self.values: dict[str, ir.Value] = {}
        for value in (*model.graph.inputs, *model.graph.initializers.values()):
            self.values[str(value.name)] = value
        for node in model.graph:
            self.values.update((str(v.name), v) for v in node.outputs if v.name)

    def write(self, steps: Sequence[PlannedStep]) -> None:
        """Replace the graph's nodes by `steps`."""
        before = list(self.model.graph)
        created = [self._create(step) for step in steps]
        # inputs are looked up by their original names, so all lookups precede all changes
        wanted = [self._inputs(step) for step in steps]
        rewired = [
            (node, self._captured(node, step))
            for node, step in zip(created, steps, strict=True)
            if has_bodies(node)
        ]
        for node, values in zip(created, wanted, strict=True):
            for i, value in enumerate(values):
                node.replace_input_with(i, value)
        for node, replaced in rewired:
            rewire(node, replaced)
        kept = {id(node) for node in created}
        self.model.graph.remove(before)
        for node in before:
            if id(node) not in kept:
                for i in range(len(node.inputs)):
                    node.replace_input_with(i, None)
        self.model.graph.extend(created)

    def _create(self, step: PlannedStep) -> ir.Node:
        """Return the node of a step with its outputs; its inputs are set later."""
        if step.op is not None and not step.copy:
            node = self.nodes[self.graph.operations[step.op].name]
            if any(v.name in self.pinned for v in node.outputs):
                mark = f"{Role.ORIGINAL.value}:{node.name}"
                node.attributes[PLANNER_ATTRIBUTE] = ir.AttrString(PLANNER_ATTRIBUTE, mark)
            return node
        node = self._copy(step) if step.op is not None else self._added(step)
        node.attributes[PLANNER_ATTRIBUTE] = ir.AttrString(
            PLANNER_ATTRIBUTE, f"{step.role.value}:{step.number}"
        )
        for key, fact in self._facts(step).items():
            node.metadata_props[METADATA_PREFIX + key] = fact
        for value in node.outputs:
            self.values[str(value.name)] = value
        return node

    def _facts(self, step: PlannedStep) -> dict[str, str]:
        """Return the metadata of an added node: its role, and the operation that it copies or its
        tensor."""
        facts = {"role": step.role.value}
        tensors = self.graph.tensors
        if step.op is not None:
            op = self.graph.operations[step.op]
            facts["recomputes"] = op.name
            facts["tensor"] = ", ".join(tensors[t].name for t in op.outputs)
            made = () if op.is_view else [t for t in op.outputs if step.writes[tensors[t].name]]
            facts["bytes"] = str(sum(tensors[t].bytes for t in made))
        elif step.role is Role.SWAP_BEGIN:
            pass  # of no tensor
        elif step.role is Role.ANCHOR:
            facts["tensor"] = step.reads[""]
        elif step.tensor is not None:
            moves = step.role not in _NO_BYTES
            facts["tensor"] = tensors[step.tensor].name
            facts["bytes"] = str(tensors[step.tensor].bytes if moves else 0)
        return facts

    def _copy(self, step: PlannedStep) -> ir.Node:
        assert step.op is not None
        original = self.nodes[self.graph.operations[step.op].name]
        outputs = [
            ir.Value(name=step.writes[str(v.name)] if v.name else "", shape=v.shape, type=v.type)
            for v in original.outputs
        ]
        return ir.Node(
            original.domain,
            original.op_type,
            inputs=[None] * len(original.inputs),
            attributes=list(original.attributes.values()),
            overload=original.overload,
            outputs=outputs,
            version=original.version,
            name=step.name,
        )

    def _added(self, step: PlannedStep) -> ir.Node:
        assert step.tensor is not None
        like = self.values[self.graph.tensors[step.tensor].name]
        tensor = self.graph.tensors[step.tensor]
        shape = like.shape  # None where it has none: a value with a new shape could be folded
        own = own_type(step.op_type, tensor)
        of = tensor.dtype if own is None else own[0]
        kind = like.type or ir.TensorType(ir.DataType[of.upper()])
        if step.op_type in COMING_IN:
            shape = (
                None  # its buffer must be no other tensor's (planner/native/swap/swaps.h, `Hold`)
            )
        if own is not None:
            shape = ir.Shape(own[1])
            if own[0] != tensor.dtype:
                kind = ir.TensorType(ir.DataType[own[0].upper()])
        value = ir.Value(name=step.writes[""], shape=shape, type=kind)
        for place, output in enumerate(self.model.graph.outputs):
            if output.name == value.name:
                self.model.graph.outputs[place] = value
        is_swap = step.op_type in SWAP_OPERATORS
        if is_swap:
            self.model.opset_imports[SWAP_DOMAIN] = 1
            self.model.metadata_props[NEEDS_KEY] = NEEDS_SWAPS
        return ir.Node(
            SWAP_DOMAIN if is_swap else "",
            step.op_type,
            inputs=[None] * (len(step.reads) + (step.op_type in ("Reshape", "GatherND"))),
            attributes=swap_attributes(step.op_type, tensor),
            outputs=[value],
            name=step.name,
        )

    def _inputs(self, step: PlannedStep) -> list[ir.Value | None]:
        """Return the values that a step's node reads, by input position."""
        if step.op is None:
            values: list[ir.Value | None] = [self.values[name] for name in step.reads.values()]
            assert step.tensor is not None
            rank = len(self.graph.tensors[step.tensor].shape)
            if step.op_type == "Reshape":
                # as the shape of a Reshape, zeros copy every dim of the input
                values.append(self._zeros(f"planner__keep_shape_{rank}", (rank,)))
            elif step.op_type == "GatherND":
                values.append(self._zeros(f"planner__first_{rank}", (1, rank)))
            return values
        original = self.nodes[self.graph.operations[step.op].name]
        names = [None if v is None or not v.name else str(v.name) for v in original.inputs]
        return [None if n is None else self.values[step.reads.get(n, n)] for n in names]

    def _captured(self, node: ir.Node, step: PlannedStep) -> dict[ir.Value, ir.Value]:
        """Return the values that a node's bodies read in place of captured ones."""
        found: dict[ir.Value, ir.Value] = {}
        for value in captured(node):
            wanted = self.values[step.reads.get(str(value.name), str(value.name))]
            if wanted is not value:
                found[value] = wanted
        return found

    def _zeros(self, wish: str, shape: tuple[int, ...]) -> ir.Value:
        """Return an initializer of int64 zeros, made on the first call for a name (`wish`)."""
        if wish not in self.zeros:
            name = self.names.fresh(wish)
            zeros = np.zeros(shape, dtype=np.int64)
            self.zeros[wish] = initializer(self.model.graph, name, zeros)
            self.types[name] = ValueType(dtype=ir.DataType.INT64, shape=shape)
        return self.zeros[wish]
