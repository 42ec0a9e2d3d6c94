"""Choose the values to add up over the runs: as far after the frontier as operations are linear.

Each value of the frontier could be added up over the runs, and so could each value that follows from it
by linear operations alone. The later value is better: two gradients of one parameter are added before, a
transposed gradient is an output under its own name, and a sum is already divided by the size of the
batch, which makes it a mean with each run's own size.

    sum_1 ─ Reshape ─ bias_grad (output)       bias_grad is added up, under its own name
    total ─ Neg ─ Div(count) ─ loss            the negated total is added up; loss follows from it
                                               and the count
"""

from __future__ import annotations

import onnx_ir as ir

from planner.micro.flow import Flow
from planner.micro.share_rules import share_of


def values_to_add_up(model: ir.Model, flow: Flow) -> tuple[str, ...]:
    """Return the names of the values that the runs add up, counts included, in the order of the graph.

    All other values that depend on samples and do not carry the batch follow from them.
    """
    outputs = {str(v.name) for v in model.graph.outputs}
    pending = dict.fromkeys(flow.frontier)
    for node in model.graph:
        made = [str(v.name) for v in node.outputs if v.name]
        if len(made) != 1 or made[0] not in flow.needed or not flow.is_behind(node):
            continue
        read = [v for v in node.inputs if v is not None and str(v.name) in flow.samples]
        names = list(dict.fromkeys(str(v.name) for v in read))
        alone = all(
            n in pending and n not in flow.counts and n not in outputs and _is_read_once(v)
            for n, v in zip(names, dict.fromkeys(read), strict=True)
        )
        if not alone or not _is_linear(node, names):
            continue
        if flow.types[made[0]].bytes > sum(flow.types[n].bytes for n in names):
            continue
        for name in names:
            del pending[name]
        pending[made[0]] = None
    place = {str(v.name): i for i, node in enumerate(model.graph) for v in node.outputs}
    return tuple(sorted(pending, key=place.__getitem__))


def _is_read_once(value: ir.Value) -> bool:
    return len({use.node for use in value.uses()}) == 1


def _is_linear(node: ir.Node, names: list[str]) -> bool:
    """Tell whether a node's output is linear in the named inputs together."""
    inputs = ["" if v is None else str(v.name) for v in node.inputs]
    rule = share_of(node)
    if rule in ("linear", "view"):
        return inputs[:1] == names
    if rule == "sum":
        return all(name in names for name in inputs)
    if node.op_type == "Mul":
        return len(names) == 1 and inputs.count(names[0]) == 1
    if node.op_type == "Div":
        return names == inputs[:1] and inputs[1] != inputs[0]
    return False
