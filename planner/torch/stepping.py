"""The training step as a module: one session run computes the loss, all gradients and other results.

The run computes the gradients together with the loss. Autograd saves them like the saved tensors of any
function and receives them in the backward pass: they accumulate in `.grad`, pass hooks and are freed as
in an eager step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch._C._autograd as _autograd  # pyright: ignore
from torch import Tensor, nn

from planner.errors import ModelError, UsageError
from planner.export.arguments import Given
from planner.export.draws import Draw
from planner.export.trace.step import TrainingStep
from planner.export.write.dtypes import as_real
from planner.export.write.lower import GRADIENT_SUFFIX, LOSS, UPDATED_SUFFIX
from planner.torch.binding import DimSizes, Entry, TensorSession
from planner.torch.watching import Granted, Named, check_constants

StepOf = Callable[[Given, Given], tuple[TrainingStep, dict[str, Tensor]]]
"""Function of (inputs, targets): returns the step that takes them, and its tensors by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedStep:
    """An exported step and its session.

    Attributes:
        module: the user's module.
        constants: the non-tensor values in the examples, by their path.
        session: session of the rewritten file at `path`.
        inputs, outputs: entries of the graph, by name, in order.
        taken: names of the inputs that a call gives.
        trained: parameters whose gradients the graph computes.
        results: outputs that the loss function returns beside the loss.
        draws: random tensors among the inputs, by name.
        planned_sizes: sizes of the open dims that the budget was planned for, by name.
        named: the module's tensors.
        granted: values that the graph has as constants.
    """

    module: nn.Module
    constants: Mapping[str, Any]
    session: TensorSession
    path: str
    inputs: Mapping[str, Entry]
    outputs: Mapping[str, Entry]
    taken: tuple[str, ...]
    trained: tuple[str, ...]
    results: tuple[str, ...]
    draws: Mapping[str, Draw]
    planned_sizes: Mapping[str, int]
    named: Named
    granted: Granted

    def check_call(self, step: TrainingStep, tensors: Mapping[str, Tensor]) -> None:
        """Raise UsageError if a call differs from the examples in more than its tensors' values."""
        if tuple(tensors) != self.taken:
            raise UsageError(
                f"the step takes {', '.join(map(repr, self.taken))}, and is given "
                f"{', '.join(map(repr, tensors))}: call it with the structure of the examples"
            )
        check_constants(step, self.constants)
        _check_autocast(step.autocast)
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                raise UsageError(
                    f"{name!r} requires a gradient, and the graph has those of parameters alone; give "
                    f"{name}.detach(), or run step.module in PyTorch"
                )


class Step(nn.Module):
    """A module and its loss, run as a rewritten graph.

    In training mode, with gradients enabled, a call runs the rewritten graph. Otherwise it runs the
    module and the loss in PyTorch.

    Attributes:
        module: the user's module, which owns the parameters. It may be called directly at any time.
    """

    def __init__(self, made: ExportedStep, step_of: StepOf) -> None:
        super().__init__()
        self.module = made.module
        self._made = (made, step_of)

    @property
    def model_path(self) -> str:
        """Path of the ONNX file that the session runs."""
        return self._made[0].path

    @torch.compiler.disable  # the graph runs outside of PyTorch: nothing to compile
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: Given, targets: Given = ()
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, a scalar, and the loss function's other results by name, if it returns any.

        The other results have no gradients.

        Args:
            inputs, targets: values of the structure of the examples given to `planner.torch.step`.

        Raises:
            UsageError: something has changed since the step was traced; the message names it.
            ModelError: ONNX Runtime fails.
        """
        made, step_of = self._made
        if self.module is not made.module:
            raise UsageError("step.module is another module now: make the step again")
        step, tensors = step_of(inputs, targets)
        if not (self.module.training and torch.is_grad_enabled()):
            results = step(*tensors.values())
            loss = results.pop(LOSS)
            return (loss, results) if results else loss
        made.check_call(step, tensors)
        state = made.named.tensors(self.module)
        run = _TensorRun(made, tensors, state)
        made.granted.check(step)
        loss: Tensor = _Loss.apply(run, *(state[name] for name in made.trained))  # pyright: ignore
        return (loss, run.results) if made.results else loss

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError(
            "a planner.torch.step is neither copied nor pickled, since its session is this process's: "
            "save step.module.state_dict(), or copy step.module"
        )


class _TensorRun:
    """One run of the graph, on the tensors of one call."""

    def __init__(
        self, made: ExportedStep, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> None:
        self.made, self.state, self.sizes = made, state, DimSizes()
        self.results: dict[str, Tensor] = {}
        given = {**state, **tensors}
        self.inputs = {
            name: entry.read(given[name], self.sizes)
            for name, entry in made.inputs.items()
            if name not in made.draws
        }
        for name, draw in made.draws.items():
            self.inputs[name] = made.inputs[name].drawn(draw, self.sizes)

    def __call__(self) -> tuple[Tensor, list[Tensor]]:
        """Run the graph; return the loss and the gradient of each trained parameter.

        Updates the module's state in place, and stores the other results in `results`.
        """
        made = self.made
        results = {name: entry.empty(self.sizes) for name, entry in made.outputs.items()}
        try:
            made.session.run(self.inputs, results, {**made.inputs, **made.outputs})
        except ModelError as error:
            larger = [n for n, size in self.sizes.items() if size > made.planned_sizes[n]]
            sizes = "; ".join(
                f"{name} is {self.sizes[name]}, and the plan is for {made.planned_sizes[name]}: make the "
                "step with examples as large"
                for name in larger
            )
            raise ModelError("; ".join(filter(None, (str(error), sizes)))) from error
        for name, tensor in self.state.items():
            new = results.get(name + UPDATED_SUFFIX)
            if new is not None:
                as_real(tensor).copy_(new)
        self.results = {name: results[name] for name in made.results}
        found = {name: results[name + GRADIENT_SUFFIX] for name in made.trained}
        gradients = [
            torch.view_as_complex(gradient) if self.state[name].is_complex() else gradient
            for name, gradient in found.items()
        ]
        return results[LOSS], gradients


class _Loss(torch.autograd.Function):
    """Autograd function that returns the loss of a run and its gradients."""

    @staticmethod
    def forward(ctx: Any, run: _TensorRun, *parameters: Tensor) -> Tensor:
        loss, gradients = run()
        wanted = ctx.needs_input_grad[1:]
        # Autograd frees saved tensors after the backward pass, unless it is asked to keep them.
        ctx.save_for_backward(
            *(g if is_wanted else None for g, is_wanted in zip(gradients, wanted, strict=True))
        )
        return loss

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UsageError(
                "planner.torch.step has no second derivatives (create_graph=True): run step.module and "
                "the loss in PyTorch for them"
            )
        (factor,) = incoming
        gradients = ctx.saved_tensors
        if factor != 1:
            # In place, unless another backward pass will read the gradients again.
            keeps = _autograd._get_current_graph_task_keep_graph()
            times = torch.mul if keeps else Tensor.mul_
            gradients = tuple(None if g is None else times(g, factor) for g in gradients)
        return None, *gradients


def _check_autocast(own: torch.dtype | None) -> None:
    """Raise UsageError if the call runs under an autocast that the graph was not traced under."""
    if not torch.is_autocast_enabled("cpu"):
        return
    around = torch.get_autocast_dtype("cpu")
    if around != own:
        raise UsageError(
            f"the step is called under torch.autocast in {around} and was traced "
            f"{'without' if own is None else f'in {own}'}: give planner.torch.step autocast={around}, or "
            "call it outside"
        )
