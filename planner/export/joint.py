"""From a PyTorch module to one graph that computes its loss and every gradient.

The trace runs on fake tensors (shapes without storage), so that a network of any size can be
traced in the memory of its description. `aot_export_module` has two demands that ordinary
modules break: no parameter may be registered twice, and each must receive a gradient.
`_Flat` meets them: one entry per distinct tensor, and those without a gradient are buffers.
"""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.schemas import GraphSignature
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode

from planner.errors import UsageError
from planner.export.decompose import decompositions
from planner.export.errors import (
    DataDependentControlFlow,
    ExportError,
    InvalidLoss,
    ModuleFailure,
    TracerFailure,
)
from planner.export.step import PREFIX, TrainingStep

_ON_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""What a trace on shapes raises where it would need a value."""


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
    gradients: Mapping[str, fx.Node]
    """Gradient of the loss, per parameter."""
    updated_buffers: Mapping[str, fx.Node]
    """New value of each buffer that the forward pass changes."""
    first_use: Mapping[str, str]
    """The line of source where the forward pass first calls each operator."""
    symbolic: frozenset[str]
    """Inputs whose first dimension is to stay open."""


class _Flat(nn.Module):
    """Runs a step on tensors registered under flat names (no dots, no ties)."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.functional = _Functional(step)
        self.original: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor, *, trained: bool) -> None:
        """Register `tensor` for the network's tensor called `name`."""
        flat = f"tensor_{len(self.original)}"
        self.original[flat] = name
        if trained:
            self.register_parameter(flat, nn.Parameter(tensor))
        else:
            self.register_buffer(flat, tensor)

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        """The loss, alone in a tuple as the tracer wants it."""
        tensors = {name: _view(getattr(self, flat)) for flat, name in self.original.items()}
        return (self.functional(tensors, inputs),)


def _view(tensor: Tensor) -> Tensor:
    """A trained tensor through a view, so that its gradient is a node of its own.

    `a + b` hands both the same gradient, and the tracer refuses a result that occurs twice.
    """
    return tensor.view(tensor.shape) if tensor.requires_grad else tensor


class _FirstUse(TorchDispatchMode):
    """Remembers the caller's line for the first call of each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, str] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func) not in self.lines:
            self.lines[str(func)] = _user_line(traceback.extract_stack())
        return func(*args, **(kwargs or {}))


class _Functional:
    """A step's loss as a function of its tensors. Not a Module: holds no parameters itself."""

    def __init__(self, step: nn.Module) -> None:
        self.step = step

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
        named = {PREFIX + name: tensor for name, tensor in tensors.items()}
        return torch.func.functional_call(self.step, named, tuple(inputs), tie_weights=True)


def trace(
    step: TrainingStep, inputs: Mapping[str, Tensor], *, dynamic_batch: bool = False
) -> JointGraph:
    """Trace the loss of a step and its gradients, in training mode.

    Where the network's Python reads a tensor's value, the step goes through `torch.export` first:
    libraries (transformers' attention masks) leave such shortcuts out there.

    Args:
        inputs: what the step takes, by name. Tensors give only shapes and types: parameters may be
            on the meta device.
        dynamic_batch: leave the first dimension of the inputs symbolic, where it is the batch.

    Raises:
        ExportError: see `planner.export.errors`.
    """
    step.train()
    # oneDNN's recurrent layers are operators of their own, which nothing translates
    with _quiet(), torch.backends.mkldnn.flags(enabled=False):
        try:
            return _trace(step, step.module, inputs, dynamic_batch)
        except DataDependentControlFlow as error:
            program = _exported(step, inputs, dynamic_batch)
            if program is None:
                raise
            exported = program.module(check_guards=False)
            try:
                found = _trace(exported, step.module, inputs, dynamic_batch)
            except DataDependentControlFlow:
                raise error from None
            return replace(found, first_use=_lines_of(program))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch's own remarks kept from the terminal: what matters is raised as an error."""
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
    step: nn.Module, module: nn.Module, inputs: Mapping[str, Tensor], dynamic_batch: bool
) -> JointGraph:
    trained, constant, first_use = _gradient_flow(step, module, inputs)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    flat = _Flat(step)
    with mode:
        for name, tensor in trained.items():
            flat.add(name, _blank(tensor), trained=True)
        for name, tensor in constant.items():
            flat.add(name, _blank(tensor), trained=False)
    batch = batch_size(inputs) if dynamic_batch else None
    fakes = tuple(_fake_input(mode, tensor, batch) for tensor in inputs.values())
    try:
        # the tracer's last pass makes new tensors outside of any fake mode, and so of fixed sizes
        with mode if batch else contextlib.nullcontext():
            traced, signature = aot_export_module(
                flat,
                fakes,
                trace_joint=True,
                output_loss_index=0,
                decompositions=decompositions(),
            )
    except _ON_VALUES as error:
        raise _data_dependent(error) from error
    except Exception as error:
        raise TracerFailure(_user_line(traceback.extract_tb(error.__traceback__)), error) from error
    assert isinstance(traced, fx.GraphModule)
    traced.graph.eliminate_dead_code()
    symbolic = {name for name, tensor in inputs.items() if batch and _has_batch(tensor, batch)}
    return _read_signature(
        traced, signature, flat.original, list(inputs), first_use, frozenset(symbolic)
    )


