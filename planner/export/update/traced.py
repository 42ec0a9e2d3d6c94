"""A traced update: its graph, its state, and the tensors of a step that it reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from planner.export.errors import UpdateRefused
from planner.export.trace.joint import JointGraph
from planner.export.update.graph import before
from planner.export.update.optimizers import Rates
from planner.export.update.outcome import Key, Update
from planner.export.update.reach import Path
from planner.export.update.trace import Tracer

STARTED = "started"
"""Input that tells whether the state has been created: false at the first step only."""


@dataclass(frozen=True, kw_only=True)
class State:
    """An input of the update, and the value that it leaves for the next step.

    Attributes:
        new: the value left; None if the update only reads the input, as with a learning rate.
        initial: value at the first step.
        path, key: location in the caller's code: a place, or a tensor.
    """

    name: str
    node: fx.Node
    new: fx.Node | None
    initial: Tensor
    path: Path | None = None
    key: Key | None = None


@dataclass(frozen=True, kw_only=True)
class TracedUpdate:
    """The code that a loop runs after the backward pass, as a graph.

    Attributes:
        module: the graph, whose placeholders are those of `fed`, `state` and `constants`.
        fed: placeholders for tensors of the step, by name: `weight`, `weight_grad`, `labels`.
        constants: tensors that it only reads, by placeholder.
        updated: new values of the module's parameters and buffers.
        results: results of the function.
        rates: the learning rates, which are state that it only reads.
        update: the function itself.
        tracer: the tracer, which knows the caller's tensors.
        shows_gradients: whether gradients are outputs beside the values computed from them.
    """

    module: fx.GraphModule
    fed: Mapping[str, fx.Node]
    constants: Mapping[fx.Node, Tensor]
    state: tuple[State, ...]
    updated: Mapping[str, fx.Node]
    results: Mapping[str, fx.Node]
    rates: Rates
    update: Update
    tracer: Tracer
    shows_gradients: bool = False

    def leaves_gradient(self, parameter: str) -> bool:
        """Tell whether a parameter's gradient is an output: all are, or it has no other use."""
        return self.shows_gradients or parameter not in self.updated


def check_constants(update: TracedUpdate, joint: JointGraph) -> None:
    """Raise UpdateRefused if the update changes a tensor that the step has as a constant."""
    root = joint.module
    constants = [getattr(root, str(n.target)) for n in root.graph.find_nodes(op="get_attr")]
    held = {t.untyped_storage()._cdata for t in constants if isinstance(t, Tensor)}
    for item in update.state:
        if item.new is not None and item.key is not None and item.key[0] in held:
            raise UpdateRefused(
                f"it changes {item.name!r}, which the module or the loss has as a constant: give it as a "
                "target (or an input), which the update may read and change"
            )


@contextlib.contextmanager
def lent_gradients(module: nn.Module, gradients: Mapping[str, Tensor]) -> Iterator[None]:
    """Make these the gradients of a module's parameters within the block; the others have none."""
    kept = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        for name, parameter in module.named_parameters():
            parameter.grad = gradients.get(name)
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers, each distinct tensor once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def needed(state: Mapping[str, State], wanted: Iterable[fx.Node]) -> dict[str, State]:
    """Return the state without Python numbers that no result depends on, such as a count of calls."""
    kept = {name: item for name, item in state.items() if not _is_number(item)}
    left = {name: item for name, item in state.items() if name not in kept}
    nodes = [*wanted, *(item.new for item in kept.values() if item.new is not None)]
    while True:
        reached = before(*nodes)
        found = {name: item for name, item in left.items() if item.node in reached}
        if not found:
            return {name: item for name, item in state.items() if name in kept}
        kept |= found
        left = {name: item for name, item in left.items() if name not in found}
        nodes += [item.new for item in found.values() if item.new is not None]


def _is_number(item: State) -> bool:
    """Tell whether a state tensor may stand for a Python number."""
    return item.path is not None and item.initial.dtype == torch.float64 and not item.initial.dim()
