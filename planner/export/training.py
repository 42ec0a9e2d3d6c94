"""Export a PyTorch module, with example inputs and a loss, as an ONNX training graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from onnx import helper
from torch import Tensor, nn

from planner import __version__
from planner.errors import UsageError
from planner.export.arguments import Arguments, Given
from planner.export.aten.registry import HALF, array_of, numpy_dtype
from planner.export.checking.check import why_not_compared
from planner.export.checking.counted import counts_put_back
from planner.export.dims import OpenDims, checked, open_batch
from planner.export.draws import Random
from planner.export.errors import InvalidLoss
from planner.export.initial import initial_specs
from planner.export.inputs import InputSpec, write_specs
from planner.export.optim import Optimizer, StateTensor
from planner.export.trace.joint import JointGraph, trace
from planner.export.trace.lending import as_it_was
from planner.export.trace.step import Loss, TrainingStep, unwrapped
from planner.export.update.build import traced_update
from planner.export.update.named import named_optimizer
from planner.export.update.outcome import Update
from planner.export.update.traced import TracedUpdate, check_constants, tensors_of
from planner.export.write.dtypes import as_real
from planner.export.write.files import data_path, sidecar_path, stage
from planner.export.write.lower import LoweredStep, check_kernels, lower
from planner.files.writing import FileName, check_writable
from planner.onnxio.save import written_together
from planner.units import some_of

ASSUMED = "planner.assumed"
"""Metadata key: values of the example inputs that the graph takes for granted, one a line."""


class KernelWarning(UserWarning):
    """The exported graph is right, and ONNX Runtime's CPU provider cannot run it."""


class ModeWarning(UserWarning):
    """Parts of a module in training mode are in evaluation mode, and are exported in it."""


