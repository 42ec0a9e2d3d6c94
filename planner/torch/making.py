"""Build a step: export the module, plan its graph within the budget or reuse a kept plan, open it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import torch
from torch import nn

from planner.errors import (
    InfeasibleBudgetError,
    MemoryLimitError,
    ModelError,
    PlannerError,
    TimeLimitError,
    UsageError,
    VerificationError,
)
from planner.export.arguments import Given
from planner.export.dims import OpenDims
from planner.export.trace.step import Loss, TrainingStep
from planner.export.training import ExportedGraph, export_training_graph, step_of
from planner.files.temporary import temporary_folder
from planner.running.kept import planned
from planner.running.outcome import Job, Status
from planner.torch.binding import Entry, TensorSession
from planner.torch.stepping import ExportedStep, Step
from planner.torch.watching import Granted, Named

_ERRORS = {
    error.exit_code: error
    for error in (
        UsageError,
        ModelError,
        InfeasibleBudgetError,
        VerificationError,
        TimeLimitError,
        MemoryLimitError,
    )
}


def step(
    module: nn.Module,
    example_inputs: Given,
    loss_fn: Loss | None = None,
    *,
    targets: Given = (),
    budget: str,
    dynamic_batch: bool = False,
    dynamic: OpenDims | None = None,
    autocast: torch.dtype | None = None,
    check: bool = True,
    verify: bool = True,
    time_limit_s: float = 60.0,
) -> Step:
    """Return a module that computes the loss of a training step within a memory budget.

    The module is exported (`planner.export_training_graph`). A separate process plans the graph, as
    `planner run` does, and the plan is kept under the graph's digest for the next start. Call the result
    with inputs and targets like the examples; `backward` on the loss puts gradients into the module's own
    parameters. Where the loss function returns other tensors beside the loss, a call returns `(loss,
    {name: tensor})`.

    Args:
        module, example_inputs, loss_fn, targets, dynamic_batch, dynamic, autocast, check: as for
            `planner.export_training_graph`. Everything is on the CPU.
        budget: as for `planner.optimize`: "60%" of the peak, "16GB". It applies at the examples' sizes.
        verify: compare the rewritten graph with the original when the plan is made.
        time_limit_s: time limit of the search for a plan, in seconds.

    Raises:
        ExportError: the step cannot be exported; see `planner.export.errors`.
        InfeasibleBudgetError: no plan was found within the budget.
        UsageError, ModelError: see `planner.errors`.
    """
    _check_place(module)
    graph = export_training_graph(
        module,
        example_inputs,
        loss_fn,
        targets=targets,
        dynamic_batch=dynamic_batch,
        dynamic=dynamic,
        autocast=autocast,
        cast_for_cpu=True,
        random="inputs",
        check=check,
    )
    traced, _ = step_of(module, example_inputs, loss_fn, targets, autocast)
    path = _planned(graph, budget, time_limit_s=time_limit_s, verify=verify)
    made = _made(graph, traced, path)
    del graph, traced
    _give_back()
    return Step(made, lambda inputs, targets: step_of(module, inputs, loss_fn, targets, autocast))


def _check_place(module: nn.Module) -> None:
    """Raise UsageError where a parameter or buffer is not in the host's memory."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type != "cpu":
            raise UsageError(f"{name!r} is on {tensor.device}; planner.torch.step runs on the CPU")


def _give_back() -> None:
    """Return the memory of the trace to the system, where the C library can."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def _sizes(graph: ExportedGraph) -> Mapping[str, int]:
    """Return the sizes of the open dims in the examples."""
    found: dict[str, int] = {}
    for value in graph.model.graph.input:
        if value.name in graph.inputs:
            shape = graph.recipes[value.name].shape
            for dim, size in zip(Entry.of(value).dims, shape, strict=True):
                if isinstance(dim, str):
                    found[dim] = size
    return found


def _planned(graph: ExportedGraph, budget: str, *, time_limit_s: float, verify: bool) -> Path:
    """Plan the graph at the sizes of the examples, and return the path of the rewritten file, which
    outlives this process."""
    with temporary_folder() as folder:
        path = folder / "step.onnx"
        graph.save(path, sidecar=True)
        job = Job(
            model=str(path),
            folder="",
            budget=budget,
            dims=_sizes(graph),
            device="cpu",
            order="default",
            ort_optimize=True,
            time_limit_s=time_limit_s,
            verify=verify,
        )
        outcome = planned(job, lambda: None)
    if outcome.status is Status.REFUSED:
        raise _ERRORS.get(outcome.code, PlannerError)(outcome.reason)
    return Path(outcome.model)


def _made(graph: ExportedGraph, traced: TrainingStep, path: Path) -> ExportedStep:
    """Build the step that runs a graph's rewritten file."""
    module, proto = traced.module, graph.model.graph
    named = Named(module, graph.parameters)
    inputs = _entries(proto.input)
    stored = {name for name in graph.buffers if name not in inputs} | set(graph.decided)
    return ExportedStep(
        module=module,
        constants=traced.constants,
        session=TensorSession(path),
        path=str(path),
        inputs=inputs,
        outputs=_entries(proto.output),
        taken=graph.inputs,
        trained=graph.parameters,
        results=graph.results,
        # without their dims, which keep the whole trace alive
        draws={draw.name: replace(draw, dims=()) for draw in graph.draws},
        planned_sizes=_sizes(graph),
        named=named,
        granted=Granted(traced, named.names - stored),
    )


def _entries(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Entry]:
    return {value.name: Entry.of(value) for value in values}
