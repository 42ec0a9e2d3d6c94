"""Trace a PyTorch module into one graph that computes its loss and every gradient.

The trace runs on fake tensors (shapes without storage), which lets it handle a network of any size in
little memory. `aot_export_module` requires that no parameter is registered twice and that each receives a
gradient. Ordinary modules violate both. `planner.export.trace.functional.Flat` meets both: it has one
entry per distinct tensor, and registers tensors without a gradient as buffers.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import traceback
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.schemas import GraphSignature
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from planner.export.apart.decompose import decompositions
from planner.export.dims import Border, OpenDims, bind_equal, borders_of, names_of
from planner.export.errors import (
    DataDependentControlFlow,
    ExportError,
    KeptTensor,
    MovingRead,
    ReadOfState,
    TracerFailure,
)
from planner.export.lines import line_of_user, lines_of
from planner.export.trace.contexts import called_plainly, on_cpu, without_stacks
from planner.export.trace.flow import GradientFlow, blank, data_dependent, gradient_flow
from planner.export.trace.functional import Flat, Functional
from planner.export.trace.lending import undisturbed
from planner.export.trace.logged import ON_VALUES
from planner.export.trace.specialize import Read, read_in_a_run
from planner.export.trace.stand_ins import Scattering, modules_stood_in
from planner.export.trace.step import TrainingStep

_MOST_NUMBERS = 1 << 28
"""Number of parameter and buffer elements above which a step is not run for a better error message."""


@dataclass(frozen=True, kw_only=True)
class JointGraph:
    """A traced forward and backward pass. Names are the module's own, dots included."""

    module: fx.GraphModule
    inputs: Mapping[str, fx.Node]
    """The caller's inputs, in order."""
    parameters: Mapping[str, fx.Node]
    """Every distinct parameter that receives a gradient."""
    buffers: Mapping[str, fx.Node]
    """Buffers, and parameters that receive no gradient."""
    loss: fx.Node
    outputs: Mapping[str, fx.Node]
    """Results of the loss function other than the loss, in its order."""
    gradients: Mapping[str, fx.Node]
    """Gradient of the loss, per parameter."""
    updated_buffers: Mapping[str, fx.Node]
    """New value of each buffer, or parameter, that the forward pass changes."""
    first_use: Mapping[str, str]
    """Source line at which the forward pass first calls each operator."""
    open: OpenDims
    """Dimensions of the inputs that stay open."""
    borders: tuple[Border, ...] = ()
    """Conditions on the open dimensions that the trace assumes."""
    reads: tuple[Read, ...] = ()
    """Values of the example inputs that the graph assumes."""
    decided: tuple[str, ...] = ()
    """Buffers whose values decided what is traced."""


