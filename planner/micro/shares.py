"""Derive from the operators how the totals of runs on parts of a batch add up, without a run.

The measurement (`planner.micro.kinds`) needs a run on a few samples, which doesn't fit every machine
where a network has billions of parameters. Here each value has a *share*: the factor between a value in a
run and the same value in one run on the whole batch. There are K runs, and run k counts c_k of all c.

    x (of a sample)              share {}             the same in both
    Div(x, count)                share {count: 1}     whole batch: c_k / c times the run's value
    Div(x, Size(batch))          share {samples: 1}   whole batch: 1 / K times the run's value
    count, as a divisor          share {count: -1}

Linear operations propagate shares: a product adds the exponents of its operands' shares, and a sum
requires equal shares. All other operations require {}: operands that are the same in any run. An
operation that sums over the batch makes a *total*: the sum over the runs of their values, each times its
share. From totals on, only linear operations on totals are followed. Nothing is derived where rows of
samples might be mixed, and at operators without a rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from planner.errors import ModelError
from planner.graph.operators.table import ONNX_DOMAINS, operator_of
from planner.micro.flow import NEXT_STEP, Flow
from planner.micro.kinds import MEAN, SUM, Kinds
from planner.micro.share_rules import (
    PLAIN,
    SAMPLES,
    ZERO,
    Known,
    Rules,
    Unknown,
    is_zero,
    share_of,
)


def kinds_by_rules(model: ir.Model, flow: Flow, names: Sequence[str]) -> Kinds:
    """Derive how the named totals add up, and how each output that carries the batch is joined.

    Args:
        model: the model of `flow`.
        names: the result of `planner.micro.sink.values_to_add_up`.

    Raises:
        ModelError: a kind cannot be derived; the message names the first node without a rule.
    """
    walk = _ShareWalk(model, flow)
    walk.follow()
    outputs = [str(v.name) for v in model.graph.outputs]
    found: dict[str, str] = {}
    for name in [*names, *(n for n in outputs if n in flow.axis)]:
        found[name] = walk.kind(name)
    walk.check_sizes(names, outputs)
    return Kinds(of=found)


class _ShareWalk:
    """One pass over the nodes, in their order."""

    def __init__(self, model: ir.Model, flow: Flow) -> None:
        self.model, self.flow, self.rules = model, flow, Rules(flow)
        self.found: dict[str, Known] = {}
        self.why: dict[str, str] = {}

    # -- what was found ------------------------------------------------------------------------

    def kind(self, name: str) -> str:
        """Return the kind (`planner.micro.kinds`) of a total, or of an output that carries the batch."""
        known = self.found.get(name)
        if known is None:
            raise ModelError(self._untold(name, self.why.get(name, "")))
        if name in self.flow.counts and not known.is_total:
            return SUM
        share = {} if known.is_zero else dict(known.share)
        if not known.is_total and name not in self.flow.axis and not known.is_zero:
            raise ModelError(self._untold(name, "it is not a sum over the batch"))
        if not share:
            return SUM
        if share == {SAMPLES: 1}:
            return MEAN
        if name not in self.flow.axis and list(share.values()) == [1]:
            return next(iter(share))
        raise ModelError(self._untold(name, "it was divided by more than one size or count"))

    def check_sizes(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise ModelError where an output, or an operation on totals, depends on the batch's size."""
        totals, flow = set(names), self.flow
        read = {n for n in outputs if n in flow.sized and n not in flow.axis}
        for node in self.model.graph:
            reads = [str(v.name) for v in node.inputs if v is not None]
            made = [str(v.name) for v in node.outputs]
            if totals.isdisjoint(reads) or not totals.isdisjoint(made) or not flow.is_behind(node):
                continue
            totals.update(made)
            read.update(n for n in reads if n in flow.sized)
        for name in sorted(read):
            known = self.found.get(name)
            if known is None or known.share or name in flow.axis:
                raise ModelError(self._untold(name, "it depends on the size of the batch"))

    def _untold(self, name: str, why: str) -> str:
        return (
            f"how {name!r} adds up over micro-batches cannot be told from the "
            f"operators{f': {why}' if why else ''}; a run on a few samples would show it, but "
            "does not fit into the memory that is free here: plan on a larger machine, or "
            f"{NEXT_STEP}"
        )

    # -- the pass ------------------------------------------------------------------------------

    def follow(self) -> None:
        graph, flow = self.model.graph, self.flow
        for value in (*graph.inputs, *graph.initializers.values()):
            self.found[str(value.name)] = ZERO if is_zero(value.const_value) else PLAIN
        for node in graph:
            made = [str(v.name) for v in node.outputs if v.name]
            concerned = any(n in flow.samples or n in flow.sized for n in made)
            concerned |= any(n in flow.axis for n in made)
            try:
                kind = self._of(node) if concerned else self._constant(node)
            except Unknown as unknown:
                reads = (str(v.name) for v in node.inputs if v is not None)
                what = f"node {node.name!r} ({node.op_type}) {unknown}"
                first = next((self.why[name] for name in reads if name in self.why), what)
                self.why.update(dict.fromkeys(made, first))
                continue
            for name in made:
                self.found[name] = kind
                if name in flow.counts:
                    if kind.share or not kind.is_total:
                        self.found.pop(name)
                        self.why[name] = f"node {node.name!r} ({node.op_type}) counts no samples"
                    else:  # as a divisor; as a total it is a sum
                        self.found[name] = Known({name: -1})

    def _constant(self, node: ir.Node) -> Known:
        """Return what is known of a node that depends neither on samples nor on the batch's size."""
        if node.op_type in ("Constant", "ConstantOfShape"):
            tensor = node.attributes.get_tensor("value")
            empty = tensor is None and node.op_type == "ConstantOfShape"
            return ZERO if empty or is_zero(tensor) else PLAIN
        is_kept = share_of(node) in ("keeps", "linear", "view", "expands")
        if is_kept and node.inputs[0] is not None:
            known = self.found.get(str(node.inputs[0].name), PLAIN)
            return ZERO if known.is_zero else PLAIN
        return PLAIN

    def _of(self, node: ir.Node) -> Known:
        """Derive what is known of a node's outputs from its inputs.

        Raises:
            Unknown: no rule applies.
        """
        op = node.op_type
        if node.domain not in ONNX_DOMAINS:
            raise Unknown("has no rule")
        if op in ("Shape", "Size"):
            return self.rules.size(node)
        if op == "ConstantOfShape":
            return self._constant(node)
        kinds = self._inputs(node)
        self._check_totals(node, kinds)
        made = self.rules.made(node, kinds)
        carries = any(str(v.name) in self.flow.axis for v in node.outputs)
        if made.is_total or carries or not self.rules.reads_batch(node):
            return made
        raise Unknown("takes a value of the batch that is not a sum")

    def _inputs(self, node: ir.Node) -> list[Known]:
        """Return what is known of each input; an input that only gives a shape counts as plain."""
        kinds = []
        is_shaped = operator_of(node.op_type, node.domain).has_shape_input
        for place, value in enumerate(node.inputs):
            name = "" if value is None else str(value.name)
            if not name or (is_shaped and place and not self.rules.is_real(name)):
                kinds.append(PLAIN)
            elif name in self.found:
                kinds.append(self.found[name])
            else:
                raise Unknown(f"reads {name!r}, which planner cannot follow")
        return kinds

    def _check_totals(self, node: ir.Node, kinds: list[Known]) -> None:
        if not any(k.is_total for k in kinds):
            return
        op, rule = node.op_type, share_of(node)
        if rule in ("linear", "view"):
            return
        if rule == "sum" and all(k.is_total or k.is_zero for k in kinds):
            return
        one = sum(k.is_total for k in kinds) == 1
        if one and (op == "Mul" or (op == "Div" and kinds[0].is_total)):
            return
        raise Unknown("is not linear in totals")
