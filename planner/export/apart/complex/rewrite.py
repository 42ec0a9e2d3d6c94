"""Rewrite a traced graph without complex numbers: each complex tensor becomes two real ones.

ONNX has hardly any operator for complex numbers. Every node that reads or makes complex numbers is traced
again on the real and imaginary parts. `rules` has rules for this; arithmetic uses PyTorch's own
`torch._subclasses.complex_tensor`, which defines operators by real ones. The gradients are part of the
graph that is rewritten. Complex parameters, buffers and inputs are fed, and their gradients returned, in
the form of `torch.view_as_real`: [..., 2].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch._subclasses.complex_tensor import ComplexTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from planner.export.apart.complex.rules import called
from planner.export.apart.decompose import decompositions
from planner.export.errors import ExportError, UnsupportedOperator
from planner.export.trace.joint import JointGraph

Made = fx.Node | tuple[fx.Node, fx.Node] | list[Any] | None
"""Replacement of a node: another node, one for each part, or a list of these."""


def is_complex(held: Any) -> bool:
    """Tell whether a traced value is complex, or a sequence with a complex tensor."""
    if isinstance(held, list | tuple):
        return any(map(is_complex, held))
    return isinstance(held, Tensor) and held.is_complex()


def without_complex(joint: JointGraph) -> JointGraph:
    """Return the graph in real numbers; return it unchanged if it is real.

    Raises:
        UnsupportedOperator: an operator has no rule for complex numbers.
    """
    nodes = joint.module.graph.nodes
    if not any(is_complex(node.meta.get("val")) for node in nodes):
        return joint
    rewriting = _Rewriting(joint)
    for node in nodes:
        rewriting.add(node)
    module = fx.GraphModule(joint.module, rewriting.graph)
    module.graph.eliminate_dead_code()

    def moved(named: Mapping[str, fx.Node]) -> dict[str, fx.Node]:
        return {name: rewriting.whole(node) for name, node in named.items()}

    return replace(
        joint,
        module=module,
        inputs=moved(joint.inputs),
        parameters=moved(joint.parameters),
        buffers=moved(joint.buffers),
        loss=rewriting.whole(joint.loss),
        outputs=moved(joint.outputs),
        gradients=moved(joint.gradients),
        updated_buffers=moved(joint.updated_buffers),
    )


class _Rewriting:
    """The new graph, and the replacement of each node of the old one."""

    def __init__(self, joint: JointGraph) -> None:
        self.owner, self.joint = joint.module, joint
        self.graph = fx.Graph()
        inputs = (node.meta.get("val") for node in self.owner.graph.find_nodes(op="placeholder"))
        self.mode = next(held.fake_mode for held in inputs if isinstance(held, FakeTensor))
        self.decompositions = decompositions()
        self.made: dict[fx.Node, Made] = {}
        self.fed: dict[fx.Node, fx.Node] = {}
        self.merged: dict[fx.Node, fx.Node] = {}

    def add(self, node: fx.Node) -> None:
        """Copy a node, or append its replacement."""
        held = node.meta.get("val")
        if node.op == "output":
            self.graph.output(fx.map_arg(node.args[0], self.whole))
        elif node.op == "placeholder" and is_complex(held):
            whole = self.graph.node_copy(node)
            assert isinstance(held, Tensor)
            whole.meta["val"] = torch.view_as_real(held)
            self.fed[node] = whole
            self.made[node] = self.traced(lambda x: x.unbind(-1), [whole], node)
        elif node.op == "get_attr" and getattr(self.owner, str(node.target)).is_complex():
            value = torch.view_as_real(
                getattr(self.owner, str(node.target)).detach().resolve_conj()
            )
            re, im = (self.constant(part.contiguous()) for part in value.unbind(-1))
            self.made[node] = re, im
        elif getattr(node.target, "__name__", "") == "getitem" and is_complex(
            node.args[0].meta["val"]  # pyright: ignore
        ):
            self.made[node] = self.made[node.args[0]][node.args[1]]  # pyright: ignore
        elif not is_complex(held) and not any(
            is_complex(n.meta.get("val")) for n in node.all_input_nodes
        ):
            self.made[node] = self.graph.node_copy(node, self.whole)
        else:
            self.made[node] = self.apart(node)

    def whole(self, node: fx.Node) -> fx.Node:
        """Return one node for an old one; complex parts are stacked on a last axis."""
        made = self.fed.get(node, self.made[node])
        if isinstance(made, fx.Node):
            return made
        assert isinstance(made, tuple)
        if node not in self.merged:
            self.merged[node] = self.traced(
                lambda re, im: torch.stack([re, im], -1), list(made), node
            )
        return self.merged[node]

    def constant(self, value: Tensor) -> fx.Node:
        """Add a constant tensor to the graph."""
        name = f"_real_constant{sum(n.op == 'get_attr' for n in self.graph.nodes)}"
        while hasattr(self.owner, name):
            name += "_"
        self.owner.register_buffer(name, value)
        made = self.graph.get_attr(name)
        made.meta["val"] = value
        return made

    def value(self, operand: fx.Node) -> Any:
        """Return an operand's traced value, in the one fake mode that all values must share."""
        held = operand.meta["val"]
        if not isinstance(held, Tensor) or getattr(held, "fake_mode", None) is self.mode:
            return held
        with self.mode:
            return torch.empty(held.shape, dtype=held.dtype)

    def apart(self, node: fx.Node) -> Any:
        """Trace the operator again on separate parts."""
        sources = node.all_input_nodes
        flat: list[fx.Node] = []
        for source in sources:
            made = self.made[source]
            flat.extend(made if isinstance(made, tuple) else [self.whole(source)])

        def compute(*tensors: Tensor) -> Any:
            left = iter(tensors)
            known: dict[fx.Node, Any] = {}
            for source in sources:
                pair = isinstance(self.made[source], tuple)
                known[source] = ComplexTensor(next(left), next(left)) if pair else next(left)
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            return tree_map(_parts, called(node.target, args, kwargs))

        try:
            return self.traced(compute, flat, node)
        except ExportError:
            raise
        except Exception as error:  # PyTorch's rules raise errors of any kind
            reason = (
                "it takes complex numbers; work on their real and imaginary parts "
                "(torch.view_as_real)"
            )
            raise UnsupportedOperator(
                str(node.target), f"{node.name}, which is complex", reason
            ).called_at(self.joint.first_use.get(str(node.target), "")) from error

    def traced(
        self, compute: Callable[..., Any], operands: Sequence[fx.Node], node: fx.Node
    ) -> Any:
        """Append the operators that `compute` runs on operands."""
        values = [self.value(operand) for operand in operands]
        part = make_fx(compute, decomposition_table=self.decompositions)(*values)
        part.graph.eliminate_dead_code()
        known: dict[fx.Node, Any] = dict(
            zip(part.graph.find_nodes(op="placeholder"), operands, strict=True)
        )
        origin = node.meta.get("original_aten", node.target)
        for inner in part.graph.nodes:
            if inner.op == "get_attr":
                known[inner] = self.constant(getattr(part, inner.target))
            elif inner.op == "call_function":
                copied = self.graph.node_copy(inner, lambda n: known[n])
                copied.meta["original_aten"] = origin
                known[inner] = copied
            elif inner.op == "output":
                return _as_tuples(fx.map_arg(inner.args[0], lambda n: known[n]))
        raise AssertionError


def _as_tuples(results: Any) -> Any:
    """Return pairs of nodes as tuples, and results of several tensors as lists."""
    if isinstance(results, fx.Node) or results is None:
        return results
    found = [_as_tuples(result) for result in results]
    is_pair = len(found) == 2 and all(isinstance(part, fx.Node) for part in found)
    return tuple(found) if is_pair else found


def _parts(value: Any) -> Any:
    if isinstance(value, ComplexTensor):
        return (value.re, value.im)
    return value