class _Shapes(ShapeEnv):
    """A ShapeEnv that records the source line at which an open dimension became a constant.

    Attributes:
        fixed_at: the line; "" if it is not in the user's source.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fixed_at = ""

    def _set_replacement(self, a: Any, tgt: Any, msg: str) -> None:
        if tgt.is_number and not self.fixed_at:
            self.fixed_at = line_of_user(traceback.extract_stack()[:-1])
        super()._set_replacement(a, tgt, msg)


def trace(
    step: TrainingStep,
    inputs: Mapping[str, Tensor],
    *,
    dims: OpenDims | None = None,
    specialize: bool = False,
) -> JointGraph:
    """Trace the loss of a step and its gradients.

    If the network's Python reads a tensor's value, the step goes through `torch.export` first: libraries
    (transformers' attention masks) skip such shortcuts there.

    Args:
        inputs: the step's inputs, by name. Only their shapes and types are used, and parameters may be on
            the meta device.
        dims: dimensions of the inputs that stay symbolic.
        specialize: run the step, and assume the values that its Python reads of tensors.

    Raises:
        UsageError: `specialize` is set and the step cannot run, because a tensor is on the meta device.
        ExportError: see `planner.export.errors`.
    """
    dims = dims or {}
    step.train()
    # No rule lowers the separate operators of oneDNN's recurrent layers.
    with (
        _quiet(),
        on_cpu(),
        called_plainly(),
        modules_stood_in(),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        try:
            return _trace(Functional(step), step.module, inputs, dims)
        except DataDependentControlFlow as error:
            if isinstance(error, ReadOfState) and not specialize:
                raise
            found = _trace_exported(step, inputs, dims)
            if found is not None:
                return found
            if specialize:
                return _trace_specialized(step, inputs, dims)
            if not _can_specialize(step, inputs, dims):
                raise
            raise error.specializable() from error


def _trace_specialized(
    step: TrainingStep, inputs: Mapping[str, Tensor], dims: OpenDims
) -> JointGraph:
    """Trace with the values that the step's Python reads of the example inputs assumed."""
    reads = _reads(step, inputs)
    return replace(_trace(Functional(step, reads), step.module, inputs, dims), reads=reads)


def _can_specialize(step: TrainingStep, inputs: Mapping[str, Tensor], dims: OpenDims) -> bool:
    """Tell whether a specialized trace succeeds; False for a large step, which is not run.

    Raises:
        MovingRead: a value that is read differs from step to step.
    """
    if sum(t.numel() for t in (*step.parameters(), *step.buffers())) > _MOST_NUMBERS:
        return False
    with undisturbed():
        try:
            _trace_specialized(step, inputs, dims)
        except MovingRead:
            raise
        except Exception:  # the caller's error says more than any raised here
            return False
    return True


def _trace_exported(
    step: TrainingStep, inputs: Mapping[str, Tensor], dims: OpenDims
) -> JointGraph | None:
    """Trace by way of `torch.export`; return None if that fails, too."""
    program = _exported(step, inputs, dims)
    if program is None:
        return None
    exported = program.module(check_guards=False)
    try:
        found = _trace(Functional(exported), step.module, inputs, dims)
    except DataDependentControlFlow:
        return None
    given = program.graph_signature.user_inputs
    at = {n.name: n.meta["val"] for n in program.graph.nodes if n.name in given}
    fakes = {key: at[str(name)] for key, name in zip(inputs, given, strict=True)}
    borders = [
        borders_of(fake.fake_mode.shape_env, dims, {key: fake.shape for key, fake in fakes.items()})
        for fake in (list(fakes.values())[:1] if dims else ())
    ]
    return replace(found, first_use=lines_of(program), borders=(*found.borders, *sum(borders, ())))


def _reads(step: TrainingStep, inputs: Mapping[str, Tensor]) -> tuple[Read, ...]:
    """Run the step; return the values that its Python reads of the example inputs."""
    parameters, buffers = dict(step.module.named_parameters()), dict(step.module.named_buffers())
    with contextlib.closing(Functional(step)) as functional:

        def run(tensors: dict[str, Tensor]) -> None:
            functional(tensors, list(inputs.values()))
            tensors.update(functional.assigned)

        return read_in_a_run(run, parameters, buffers)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's warnings and logs within the block; what matters is raised as an error."""
    loggers = [logging.getLogger(f"torch.{name}") for name in ("_subclasses.fake_tensor", "export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _trace(
    functional: Functional, module: nn.Module, inputs: Mapping[str, Tensor], dims: OpenDims
) -> JointGraph:
    with contextlib.closing(functional), _same_grad_mode():
        return _joint(functional, module, inputs, dims)


def _same_grad_mode() -> contextlib.AbstractContextManager[Any]:
    """Restore the grad mode at the end of the block: PyTorch's tracer leaves it changed when it fails."""
    return torch.set_grad_enabled(torch.is_grad_enabled())


def _joint(
    functional: Functional, module: nn.Module, inputs: Mapping[str, Tensor], dims: OpenDims
) -> JointGraph:
    flow = gradient_flow(functional, module, inputs)
    shapes = _Shapes()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    flat = Flat(functional, flow.results, flow.changed)
    with mode:
        for name, tensor in flow.trained.items():
            flat.add(name, blank(tensor), trained=True)
        for name, tensor in flow.constant.items():
            flat.add(name, blank(tensor), trained=False)
    fakes = {key: _fake_input(mode, x, dims.get(key, {})) for key, x in inputs.items()}
    bind_equal(dims, fakes)
    try:
        # The tracer's last pass makes new tensors outside of any fake mode, and so with fixed sizes.
        with Scattering(), without_stacks(), mode if dims else contextlib.nullcontext():
            traced, signature = aot_export_module(
                flat,
                tuple(fakes.values()),
                trace_joint=True,
                output_loss_index=0,
                decompositions=decompositions(),
            )
    except ON_VALUES as error:
        raise data_dependent(error) from error
    except ExportError:
        raise
    except Exception as error:
        if "Unexpected fake buffer" in str(error):
            raise KeptTensor() from error
        raise TracerFailure(
            line_of_user(traceback.extract_tb(error.__traceback__)), error
        ) from error
    at = {key: fake.shape for key, fake in fakes.items()}
    names_of(dims, at, shapes.fixed_at)
    assert isinstance(traced, fx.GraphModule)
    traced.graph.eliminate_dead_code()
    found = _read_signature(traced, signature, flat.original, list(inputs), flow, dims)
    return replace(found, borders=borders_of(shapes, dims, at))


def _exported(
    step: TrainingStep, inputs: Mapping[str, Tensor], dims: OpenDims
) -> torch.export.ExportedProgram | None:
    """Export the step with `torch.export`; return None if that fails."""
    axes = tuple(dict.fromkeys(dims.get(key, {}), torch.export.Dim.DYNAMIC) for key in inputs)
    said = io.StringIO()  # torch.export prints the partial graph on failure
    try:
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            _no_backward_of_ones_own(),
            _same_grad_mode(),
        ):
            module, blank = _on_cpu(step, inputs)
            return torch.export.export(module, blank, dynamic_shapes=(axes,), strict=False)
    except Exception:  # the caller's error says more than any raised here
        return None


@contextlib.contextmanager
def _no_backward_of_ones_own() -> Iterator[None]:
    """Reject every `autograd.Function` within the block.

    `torch.export` keeps the operators of its forward, and would use their gradient in place of its
    backward.
    """
    applied = torch.autograd.Function.__dict__["apply"]

    def refused(function: type, *_: Any, **__: Any) -> Any:
        raise ExportError(f"{function.__name__} has a backward of its own")

    setattr(torch.autograd.Function, "apply", classmethod(refused))  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", applied)  # noqa: B010


def _on_cpu(
    step: TrainingStep, inputs: Mapping[str, Tensor]
) -> tuple[TrainingStep, tuple[Tensor, ...]]:
    """Return the step and blank inputs on the CPU.

    They are fake if the step has tensors on the meta device, which would stay there in the exported
    program.
    """
    if not any(tensor.is_meta for tensor in (*step.parameters(), *step.buffers())):
        return step, tuple(torch.zeros_like(tensor, device="cpu") for tensor in inputs.values())
    stand_in = copy.deepcopy(step)
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        stand_in.to_empty(device="cpu")
        return stand_in, tuple(blank(tensor) for tensor in inputs.values())


def _fake_input(mode: FakeTensorMode, tensor: Tensor, open_axes: Container[int]) -> Tensor:
    axes = range(tensor.dim())
    sizes = [DimDynamic.DYNAMIC if axis in open_axes else DimDynamic.STATIC for axis in axes]
    return mode.from_tensor(
        blank(tensor), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )


def _read_signature(
    traced: fx.GraphModule,
    signature: GraphSignature,
    original: Mapping[str, str],
    input_names: Sequence[str],
    flow: GradientFlow,
    open: OpenDims,
) -> JointGraph:
    """Sort placeholders and results of the traced graph into the fields of a JointGraph."""
    inputs: dict[str, fx.Node] = {}
    parameters: dict[str, fx.Node] = {}
    buffers: dict[str, fx.Node] = {}
    names = iter(input_names)
    for node in traced.graph.find_nodes(op="placeholder"):
        if node.name in signature.inputs_to_parameters:
            parameters[original[signature.inputs_to_parameters[node.name]]] = node
        elif node.name in signature.inputs_to_buffers:
            buffers[original[signature.inputs_to_buffers[node.name]]] = node
        else:
            inputs[next(names)] = node

    # The signature's `loss_output` is wrong when buffers change. Count instead: new buffers and inputs
    # that the step overwrites, the loss and the other results, tensors that it changes otherwise, then
    # one gradient per parameter.
    (results,) = traced.graph.find_nodes(op="output")[0].args
    made = results[: -len(parameters)]
    at = len(made) - len(flow.changed)
    made, changed_otherwise = made[:at], made[at:]
    updated, (loss, *others) = made[: -len(flow.results)], made[-len(flow.results) :]
    gradients = results[-len(parameters) :]
    changed = signature.buffers_to_mutate
    return JointGraph(
        module=traced,
        inputs=inputs,
        parameters=parameters,
        buffers=buffers,
        loss=loss,
        outputs=dict(zip(flow.results[1:], others, strict=True)),
        gradients=dict(zip(parameters, gradients, strict=True)),
        updated_buffers={
            **{original[changed[node.name]]: node for node in updated if node.name in changed},
            **dict(zip(flow.changed, changed_otherwise, strict=True)),
        },
        first_use=flow.first_use,
        open=open,
        decided=flow.decided,
    )
