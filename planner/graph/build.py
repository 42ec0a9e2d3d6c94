"""Build a `TrainingGraph` from an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import networkx as nx
import onnx_ir as ir

from planner.errors import ModelError
from planner.graph import rules
from planner.graph.categories import input_categories, loss_among, produced_category
from planner.graph.effects import Effect, effect_of, is_training
from planner.graph.marks import PLANNER_ATTRIBUTE, plain, role_of
from planner.graph.model import (
    OPAQUE,
    Category,
    Operation,
    OpId,
    Placement,
    Tensor,
    TensorId,
    TrainingGraph,
)
from planner.onnxio.bodies import has_bodies, reads
from planner.onnxio.kinds import ValueType, bits_of
from planner.units import counted


def build_graph(
    model: ir.Model,
    types: Mapping[str, ValueType],
    *,
    unsized: AbstractSet[str] = frozenset(),
    placement: Placement | None = None,
) -> TrainingGraph:
    """Build the graph of a checked model: operations, tensors, aliases, effects and categories.

    Args:
        model: functions inlined, node names unique (`planner.onnxio.names`). A node with bodies
            becomes one operation that also reads the values its bodies capture.
        types: element type and static shape of every value.
        unsized: values whose shape ONNX Runtime learns only at run time.
        placement: the provider of each node; None on a target with one memory. Values cross between
            the CPU and the device through `MemcpyToHost` and `MemcpyFromHost` nodes of the model.
    """
    return _GraphBuilder(model, types, unsized, placement).build()


class _GraphBuilder:
    def __init__(
        self,
        model: ir.Model,
        types: Mapping[str, ValueType],
        unsized: AbstractSet[str],
        placement: Placement | None,
    ) -> None:
        self.graph = model.graph
        self.types = types
        self.unsized = unsized
        self.placement = placement
        self.on_cpu = placement.on_cpu if placement is not None else frozenset()
        self.ids: dict[str, TensorId] = {}
        for value in (*self.graph.inputs, *self.graph.initializers.values()):
            self.ids.setdefault(str(value.name), TensorId(len(self.ids)))
        self.nodes = list(self.graph)
        self.read = [tuple(str(value.name) for value in reads(node)) for node in self.nodes]
        for node in self.nodes:
            for value in node.outputs:
                if value.name:
                    self.ids[value.name] = TensorId(len(self.ids))

    def build(self) -> TrainingGraph:
        consumers: dict[str, list[OpId]] = {name: [] for name in self.ids}
        producer: dict[str, OpId] = {}
        for index, node in enumerate(self.nodes):
            for name in self.read[index]:
                readers = consumers[name]
                if not readers or readers[-1] != index:
                    readers.append(OpId(index))
            producer.update((str(v.name), OpId(index)) for v in node.outputs if v.name)
        outputs = {str(v.name) for v in self.graph.outputs}
        buffers = self._buffers(outputs)
        self._check_written(consumers, buffers)
        categories = self._categories(consumers, producer, outputs, buffers)
        host = self._host_values(consumers, outputs)
        input_names = {str(v.name) for v in self.graph.inputs}
        tensors = tuple(
            Tensor(
                id=tensor_id,
                name=name,
                dtype=(kind := self.types[name]).called,
                shape=kind.shape,
                bytes=kind.bytes,
                category=categories[name],
                buffer=self.ids[buffers[name]],
                producer=producer.get(name),
                consumers=tuple(consumers[name]),
                is_input=name in input_names,
                is_initializer=name in self.graph.initializers,
                is_output=name in outputs,
                on_host=name in host,
                unsized=name in self.unsized or kind.called in OPAQUE,
            )
            for name, tensor_id in self.ids.items()
        )
        operations = tuple(
            self._operation(OpId(i), node, tensors) for i, node in enumerate(self.nodes)
        )
        return TrainingGraph(
            name=str(self.graph.name or ""),
            operations=operations,
            tensors=tensors,
            inputs=tuple(self.ids[str(v.name)] for v in self.graph.inputs),
            outputs=tuple(self.ids[str(v.name)] for v in self.graph.outputs),
            assumptions=(*_drawn(operations), *_opaque(tensors)),
        )

    def _buffers(self, outputs: set[str]) -> dict[str, str]:
        """Map each value to the value that owns its storage."""
        owner = {name: name for name in self.ids}
        for node in self.nodes:
            source = self._view_source(node, outputs)
            if source is not None:
                owner[str(node.outputs[0].name)] = owner[source]
            for before, after in rules.alias_pairs(node.op_type, node.domain):
                value = node.inputs[before] if before < len(node.inputs) else None
                target = str(node.outputs[after].name) if after < len(node.outputs) else ""
                if value is not None and target and target not in outputs:
                    owner[target] = owner[str(value.name)]
        return owner

    def _check_written(
        self, consumers: Mapping[str, list[OpId]], buffers: Mapping[str, str]
    ) -> None:
        """Raise ModelError if a buffer that a kernel writes over has another reader.

        The graph does not fix the order of the two. Three readers are harmless: a node that reads
        the shape alone, a node that planner added, and another node that writes over the same
        buffer, unless the graph uses the state that it leaves, because it then builds on the first
        node's state.
        """
        written: dict[str, tuple[OpId, str]] = {}
        for index, node in enumerate(self.nodes):
            for name in self._written_by(node):
                written.setdefault(buffers[name], (OpId(index), name))
        if not written:
            return
        for name, readers in consumers.items():
            writer, buffer = written.get(buffers[name], (None, ""))
            if writer is None:
                continue
            others = (self.nodes[r] for r in readers if r != writer)
            other = next((n for n in others if self._reads_elements(n, name)), None)
            if other is not None:
                raise ModelError(
                    f"tensor {buffer!r} is written over by node {self.nodes[writer].name!r} "
                    f"({self.nodes[writer].op_type}) and node {other.name!r} ({other.op_type}) "
                    "reads it too; nothing in the graph says which of them comes first, so its "
                    "order cannot be planned"
                )

    def _written_by(self, node: ir.Node) -> list[str]:
        """Return the names of the inputs that a node's kernel writes over."""
        places = rules.written_inputs(node.op_type, node.domain, is_training(node))
        found = (node.inputs[place] for place in places if place < len(node.inputs))
        return [str(value.name) for value in found if value is not None and value.name]

    def _reads_elements(self, node: ir.Node, name: str) -> bool:
        """Tell whether a node's results depend on the elements of a value."""
        if node.op_type in ("Shape", "Size") or PLANNER_ATTRIBUTE in node.attributes:
            return False
        state = rules.state_inputs(node.op_type, node.domain, is_training(node))
        left = (v for v in node.outputs[1 : 1 + len(state)] if v.uses() or v.is_graph_output())
        if next(left, None) is not None:
            state = ()
        return any(
            value is not None and value.name == name and place not in state
            for place, value in enumerate(node.inputs)
        )

    def _view_source(self, node: ir.Node, outputs: set[str]) -> str | None:
        index = rules.view_input(node.op_type, node.domain)
        if index is None or node.outputs[0].name in outputs:
            return None  # ONNX Runtime copies a view into a graph output's own buffer
        value = node.inputs[index]
        return str(value.name) if value is not None else None

    def _host_values(self, consumers: Mapping[str, list[OpId]], outputs: set[str]) -> set[str]:
        host: set[str] = set()
        for node in self.nodes:
            names = [str(v.name) for v in node.outputs if v.name]
            if node.op_type in rules.LEFT_ON_HOST or node.name in self.on_cpu:
                host.update(names)
            elif node.op_type != "MemcpyFromHost":
                # a device kernel that leaves its result on the host, like Shape
                host.update(n for n in names if any(self._is_on_cpu(c) for c in consumers[n]))
        for value in (*self.graph.inputs, *self.graph.initializers.values()):
            name = str(value.name)
            from_host = all(
                self.nodes[c].op_type in (rules.FROM_HOST, rules.LOAD_IN) or self._is_on_cpu(c)
                for c in consumers[name]
            )
            if consumers[name] and from_host and name not in outputs:
                host.add(name)
        return host

    def _is_on_cpu(self, op: OpId) -> bool:
        return self.nodes[op].name in self.on_cpu

    def _categories(
        self,
        consumers: Mapping[str, list[OpId]],
        producer: Mapping[str, OpId],
        outputs: set[str],
        buffers: Mapping[str, str],
    ) -> dict[str, Category]:
        inputs = [str(v.name) for v in self.graph.inputs]
        categories = input_categories(inputs, [str(v.name) for v in self.graph.outputs])
        # if the parameters are graph inputs, an initializer is a constant
        weights_are_inputs = Category.PARAMETER in categories.values()
        for name in self.graph.initializers:
            kind = self.types[name]
            weight = kind.dtype.is_floating_point() and kind.shape and not weights_are_inputs
            default = Category.PARAMETER if weight else Category.CONSTANT
            if categories.get(name, Category.INPUT) is Category.INPUT:
                categories[name] = default
        forward = self._forward_ops(consumers, producer)
        input_names = set(inputs)
        # reading a view reads the buffer behind it
        late = {
            buffers[name]
            for name, readers in consumers.items()
            if any(c not in forward and not self._is_view(c, buffers) for c in readers)
        }
        for name in self.ids:
            if name in categories:
                continue
            made_forward = producer[name] in forward
            categories[name] = produced_category(
                is_output=name in outputs,
                name=name,
                is_float=self.types[name].dtype.is_floating_point(),
                forward=made_forward,
                read_after_loss=buffers[name] in late,
                inputs=input_names,
            )
        return categories

    def _is_view(self, op: OpId, buffers: Mapping[str, str]) -> bool:
        outputs = self.nodes[op].outputs
        return bool(outputs) and buffers.get(str(outputs[0].name)) != str(outputs[0].name)

    def _forward_ops(
        self, consumers: Mapping[str, list[OpId]], producer: Mapping[str, OpId]
    ) -> set[OpId]:
        """Return the loss's ancestors: of the output named "loss", else of the first float scalar."""
        names = [str(v.name) for v in self.graph.outputs]
        types = [self.types[name] for name in names]
        roots = loss_among(
            (name, kind.dtype.is_floating_point(), kind.bytes)
            for name, kind in zip(names, types, strict=True)
        )
        last = {producer[name] for name in roots if name in producer}
        net: nx.DiGraph[OpId] = nx.DiGraph()
        net.add_nodes_from(last)
        made = producer.items()
        net.add_edges_from((reader, op) for name, op in made for reader in consumers[name])
        return last.union(*nx.bfs_layers(net, last))

    def _operation(self, op: OpId, node: ir.Node, tensors: tuple[Tensor, ...]) -> Operation:
        inputs = tuple(self.ids[name] for name in self.read[op])
        outputs = tuple(self.ids[str(v.name)] for v in node.outputs if v.name)
        attributes = {k: v for k, a in node.attributes.items() if (v := plain(a)) is not None}
        is_view = rules.view_input(node.op_type, node.domain) is not None
        is_view = is_view and bool(outputs) and tensors[outputs[0]].buffer != outputs[0]
        training = is_training(node)
        effect = effect_of(
            node.op_type,
            node.domain,
            attributes,
            training=training,
            has_subgraph=has_bodies(node),
        )
        scratch = self._scratch(node, training)
        on_cpu = node.name in self.on_cpu
        if effect is Effect.PURE and any(tensors[t].is_opaque for t in (*inputs, *outputs)):
            effect = Effect.CONTAINER
        if (on_cpu or node.op_type == "MemcpyToHost") and (effect is Effect.PURE or scratch):
            effect = Effect.LEFT_ON_HOST
        return Operation(
            id=op,
            name=str(node.name),
            op_type=node.op_type,
            domain=node.domain,
            inputs=inputs,
            outputs=outputs,
            is_view=is_view,
            per_reader=node.op_type in rules.PER_READER
            and bool(tensors[outputs[0]].consumers)
            and not tensors[outputs[0]].is_output,
            inplace=() if is_view else self._inplace(node, tensors),
            effect=effect,
            on_cpu=on_cpu,
            scratch=scratch,
            role=role_of(node),
            attributes=attributes,
        )

    def _scratch(self, node: ir.Node, training: bool) -> tuple[TensorId, ...]:
        """Return the state inputs if all can be replaced; none if one is an initializer.

        ONNX Runtime would fold the copy of a constant back into the constant.
        """
        found: list[TensorId] = []
        for index in rules.state_inputs(node.op_type, node.domain, training):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or not value.name or value.name in self.graph.initializers:
                return ()
            found.append(self.ids[value.name])
        return tuple(found)

    def _inplace_pairs(self, node: ir.Node) -> tuple[tuple[int, int], ...]:
        if self.placement is None or node.domain == rules.FUSED_DOMAIN:
            first = next((v.name for v in node.inputs if v is not None and v.name), None)
            dtype = self.types[first].dtype.name.lower() if first else ""
            return rules.inplace_pairs(node.op_type, node.domain, dtype)
        on_device = node.name not in self.on_cpu
        return ((0, 0),) if on_device and node.op_type in self.placement.inplace else ()

    def _inplace(
        self, node: ir.Node, tensors: tuple[Tensor, ...]
    ) -> tuple[tuple[TensorId, TensorId], ...]:
        pairs: list[tuple[TensorId, TensorId]] = []
        for source, target in self._inplace_pairs(node):
            if source >= len(node.inputs) or target >= len(node.outputs):
                continue
            before, after = node.inputs[source], node.outputs[target]
            if before is None or not before.name or not after.name:
                continue
            a, b = tensors[self.ids[before.name]], tensors[self.ids[after.name]]
            root = tensors[a.buffer]
            same = a.shape == b.shape and a.bytes == b.bytes == root.bytes
            same = same and not (a.unsized or b.unsized) and self._reads_once(node, tensors, root)
            if same and not root.is_persistent and not root.is_output and not b.is_output:
                pairs.append((a.id, b.id))
        return tuple(pairs)

    def _reads_once(self, node: ir.Node, tensors: tuple[Tensor, ...], root: Tensor) -> bool:
        """Tell whether exactly one input of a node lies in a buffer.

        ONNX Runtime counts uses of the buffer, not nodes (core/framework/allocation_planner.cc,
        `FindReusableInput`).
        """
        ids = [self.ids[str(v.name)] for v in node.inputs if v is not None and v.name]
        return sum(tensors[t].buffer == root.id for t in ids) == 1


def _opaque(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """State the assumptions about the sizes of sequences and strings."""
    said = {
        "sequence": "sequence(s) are counted with all of their items: an upper bound, as sequences "
        "can share an item",
        "string": f"tensor(s) of strings are counted with {bits_of(ir.DataType.STRING) // 8} bytes for "
        "each string, as ONNX Runtime counts them: no budget bounds the text of long strings",
    }
    found = {kind: [t.name for t in tensors if t.dtype == kind] for kind in said}
    return tuple(
        f"{len(names)} {said[kind]} (first {names[0]!r})" for kind, names in found.items() if names
    )


def _drawn(operations: Sequence[Operation]) -> tuple[str, ...]:
    """State the assumption about random numbers drawn without a seed."""
    drawing = [op.name for op in operations if op.effect is Effect.RANDOM_UNSEEDED]
    if not drawing:
        return ()
    return (
        f"{counted(len(drawing), 'node')}, first {drawing[0]!r}, with random numbers without a seed: "
        "ONNX Runtime seeds each by its place in the file, so the rewritten model draws other numbers "
        "than the original; give the nodes a seed attribute to make both draw the same",
    )