@dataclass(frozen=True, kw_only=True)
class ExportedGraph(LoweredStep):
    """A training graph, and how to draw its inputs."""

    recipes: Mapping[str, InputSpec]
    unchecked: str = ""
    """Why the graph was not compared with PyTorch's own step; "" where it was."""
    assumed: tuple[str, ...] = ()
    """Places where the module's Python reads values of tensors, with the values read from the example
    inputs. The graph is right for inputs with the same values there (`specialize`)."""

    decided: tuple[str, ...] = ()
    """Buffers whose values decided what is computed (a mask, a flag): to the graph they are constants."""

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the optimizer's inputs at the first step, learning rates included.

        Feed them beside the parameters. At each later step, feed `<name>_new` of the step before as
        `<name>`.
        """
        return {item.name: np.full(item.shape, item.initial, item.dtype) for item in self.state}

    def save(
        self,
        path: FileName,
        *,
        external_data: bool = False,
        sidecar: bool = False,
        force: bool = False,
    ) -> tuple[Path, ...]:
        """Write the model and its side files, and return the paths of all files written.

        Args:
            external_data: store tensors in `NAME.onnx.data` (always done above 2 GB).
            sidecar: write `NAME.inputs.json`, which says how to draw the inputs.
            force: overwrite files that exist.

        Raises:
            UsageError: a file exists, or cannot be written.
        """
        model, recipes = Path(path), sidecar_path(Path(path))
        beside = [data_path(model)] * external_data + [recipes] * sidecar
        for file in (model, *beside):
            check_writable(file, force=force)
        with written_together() as files:
            data = stage(self.model, model, files, external=external_data)
            if sidecar:
                with files.writing(recipes) as temporary:
                    write_specs(temporary, self.recipes)
        return (model, *([data] if data else []), *([recipes] if sidecar else []))


def export_training_graph(
    module: nn.Module,
    example_inputs: Given,
    loss_fn: Loss | None = None,
    optimizer: str | Optimizer | torch.optim.Optimizer | Update | None = None,
    *,
    targets: Given = (),
    dynamic_batch: bool = False,
    dynamic: OpenDims | None = None,
    store_parameters: bool = False,
    specialize: bool = False,
    autocast: torch.dtype | None = None,
    cast_for_cpu: bool = False,
    random: Random = "graph",
    check: bool = True,
    name: str | None = None,
) -> ExportedGraph:
    """Export one training step of a PyTorch module as an ONNX graph in standard operators.

    Graph inputs: the example inputs and the targets; then every parameter, and every buffer that
    the step changes, under the module's own names; then the optimizer's state. Outputs: `loss`; what
    `loss_fn` returns beside it; `<parameter>_grad`, or with an optimizer `<parameter>_new` and the new
    state; `<buffer>_new`.
    The step is traced on shapes alone, in training mode, but for parts that a module in training mode has
    in evaluation mode (a warning names them); and a module on the meta device takes no memory.
    Then PyTorch's own step is run beside the graph on ONNX Runtime (`planner.export.checking.check`).

    Args:
        module: any network; parameters without `requires_grad` are not trained. Of `DataParallel`,
            `DistributedDataParallel` and `torch.compile` the module within.
        example_inputs: what the module takes: one argument or several, in order, or by keyword. Each is a
            tensor, a constant, or holds tensors in lists, dicts and the like, each an input under its
            path: `labels.0.boxes`. Their types and shapes are the graph's.
        loss_fn: `loss_fn(the module's result, *targets)` -> a scalar; or `(loss, {name: tensor})`,
            `(loss, a, b)`, or a dict or object with `loss`: other tensors are outputs of the graph, by
            name (`planner.export.trace.returned`). None where the module returns these itself; of an
            object with `.loss` (transformers, given labels) the loss alone is taken.
        optimizer: what is appended to the graph: a `torch.optim.Optimizer` of the module's parameters,
            or a function, which is what a loop runs between `loss.backward()` and its next step
            (clipping, `optimizer.step()`, averages; tensors that it returns by name are outputs);
            either is run on stand-ins and changes nothing. Or a name: of a class of `torch.optim`, with
            settings ("rmsprop:lr=1e-3,momentum=0.9"), or "sgd", "momentum", "adam", "adamw", which are
            those of `planner.export.optim`. The learning rate `lr` and the state are inputs.
        targets: what the loss takes beside the module's result, in order; a mapping names them. As
            `example_inputs`, tensors or not.
        dynamic_batch: leave the batch symbolic: the first dimension of the first input, and of
            each other one where the example has the same size.
        dynamic: axes that stay symbolic, by input and axis: `{"ids": {0: "batch", 1: "sequence"}}`.
            Axes of one name are of one size.
        store_parameters: store their values in the model instead of making them inputs.
        specialize: where the module's Python reads values of tensors (`if mask.any()`,
            `labels.nonzero()`), run it once and take for granted what it reads of the example inputs;
            `assumed` and the model's metadata say what that was. Values that follow from parameters
            are refused all the same.
        autocast: torch.bfloat16 or torch.float16: trace the module and the loss under `torch.autocast` in
            that type; one inside the module is followed in any case.
        cast_for_cpu: put casts around what ONNX Runtime's CPU provider has no bfloat16 kernel for: the
            same rounding, on any provider, at the price of the casts. Without it a graph in bfloat16
            loads where there are kernels (CUDA), and a warning names what the CPU lacks.
        random: "graph": random tensors (dropout's masks, `torch.rand`) are drawn in the graph, from seeds
            of its own; "inputs": each is an input, to be drawn outside, so that whatever is run again
            or elsewhere reads the same. The sidecar says how each is drawn.
        check: compare the graph with PyTorch's step, a copy of which is run: at the example inputs, and
            at other inputs and parameters, over three steps. Where that is not possible, `unchecked` says
            why.
        name: of the graph; by default the module's class.

    Raises:
        UsageError: no tensor among the inputs, or two of one name; an unknown optimizer, or one of other
            parameters than the module's; a module without shapes (lazy), or compiled.
        ExportError: the step cannot be exported; see `planner.export.errors`.
    """
    if random not in ("graph", "inputs"):
        raise UsageError(f"random is 'graph' or 'inputs', not {random!r}")
    if autocast not in (None, *HALF):
        raise UsageError(f"autocast is torch.bfloat16 or torch.float16, not {autocast!r}")
    if not isinstance(module, nn.Module):
        raise UsageError(f"the module is a {type(module).__name__}, not a torch.nn.Module")
    step, inputs = step_of(module, example_inputs, loss_fn, targets, autocast)
    module = step.module
    _check_names(module, inputs)
    if isinstance(optimizer, str):
        optimizer = named_optimizer(optimizer, module)
    if kept := step.in_evaluation():
        warnings.warn(_stay_so(kept), ModeWarning, stacklevel=2)
    dims = _open(inputs, dynamic_batch, dynamic)
    with as_it_was(step), counts_put_back(step):
        joint = trace(step, inputs, dims=dims, specialize=specialize)
    update = _update(optimizer, module, joint, inputs)
    graph = lower(
        joint,
        name or type(module).__name__,
        optimizer=update,
        initializers=_stored(module, joint, everything=store_parameters),
        cast_for_cpu=cast_for_cpu,
        random=random,
    )
    check_kernels(graph, joint)
    unchecked = "it was not asked for"
    if check:
        only_read = _stored(module, joint, everything=False)
        traced = update if isinstance(update, TracedUpdate) else None
        unchecked = why_not_compared(step, inputs, joint, only_read, traced)
    if graph.missing_on_cpu:
        warnings.warn(_needs_kernels(graph.missing_on_cpu), KernelWarning, stacklevel=2)
    graph.model.producer_name, graph.model.producer_version = "planner", __version__
    assumed = tuple(dict.fromkeys(map(str, joint.reads)))
    if assumed:
        helper.set_model_props(graph.model, {ASSUMED: "\n".join(assumed)})
    return ExportedGraph(
        model=graph.model,
        inputs=graph.inputs,
        parameters=graph.parameters,
        buffers=graph.buffers,
        state=graph.state,
        results=graph.results,
        draws=graph.draws,
        missing_on_cpu=graph.missing_on_cpu,
        recipes=_recipes(module, inputs, graph),
        unchecked=unchecked,
        assumed=assumed,
        decided=joint.decided,
    )


def step_of(
    module: nn.Module,
    example_inputs: Given,
    loss_fn: Loss | None,
    targets: Given,
    autocast: torch.dtype | None,
) -> tuple[TrainingStep, dict[str, Tensor]]:
    """Build the training step of `export_training_graph`; return it with its input tensors by name, in
    order.

    Raises:
        UsageError: no tensor is given, or targets without a loss function.
    """
    module = unwrapped(module)
    given = Arguments(example_inputs, module.forward, "input")
    wanted = Arguments(targets, loss_fn, "target", skip=1)
    if not given.tensors:
        raise UsageError("there is no example input; give at least one tensor")
    if wanted.tensors and loss_fn is None:
        raise UsageError("targets are for a loss function, and none is given")
    inputs = {**given.tensors, **_renamed(wanted.tensors, given.tensors)}
    return TrainingStep(module, given, wanted, loss_fn, autocast=autocast), inputs


def _update(
    optimizer: Optimizer | torch.optim.Optimizer | Update | None,
    module: nn.Module,
    joint: JointGraph,
    inputs: Mapping[str, Tensor],
) -> Optimizer | TracedUpdate | None:
    """Return the update to append to the step; a PyTorch optimizer or a function is traced."""
    if isinstance(optimizer, torch.optim.Optimizer) or (
        callable(optimizer) and not hasattr(optimizer, "append")
    ):
        update = traced_update(optimizer, module, joint.parameters, inputs)
        check_constants(update, joint)
        return update
    if optimizer is None or hasattr(optimizer, "append"):
        return cast(Optimizer | None, optimizer)
    raise UsageError(
        f"the optimizer is a {type(optimizer).__name__}; give a torch.optim.Optimizer, a function that a "
        'loop runs after loss.backward(), or a name ("adamw")'
    )


def _open(inputs: Mapping[str, Tensor], dynamic_batch: bool, dynamic: OpenDims | None) -> OpenDims:
    """Return the dimensions that stay symbolic."""
    if dynamic is None:
        return open_batch(inputs) if dynamic_batch else {}
    if dynamic_batch:
        raise UsageError(
            "dynamic_batch makes only the batch symbolic: with dynamic, name the batch "
            "among its axes"
        )
    return checked(dynamic, inputs)


def half_type(name: Literal["bf16", "fp16"] | None) -> torch.dtype | None:
    """Return the torch type for a name of the command line."""
    return None if name is None else {"bf16": torch.bfloat16, "fp16": torch.float16}[name]


def _stay_so(names: Sequence[str]) -> str:
    """Return the warning about parts in evaluation mode, in a module that trains."""
    return (
        f"parts of the module are in evaluation mode, and are exported so: {some_of(names, 3)}; "
        "call module.train() first where they are to train (dropout, statistics of a batch normalization)"
    )


def _needs_kernels(missing: Sequence[str]) -> str:
    """Return the warning about a graph that ONNX Runtime's CPU provider cannot run."""
    return (
        f"ONNX Runtime's CPU provider has no bfloat16 kernel of {', '.join(missing)}: the graph "
        "runs only on a provider that has them, and planning it here needs --no-verify; with "
        "cast_for_cpu=True (--cast-for-cpu) it runs on the CPU as well"
    )


def _renamed(targets: Mapping[str, Tensor], taken: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename each target that shares its name (often `input`) with an input."""
    return {(f"target_{key}" if key in taken else key): value for key, value in targets.items()}


def _check_names(module: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Check the names and layouts of tensors, and that the module can train."""
    tensors = tensors_of(module)
    for name, tensor in {**tensors, **inputs}.items():
        if tensor.layout is not torch.strided:
            raise UsageError(
                f"{name!r} is in the layout {tensor.layout}, and a graph has dense tensors: give it "
                "dense (to_dense()), or its indices and values as tensors, and add rows by index_add"
            )
    for name in inputs:
        if name in tensors:
            raise UsageError(
                f"the input {name!r} has the name of a parameter or buffer; give the inputs and "
                "targets as a dict with other names"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidLoss(
            f"{type(module).__name__} has no parameter to train: every one has requires_grad=False"
            if any(True for _ in module.parameters())
            else f"{type(module).__name__} has no parameter to train"
        )


def _stored(module: nn.Module, joint: JointGraph, *, everything: bool) -> dict[str, np.ndarray]:
    """Return the values to store in the model: buffers that the step only reads, or every tensor."""
    stored: dict[str, np.ndarray] = {}
    buffers = dict(module.named_buffers())
    for name, tensor in tensors_of(module).items():
        read_only = name in buffers and name not in joint.updated_buffers
        if not everything and (not read_only or tensor.is_meta):
            continue
        if tensor.is_meta:
            raise UsageError(f"{name!r} is on the meta device: it has no values to store")
        stored[name] = array_of(tensor)
    return stored


def _recipes(
    module: nn.Module, inputs: Mapping[str, Tensor], graph: LoweredStep
) -> dict[str, InputSpec]:
    """Return how to draw each graph input: data like the examples, parameters as PyTorch does."""
    recipes = {name: _like(tensor) for name, tensor in inputs.items()} | initial_specs(module)
    for item in graph.state:
        recipes.setdefault(item.name, _state_recipe(item))
    recipes |= {draw.name: draw.recipe() for draw in graph.draws}
    return {info.name: recipes[info.name] for info in graph.model.graph.input}


def _state_recipe(item: StateTensor) -> InputSpec:
    """Return how to draw a tensor of the optimizer's state; a nonnegative one (a mean of squares) stays
    nonnegative."""
    first = item.initial
    if not isinstance(first, np.ndarray):
        return InputSpec(shape=item.shape, dtype=item.dtype.name, kind="const", value=first)
    kind = "uniform" if (first >= 0).all() else "normal"
    return InputSpec(shape=item.shape, dtype=item.dtype.name, kind=kind)


def _like(tensor: Tensor) -> InputSpec:
    """Return a recipe for values like an example's: one value, normal, or integers in its range."""
    tensor = as_real(tensor)
    shape, dtype = tuple(tensor.shape), numpy_dtype(tensor.dtype).name
    known = tensor.numel() > 0 and not tensor.is_meta
    if known and bool((tensor == tensor.reshape(-1)[0]).all()):
        value = tensor.reshape(-1)[0].item()
        if tensor.dtype.is_floating_point or value >= 0:
            return InputSpec(shape=shape, dtype=dtype, kind="const", value=float(value))
    if tensor.dtype.is_floating_point:
        return InputSpec(shape=shape, dtype=dtype, kind="normal")
    high = int(tensor.max()) + 1 if known else 2
    return InputSpec(shape=shape, dtype=dtype, kind="randint", high=max(high, 1))
