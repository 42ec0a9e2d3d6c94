"""Write the model of one run, on a part of the batch, with totals that are fed back from run to run.

    value ─────────────────→ readers        value__run ─(scale)─ Add ─ value ─→ readers
                                            value__acc (input) ──┘       └─→ output

The total takes the name of the value, which lets an output keep its name. Values computed from totals are
those of the full step in the last run, and are meaningless before. Operations on samples read a run's own
count (1 where a run counts nothing); all others read the total count.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from planner.errors import ModelError
from planner.micro.flow import ACCUMULATORS, NEXT_STEP, Flow
from planner.micro.kinds import MEAN, SUM
from planner.onnxio.names import FreeNames, initializer
from planner.plan.planfile import Accumulator, MicroBatches


def has_accumulators(model: ir.Model) -> bool:
    """Tell whether the model has its own accumulators of gradients."""
    return any(node.op_type in ACCUMULATORS for node in model.graph)


def emit(
    model: ir.Model, flow: Flow, kinds: Mapping[str, str], runs: int
) -> tuple[ir.Model, MicroBatches]:
    """Build the model whose runs add up their totals.

    Args:
        model: the model of `flow`; not changed.
        kinds: for each value that is added up, "sum", "mean" or the name of a count; for each output that
            carries the batch, "sum" (unchanged) or "mean" (scaled).
        runs: the number of runs in a step.

    Returns:
        A clone with totals, and how its runs make a step, without times.

    Raises:
        ModelError: a total cannot be fed back; the message names it.
    """
    clone = model.clone()
    build = _TotalsWriter(clone, flow, runs)
    own = has_accumulators(clone)
    scaled, made = [], []
    for name, kind in kinds.items():
        if name in flow.axis:
            continue
        if not own:
            made.append(build.add_up(name, kind))
        elif build.is_added_up(name) and kind != SUM:
            build.scale(name, kind)
            scaled.append(name)
    if not own:
        build.read_totals()
    per_run = [name for name in (str(v.name) for v in model.graph.outputs) if name in flow.axis]
    for name in per_run:
        if kinds.get(name) == MEAN:
            build.scale_output(name)
            scaled.append(name)
    batch = flow.batch
    return clone, MicroBatches(
        runs=runs,
        dim=batch.dim,
        batch=batch.size,
        inputs=dict(batch.inputs),
        accumulators=tuple(made),
        scaled=tuple(scaled),
        per_run={name: flow.axis[name] for name in per_run},
    )


class _TotalsWriter:
    """A writer that adds totals to one model, under unused names."""

    def __init__(self, model: ir.Model, flow: Flow, runs: int) -> None:
        self.model, self.flow, self.runs = model, flow, runs
        self.values = {str(v.name): v for node in model.graph for v in node.outputs if v.name}
        self.names = FreeNames(model)
        self.nodes = list(model.graph)
        self.place = set(self.nodes)
        self.totals: dict[ir.Value, ir.Value] = {}
        self.raw: dict[str, ir.Value] = {}
        self.fed: dict[str, ir.Value] = {}
        self.constants: dict[str, ir.Value] = {}
        self.weights: dict[tuple[str, str], tuple[ir.Value, ir.Value]] = {}
        self.behind = {node for node in self.nodes if flow.is_behind(node)}

    def is_added_up(self, name: str) -> bool:
        """Tell whether the model's own accumulators, and nothing else, read a value."""
        readers = {use.node for use in self.values[name].uses()}
        return bool(readers) and all(node.op_type in ACCUMULATORS for node in readers)

    def scale(self, name: str, kind: str) -> None:
        """Scale a mean that the model's own accumulators read."""
        if kind != MEAN:
            raise ModelError(
                f"gradient {name!r} is a mean over {kind!r}, which may differ from run to run, and nodes "
                f"of the model add it up unweighted: {NEXT_STEP}"
            )
        value = self.values[name]
        readers = list(value.uses())
        scaled = self._op(_made_by(value), "Mul", [value, self._share(name)], f"{name}__share")
        for use in readers:
            use.node.replace_input_with(use.idx, scaled)

    def scale_output(self, name: str) -> None:
        """Scale an output that each run has for its own samples; its other readers get it unscaled."""
        value = self.values[name]
        place = next(i for i, v in enumerate(self.model.graph.outputs) if v is value)
        value.name = self.names.fresh(f"{name}__run")
        scaled = self._op(_made_by(value), "Mul", [value, self._share(name)], "", named=name)
        scaled.shape, scaled.type = value.shape, value.type
        self.model.graph.outputs[place] = scaled

    def add_up(self, name: str, kind: str) -> Accumulator:
        """Feed a total back; `read_totals` redirects its readers later."""
        value, kinds = self.values[name], self.flow.types
        after = _made_by(value)
        fed = ir.val(self.names.fresh(f"{name}__acc"), kinds[name].dtype, kinds[name].shape)
        self.model.graph.inputs.append(fed)
        value.name = self.names.fresh(f"{name}__run")
        self.raw[name], self.fed[name] = value, fed
        scale: float | None = 1.0
        if kind == SUM:
            parts = (fed, value)
        elif kind == MEAN:
            scale = 1.0 / self.runs
            part = self._op(after, "Mul", [value, self._share(name)], f"{name}__share")
            parts, after = (fed, part), _made_by(part)
        else:
            scale = None
            before, now = self._weights(kind, name)
            first = self._op(after, "Mul", [fed, before], f"{name}__before")
            second = self._op(_made_by(first), "Mul", [value, now], f"{name}__share")
            parts, after = (first, second), _made_by(second)
        total = self._op(after, "Add", list(parts), "", named=name)
        total.shape, total.type = fed.shape, fed.type
        self.totals[value] = total
        if name in self.flow.counts:
            self._read_safely(value, total)
        if not any(v is value for v in self.model.graph.outputs):
            self.model.graph.outputs.append(total)
        return Accumulator(
            input=str(fed.name),
            output=name,
            bytes=kinds[name].bytes,
            scale=scale,
            count="" if scale is not None else kind,
        )

    def _read_safely(self, count: ir.Value, total: ir.Value) -> None:
        """Make a run that counts nothing divide by 1: it then divides 0, and adds nothing."""
        name, dtype = str(count.name), count.dtype or self.flow.types[str(total.name)].dtype
        readers = [use for use in count.uses() if use.node in self.place]
        zero = self._constant(f"{dtype.name}_0", np.zeros((), dtype.numpy()))
        one = self._constant(f"{dtype.name}_1", np.ones((), dtype.numpy()))
        empty = self._op(_made_by(count), "Equal", [count, zero], f"{name}_none")
        safe = self._op(_made_by(empty), "Where", [empty, one, count], f"{name}_or_1")
        for use in readers:
            use.node.replace_input_with(use.idx, safe)
        self.totals[safe] = total

    def read_totals(self) -> None:
        """Make outputs, and nodes behind the frontier, read totals."""
        graph = self.model.graph
        for place, value in enumerate(list(graph.outputs)):
            graph.outputs[place] = self._total_of(value, None)
        for node in self.nodes:
            if node not in self.behind or all(v in self.totals for v in node.outputs):
                continue
            if all(v.name in self.flow.masks for v in node.outputs if v.name):
                continue  # keeps each run's value; a reader of totals gets a copy (`_total_of`)
            for place, value in enumerate(node.inputs):
                if value is not None:
                    node.replace_input_with(place, self._total_of(value, node))

    def _total_of(self, value: ir.Value, reader: ir.Node | None) -> ir.Value:
        """Return a value computed from totals, or the value itself where it needs none."""
        if value in self.totals:
            return self.totals[value]
        node = value.producer()
        if node is None or node not in self.behind or str(value.name) not in self.flow.masks:
            return value
        inputs = [None if v is None else self._total_of(v, reader) for v in node.inputs]
        outputs = [
            ir.Value(name=self.names.fresh(f"{v.name}__total"), shape=v.shape, type=v.type)
            for v in node.outputs
        ]
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            attributes=list(node.attributes.values()),
            outputs=outputs,
            name=self.names.fresh(f"{node.name}__total"),
        )
        if reader is None:
            self.model.graph.append(copy)
        else:
            self.model.graph.insert_before(reader, copy)
        self.totals.update(zip(node.outputs, outputs, strict=True))
        return self.totals[value]

    def _weights(self, count: str, name: str) -> tuple[ir.Value, ir.Value]:
        """Return the share of the total so far and the share of this run, as scalars of a value's type.

        While nothing has been counted, both shares are 0 instead of 0/0.
        """
        kind = self.flow.types[name]
        key = (count, kind.dtype.name)
        if key in self.weights:
            return self.weights[key]
        total = self.totals[self.raw[count]]
        stem, after = f"{count}__{kind.dtype.name.lower()}", _made_by(total)
        made: list[ir.Value] = []
        for source, what in ((self.fed[count], "before"), (self.raw[count], "now"), (total, "all")):
            found = source
            if self.flow.types[count].shape:
                scalar = self._constant("shape", np.zeros(0, np.int64))
                found = self._op(after, "Reshape", [found, scalar], f"{stem}_{what}_scalar")
                after = _made_by(found)
            if self.flow.types[count].dtype != kind.dtype:
                to = ir.AttrInt64("to", int(kind.dtype))
                found = self._op(after, "Cast", [found], f"{stem}_{what}", attributes=[to])
                after = _made_by(found)
            made.append(found)
        numpy = kind.dtype.numpy()
        zero = self._constant(f"{kind.dtype.name}_0", np.zeros((), numpy))
        one = self._constant(f"{kind.dtype.name}_1", np.ones((), numpy))
        empty = self._op(after, "Equal", [made[2], zero], f"{stem}_none")
        whole = self._op(_made_by(empty), "Where", [empty, one, made[2]], f"{stem}_all_of_it")
        before = self._op(_made_by(whole), "Div", [made[0], whole], f"{stem}_share_before")
        now = self._op(_made_by(before), "Div", [made[1], whole], f"{stem}_share_now")
        self.weights[key] = before, now
        return before, now

    def _share(self, name: str) -> ir.Value:
        dtype = self.flow.types[name].dtype
        share = np.asarray(1.0 / self.runs).astype(dtype.numpy())
        return self._constant(f"{dtype.name}_share", share)

    def _constant(self, what: str, array: np.ndarray) -> ir.Value:
        if what not in self.constants:
            name = self.names.fresh(f"micro_{what.lower()}")
            self.constants[what] = initializer(self.model.graph, name, array)
        return self.constants[what]

    def _op(
        self,
        after: ir.Node,
        op_type: str,
        inputs: list[ir.Value],
        wish: str,
        *,
        named: str = "",
        attributes: list[ir.Attr] | None = None,
    ) -> ir.Value:
        """Insert a node after another one, and return its output."""
        made = ir.Value(name=named or self.names.fresh(wish))
        node = ir.Node(
            "",
            op_type,
            inputs,
            attributes=attributes or [],
            outputs=[made],
            name=self.names.fresh(f"{op_type}:{named}" if named else f"{op_type}:{made.name}"),
        )
        self.model.graph.insert_after(after, node)
        return made


def _made_by(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