def _exported(
    step: TrainingStep, inputs: Mapping[str, Tensor], dynamic_batch: bool
) -> torch.export.ExportedProgram | None:
    """The step as `torch.export` sees it; None where that fails as well."""
    if any(tensor.is_meta for tensor in (*step.parameters(), *step.buffers())):
        return None
    batch = batch_size(inputs) if dynamic_batch else None
    axes = tuple(
        {0: torch.export.Dim.DYNAMIC} if batch and _has_batch(tensor, batch) else None
        for tensor in inputs.values()
    )
    blank = tuple(torch.zeros_like(tensor, device="cpu") for tensor in inputs.values())
    said = io.StringIO()  # it prints the graph so far where it fails
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return torch.export.export(step, blank, dynamic_shapes=(axes,), strict=False)
    except Exception:  # of any kind: the error that led here says more to the caller
        return None


def _gradient_flow(
    step: nn.Module, module: nn.Module, inputs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """The tensors that receive a gradient, all others, and where operators are first used.

    A fake step tells.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    functional = _Functional(step)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = {name: _blank(tensor) for name, tensor in {**parameters, **buffers}.items()}
        candidates = [name for name, tensor in parameters.items() if tensor.requires_grad]
        for name in candidates:
            tensors[name].requires_grad_()
        try:
            with _FirstUse() as uses:
                value = functional(tensors, [_blank(tensor) for tensor in inputs.values()])
        except _ON_VALUES as error:
            raise _data_dependent(error) from error
        except ExportError:
            raise
        except Exception as error:
            line = _user_line(traceback.extract_tb(error.__traceback__))
            raise ModuleFailure(line, error) from error
        if value.dim() or not value.is_floating_point() or not value.requires_grad:
            raise InvalidLoss(
                f"the loss must be a scalar of floating point that depends on a parameter to "
                f"train; it is {value.dtype} of shape {list(value.shape)}"
                f"{'' if value.requires_grad else ' and depends on none'}"
            )
        gradients = torch.autograd.grad(
            value, [tensors[name] for name in candidates], allow_unused=True
        )
    reached = {name for name, grad in zip(candidates, gradients, strict=True) if grad is not None}
    trained: dict[str, Tensor] = {}
    constant: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        (trained if name in reached else constant)[name] = tensor
    return trained, constant | buffers, uses.lines


def _blank(tensor: Tensor) -> Tensor:
    """A CPU tensor of the same shape and type; fake where a fake mode is active."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def batch_size(inputs: Mapping[str, Tensor]) -> int:
    """The first dimension of the first input.

    Raises:
        UsageError: it has none, or the example's is 1, which a tracer takes for a constant.
    """
    name, first = next(iter(inputs.items()))
    if not first.dim():
        raise UsageError(f"a symbolic batch: the first input, {name!r}, has no dimensions")
    if first.shape[0] < 2:
        raise UsageError(
            f"a symbolic batch: the example of input {name!r} has a batch of {first.shape[0]}; "
            "give one of at least 2"
        )
    return first.shape[0]


def _has_batch(tensor: Tensor, batch: int) -> bool:
    return bool(tensor.dim()) and tensor.shape[0] == batch


def _fake_input(mode: FakeTensorMode, tensor: Tensor, batch: int | None) -> Tensor:
    sizes = [DimDynamic.STATIC] * tensor.dim()
    if batch and _has_batch(tensor, batch):
        sizes[0] = DimDynamic.DYNAMIC
    return mode.from_tensor(
        _blank(tensor), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )


def _data_dependent(error: Exception) -> DataDependentControlFlow:
    return DataDependentControlFlow(
        _user_line(traceback.extract_tb(error.__traceback__)), str(error)
    )


def _user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of the module's or the loss's own source; "" where all are PyTorch's."""
    torch_root, own = str(Path(nn.__file__).parents[1]), str(Path(__file__).parent)
    for frame in reversed(frames):
        if frame.filename.startswith(own):
            if frame.name == _FirstUse.__torch_dispatch__.__name__:
                continue
            return ""  # from here on it is who called the exporter
        if not frame.filename.startswith((torch_root, "<")):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return ""


def _lines_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """The line of source that each operator of an exported program comes from."""
    lines: dict[str, str] = {}
    for node in program.graph.nodes:
        entry = str(node.meta.get("stack_trace") or "").rpartition('File "')[2].splitlines()
        if node.op == "call_function" and entry:
            file, _, place = entry[0].partition('", line ')
            number, _, function = place.partition(", in ")
            text = f"{file}:{number} in {function}: {' '.join(entry[1:2]).strip()}"
            lines.setdefault(str(node.target), text)
    return lines


def _read_signature(
    traced: fx.GraphModule,
    signature: GraphSignature,
    original: Mapping[str, str],
    input_names: Sequence[str],
    first_use: Mapping[str, str],
    symbolic: frozenset[str],
) -> JointGraph:
    """Sort placeholders and results of the traced graph by what they are."""
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

    # The signature's `loss_output` is wrong when buffers change, so count: the new buffers,
    # the loss, one gradient for each parameter.
    (results,) = traced.graph.find_nodes(op="output")[0].args
    *updated, loss = results[: -len(parameters)]
    gradients = results[-len(parameters) :]
    changed = signature.buffers_to_mutate
    return JointGraph(
        module=traced,
        inputs=inputs,
        parameters=parameters,
        buffers=buffers,
        loss=loss,
        gradients=dict(zip(parameters, gradients, strict=True)),
        updated_buffers={original[changed[node.name]]: node for node in updated},
        first_use=first_use,
        symbolic=symbolic,
    )
