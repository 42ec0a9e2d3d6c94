"""Turn a schedule into a sequence of nodes: the copy of a value that each node reads, and added
nodes.

This module only keeps track of names; `planner.lower.rewrite` turns the sequence into a model.

Views are instantiated where they are first read: the view of a tensor that was recomputed or swapped
in is a view of that copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.formulate import Formulation
from planner.graph.model import OpId, Role, Tensor, TensorId, TrainingGraph
from planner.graph.rules import (
    COPIES,
    FROM_HOST,
    LOAD_IN,
    STORE_OUT,
    STORE_TO,
    SWAP_BEGIN,
    SWAP_IN,
    SWAP_IN_DONE,
    SWAP_OUT,
    SWAP_OUT_DONE,
    TO_HOST,
)
from planner.lower.order.anchors import Anchorer
from planner.lower.steps import PlannedStep, copying
from planner.onnxio.names import FreeNames
from planner.plan.problem import Action, ActionKind
from planner.targets import HOST, Target

_BARE = COPIES | {"QuantizeLinear"}
"""Operators whose copies need no barrier: one before a QuantizeLinear would be quantized instead
(core/optimizer/qdq_transformer/qdq_propagation.cc)."""


class Sequencer(Anchorer):
    """Builds the steps of one schedule.

    Args:
        names: names that are free in the model.
        target: the target that the model is written for.
        opset: the model's operator set of the default domain.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        formulation: Formulation,
        names: FreeNames,
        target: Target = HOST,
        opset: int = 1,
    ) -> None:
        super().__init__(graph, names, target, opset)
        self.form = formulation
        self.steps: list[PlannedStep] = []
        self.value: dict[TensorId, str] = {t.id: t.name for t in graph.tensors}
        self.views: dict[TensorId, list[TensorId]] = {}
        for t in graph.tensors:
            if t.buffer != t.id:
                self.views.setdefault(t.buffer, []).append(t.id)
        self.made: set[TensorId] = {t.id for t in graph.tensors if t.is_persistent}
        self.host: dict[TensorId, str] = {}
        self.borders = _borders(graph)
        self.nodes: dict[OpId, str] = {}  # of the operations that have run
        self.copies: dict[OpId, int] = {}
        self.swap_ins: dict[TensorId, int] = {}
        self.beside: set[TensorId] = set()  # copied beside the operations
        self.swap_run = ""  # names the run for copies out
        self.stores: dict[TensorId, OpId] = {}  # page-outs beside the operations, by what they read
        self.leaving: dict[TensorId, tuple[str, str]] = {}  # a copy out's output and input
        self.coming: dict[TensorId, tuple[str, str]] = {}  # SwapIn's output, and its final name
        self.barriers: dict[tuple[str, int], str] = {}
        self.action_nodes: list[str] = []
        self.stage = 0

    def build(self, actions: Sequence[Action]) -> list[PlannedStep]:
        """Return the steps for `actions`, views and barriers included.

        Raises:
            AssertionError: a copy beside the operations is not brought back, or not waited for.
        """
        seen: set[int] = set()
        done = (a.target for a in actions if a.kind is ActionKind.SWAP_OUT_DONE)
        waits = {self.form.tensors[target] for target in done}
        paging, operations = self.form.paging, self.graph.operations
        stores = {operations[self.form.ops[i]].inputs[0]: self.form.ops[i] for i in paging.stores}
        self.stores = {tensor: op for tensor, op in stores.items() if tensor in waits}
        self.beside = waits - self.stores.keys()
        loaded = {operations[self.form.ops[i]].outputs[0] for i in paging.loads}
        if waits or loaded:
            self._swap_begin(min(waits | loaded))
        for action in actions:
            if action.kind is ActionKind.RUN:
                op = self.form.ops[action.target]
                if action.target in paging.loads:
                    self.stage += action.target not in seen
                    seen.add(action.target)
                    self._load(op)
                elif action.target in seen:
                    self._recompute(op)
                else:
                    seen.add(action.target)
                    self.stage += 1
                    if op in self.nodes:  # a copy to the host that a swap-out has made
                        self.action_nodes.append(self.nodes[op])
                        continue
                    self._run(op)
            elif action.kind is ActionKind.SWAP_OUT:
                self.action_nodes.append(self._swap_out(self.form.tensors[action.target]))
                continue
            elif action.kind is ActionKind.SWAP_OUT_DONE:
                self._swap_out_done(self.form.tensors[action.target])
            else:
                self._swap_in(self.form.tensors[action.target])
            self.action_nodes.append(self.steps[-1].name)
        open_ = {*self.leaving, *self.coming, *(self.host.keys() & self.beside)}
        if open_:
            name = self.graph.tensors[min(open_)].name
            raise AssertionError(
                f"{name!r} is copied out beside the operations and never copied back"
            )
        self._free_unread()
        return self.steps

    # -- values ------------------------------------------------------------------------------

    def _read(self, tensor: TensorId) -> str:
        """Return the name of the newest copy of `tensor`.

        Make the view that it needs, and a new instance of a value that each reader needs its own of.
        """
        if tensor in self.coming:
            self._swap_in_done(tensor)
        producer = self.graph.tensors[tensor].producer
        alone = producer is not None and self.graph.operations[producer].per_reader
        if alone or tensor not in self.made:
            self._view(tensor)
        return self.value[tensor]

    def _renew(self, buffer: TensorId, name: str) -> None:
        """Make `name` the newest copy of `buffer`; views of it must be made again."""
        self.value[buffer] = name
        self.made.add(buffer)
        for view in self.views.get(buffer, ()):
            self.made.discard(view)

    def _view(self, tensor: TensorId) -> None:
        producer = self.graph.tensors[tensor].producer
        assert producer is not None
        op = self.graph.operations[producer]
        reads = {self.graph.tensors[t].name: self._read(t) for t in op.inputs}
        copy = self.copies.get(producer, -1) + 1
        self.copies[producer] = copy
        name = self.graph.tensors[tensor].name
        step = PlannedStep(role=Role.ORIGINAL, name=op.name, op=producer, copy=copy, reads=reads)
        step.writes = {name: name}
        if copy:
            step.role = Role.RECOMPUTE
            step.name = self.names.fresh(f"{op.name}__recompute_{copy}")
            step.writes = {name: self.names.fresh(f"{name}__recompute_{copy}")}
            step.number = self._next()
        self.steps.append(step)
        self.value[tensor] = step.writes[name]
        self.made.add(tensor)

    # -- actions -----------------------------------------------------------------------------

    def _run(self, op_id: OpId) -> None:
        if op_id in self.stores.values():
            self._store(op_id)
            return
        op = self.graph.operations[op_id]
        reads = {self.graph.tensors[t].name: self._read(t) for t in op.inputs}
        writes = {self.graph.tensors[t].name: self.graph.tensors[t].name for t in op.outputs}
        self.copies.setdefault(op_id, 0)
        self.nodes[op_id] = op.name
        self.steps.append(
            PlannedStep(role=Role.ORIGINAL, name=op.name, op=op_id, reads=reads, writes=writes)
        )
        self.made.update(op.outputs)

    def _store(self, op_id: OpId) -> None:
        """Store an output beside the operations, in place of its page-out."""
        op = self.graph.operations[op_id]
        (tensor,), (host,) = op.inputs, op.outputs
        name, source = self.graph.tensors[host].name, self._read(tensor)
        to = copying(STORE_TO, name, host, {})
        to.name, to.number = self.names.fresh(to.name), self._next()
        to.writes = {"": name}
        to.on_cpu = self.target.own_memory
        self.steps.append(to)
        reads = {"": source, "run": self.swap_run, "to": name}
        token = self._added(copying(STORE_OUT, name, tensor, reads), f"{name}__storing")
        self.leaving[tensor] = (token, source)
        self.nodes[op_id] = self.steps[-1].name
        self.made.add(host)

    def _recompute(self, op_id: OpId) -> None:
        op = self.graph.operations[op_id]
        copy = self.copies[op_id] + 1
        self.copies[op_id] = copy
        names = [self.graph.tensors[t].name for t in op.inputs]
        reads = {name: self._read(t) for name, t in zip(names, op.inputs, strict=True)}
        for t in op.scratch:
            name = self.graph.tensors[t].name
            reads[name] = self._scratch(t, reads[name])
        if all(reads[name] == name for name in names) and op.op_type not in _BARE:
            self._barrier(op_id, reads)
        writes = {
            self.graph.tensors[t].name: self.names.fresh(
                f"{self.graph.tensors[t].name}__recompute_{copy}"
            )
            for t in op.outputs
        }
        self.steps.append(
            PlannedStep(
                role=Role.PAGE_IN if op.role is Role.PAGE_IN else Role.RECOMPUTE,
                name=self.names.fresh(f"{op.name}__recompute_{copy}"),
                op=op_id,
                copy=copy,
                reads=reads,
                writes=writes,
                number=self._next(),
            )
        )
        for t in op.outputs:
            self._renew(t, writes[self.graph.tensors[t].name])

    def _added(self, step: PlannedStep, writes: str) -> str:
        """Append a node of planner's own with one output, under free names; return the output's name."""
        output = self.names.fresh(writes)
        step.name = self.names.fresh(step.name)
        step.writes = {"": output}
        step.number = self._next()
        self.steps.append(step)
        return output

    def _scratch(self, tensor: TensorId, value: str) -> str:
        """Return a new buffer of the same shape, for an input that the kernel writes over."""
        output = f"{self.graph.tensors[tensor].name}__scratch_{self.number + 1}"
        step = PlannedStep(
            role=Role.SCRATCH, name=f"{output}__node", tensor=tensor, reads={"": value}
        )
        step.op_type = "Neg"  # any operator with a result of the same shape
        return self._added(step, output)

    def _barrier(self, op_id: OpId, reads: dict[str, str]) -> None:
        """Read one input through a Reshape, to make the copy differ from its original."""
        inputs = self.graph.operations[op_id].inputs
        candidates = [t for t in inputs if self._may_bar(self.graph.tensors[t])]
        if not candidates:
            return
        tensor = max(candidates, key=lambda t: self.graph.tensors[t].bytes)
        name = self.graph.tensors[tensor].name
        key = (reads[name], self.stage)
        if key not in self.barriers:
            output = f"{name}__barrier_{self.number + 1}"
            step = PlannedStep(
                role=Role.BARRIER, name=f"{output}__node", op_type="Reshape", tensor=tensor
            )
            step.reads = {"": reads[name]}
            self.barriers[key] = self._added(step, output)
        reads[name] = self.barriers[key]

    def _may_bar(self, tensor: Tensor) -> bool:
        """Tell whether a Reshape of a tensor is a view where it is, no constant, and left alone by
        ONNX Runtime.

        After a Transpose, a Reshape that keeps the rank is merged into it, as a second Transpose
        (core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, `HandleReshape`).
        """
        dtypes = self.target.view_dtypes
        is_here = not (self.target.own_memory and tensor.on_host)
        is_view = is_here and (dtypes is None or tensor.dtype in dtypes)
        producer = None if tensor.producer is None else self.graph.operations[tensor.producer]
        is_turned = producer is not None and producer.op_type == "Transpose"
        return is_view and not tensor.is_initializer and not is_turned

    def _swap_out(self, tensor: TensorId) -> str:
        """Return the name of the node that copies `tensor` to the host: its reader there, if any."""
        border = self.borders.get(tensor)
        if border is not None:
            if border not in self.nodes:
                self._run(border)
            op = self.graph.operations[border]
            self.host[tensor] = self.graph.tensors[op.outputs[0]].name
            return self.nodes[border]
        name = self.graph.tensors[tensor].name
        source = self._read(tensor)
        if tensor in self.beside:
            step = copying(SWAP_OUT, name, tensor, {"": source, "run": self.swap_run})
            self.leaving[tensor] = (self._added(step, f"{name}__leaving"), source)
        else:
            step = copying(TO_HOST, name, tensor, {"": source})
            self.host[tensor] = self._added(step, f"{name}__host")
        return self.steps[-1].name

    def _swap_begin(self, tensor: TensorId) -> None:
        """Name the run; where a target might place a node without inputs on the CPU, give it one."""
        here = [t.name for t in self.graph.tensors if t.is_persistent and not t.on_host]
        reads = {"": here[0]} if here and self.target.own_memory else {}
        step = copying(SWAP_BEGIN, "planner", tensor, reads)
        self.swap_run = self._added(step, "planner__swap_run")

    def _swap_out_done(self, tensor: TensorId) -> None:
        token, source = self.leaving.pop(tensor)
        name = self.graph.tensors[tensor].name
        step = copying(SWAP_OUT_DONE, name, tensor, {"": token, "of": source})
        ended = self._added(step, f"{name}__host")
        if tensor in self.beside:
            self.host[tensor] = ended

    def _swap_in(self, tensor: TensorId) -> None:
        count = self.swap_ins.get(tensor, 0) + 1
        self.swap_ins[tensor] = count
        output = f"{self.graph.tensors[tensor].name}__swap_in_{count}"
        if tensor in self.beside:
            reads = {"": self.host.pop(tensor)}
            self._comes(copying(SWAP_IN, output, tensor, reads, copy=count), output)
        elif tensor in self.stores:
            assert tensor not in self.leaving, (
                "a tensor is copied back before its copy to the host is complete"
            )
            reads = {"": self.host[tensor], "run": self.swap_run}
            self._comes(copying(LOAD_IN, output, tensor, reads), output)
        else:
            step = copying(FROM_HOST, output, tensor, {"": self.host[tensor]}, copy=count)
            self._renew(tensor, self._added(step, output))

    def _comes(self, step: PlannedStep, output: str) -> None:
        """Begin a copy in; SwapInDone will make `output` from it."""
        assert step.tensor is not None
        made = self._added(step, f"{output}__coming")
        self.coming[step.tensor] = (made, output)
        self._renew(step.tensor, made)

    def _load(self, op_id: OpId) -> None:
        """Load a value beside the operations, in place of its page-in."""
        op = self.graph.operations[op_id]
        tensor = op.outputs[0]
        count = self.swap_ins.get(tensor, 0) + 1
        self.swap_ins[tensor] = count
        output = f"{self.graph.tensors[tensor].name}__loaded_{count}"
        reads = {"": self._read(op.inputs[0]), "run": self.swap_run}
        self._comes(copying(LOAD_IN, output, tensor, reads, role=Role.PAGE_IN), output)

    def _swap_in_done(self, tensor: TensorId) -> None:
        value, output = self.coming.pop(tensor)
        step = copying(SWAP_IN_DONE, output, tensor, {"": value})
        self.value[tensor] = self._added(step, output)

    def _free_unread(self) -> None:
        """Give each output that the plan leaves without a reader an anchor as one.

        ONNX Runtime frees a buffer after its last reader, and one without any only at the end of the
        run.
        """
        read = {value for step in self.steps for value in step.reads.values()}
        outputs = {self.graph.tensors[t].name for t in self.graph.outputs}
        steps: list[PlannedStep] = []
        for step in self.steps:
            steps.append(step)
            if step.role is Role.SWAP_IN and step.writes[""] not in read:
                # its reader was a copy to the host, which the swap-out made
                anchor = self.anchor(step)
                steps.extend([anchor] if anchor is not None else [])
            if step.op is None:
                continue
            for t in self.graph.operations[step.op].outputs:
                tensor = self.graph.tensors[t]
                value = step.writes[tensor.name]
                was_read = bool(tensor.consumers) or step.role is Role.RECOMPUTE
                if was_read and value not in read and value not in outputs:
                    anchor = self.anchor(step, value)
                    steps.extend([anchor] if anchor is not None else [])
        self.steps = steps


def _borders(graph: TrainingGraph) -> dict[TensorId, OpId]:
    """Return for each tensor that a node on the CPU reads the operation that copies it to the host."""
    return {
        op.inputs[0]: op.id
        for op in reversed(graph.operations)
        if op.op_type == "MemcpyToHost" and graph.tensors[op.inputs[0]].buffer == op.inputs[0]
    }
