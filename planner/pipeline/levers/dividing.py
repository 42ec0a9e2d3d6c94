"""A step as several runs on parts of its batch: the model of one run, planned like any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import ModelError, UsageError
from planner.graph.liveness import timeline
from planner.graph.schedule import default_order
from planner.micro.batch import Batch, batch_of, check_runs, part
from planner.micro.draws import random_nodes
from planner.micro.emit import emit, has_accumulators
from planner.micro.flow import Flow, flow_of
from planner.micro.kinds import MEAN, SUM, Kinds
from planner.micro.shares import kinds_by_rules
from planner.micro.sink import values_to_add_up
from planner.onnxio.load import LoadedModel, value_types
from planner.onnxio.names import name_nodes
from planner.onnxio.save import write_model
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.graphs import analysed_graph
from planner.pipeline.prepare.prepared import Progress
from planner.plan.planfile import MicroBatches
from planner.request import Request
from planner.runtime.judge.micro_probe import SAMPLES, Probe
from planner.runtime.optimizers.shapes import runtime_types
from planner.runtime.timing import available_bytes
from planner.units import counted, format_bytes, some_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisible:
    """A model whose step can be several runs, and how its values add up.

    Attributes:
        kinds: in the form that `planner.micro.emit.emit` takes.
        notes: remarks that hold for any number of runs.
    """

    loaded: LoadedModel
    batch: Batch
    flow: Flow
    kinds: Kinds
    notes: tuple[str, ...] = ()

    def emitted(self, runs: int) -> tuple[ir.Model, MicroBatches]:
        """Build the model of one of `runs` runs; its times are not known yet."""
        return emit(self.loaded.model, self.flow, self.kinds.of, runs)


def divisible(loaded: LoadedModel, request: Request, progress: Progress) -> Divisible:
    """Find out how the values of a model add up over parts of its batch.

    It is measured on a few samples, or derived from the operators if a run on them does not fit
    into free memory.

    Raises:
        UsageError, ModelError: some value does not add up, or it is unknown whether it does.
    """
    if loaded.has_external_data:
        raise UsageError(
            f"--micro-batch: initializers of {loaded.path} are stored in files beside it, which "
            "micro-batches do not support; make parameters graph inputs in the export, or save "
            "the model in one file"
        )
    progress("following the samples of a batch through the graph")
    flow = _flow(loaded)
    batch = flow.batch
    names = values_to_add_up(loaded.model, flow)
    if not names:
        raise ModelError(
            f"{loaded.path} sums nothing up over its batch {batch.dim!r}: it has no gradients that the "
            f"runs of micro-batches could add; run it with {batch.dim} bound to a smaller size instead"
        )
    untried = _why_not_tried(loaded, batch)
    if untried is None:
        progress("running a few samples to see how totals add up")
        kinds = _probe(loaded, flow, request).kinds(names)
    else:
        progress("deriving from the operators how totals add up")
        kinds = kinds_by_rules(loaded.model, flow, names)
    notes = (*([untried] if untried else []), *_notes(loaded, flow, kinds))
    return Divisible(loaded=loaded, batch=batch, flow=flow, kinds=kinds, notes=notes)


def _why_not_tried(loaded: LoadedModel, batch: Batch) -> str | None:
    """Return a note on why the model is not run on a few samples; None if it is."""
    free = available_bytes()
    if free is None:
        return None
    graph = analysed_graph(loaded.model, {**loaded.dims, batch.dim: SAMPLES})
    peak = timeline(graph, default_order(graph)).peak_bytes
    if POLICY.times_peak * peak <= free:
        return None
    return (
        "micro-batches: planner derived from the operators how totals add up, and did not "
        f"measure it: a run on {SAMPLES} samples holds {format_bytes(peak)} and more, and "
        f"{format_bytes(free)} are free here"
    )


def _probe(loaded: LoadedModel, flow: Flow, request: Request) -> Probe:
    return Probe(
        model=loaded.model,
        folder=loaded.path.parent,
        flow=flow,
        feeds=_few_samples(loaded, flow.batch, request),
        seed=request.seed,
    )


def as_planned(loaded: LoadedModel, batches: MicroBatches) -> Divisible:
    """Rebuild the division of a model from a plan, without running it.

    Raises:
        ModelError: that is of another model.
    """
    flow = _flow(loaded)
    of: dict[str, str] = dict.fromkeys(batches.per_run, SUM)
    for a in batches.accumulators:
        of[a.output] = a.count if a.scale is None else SUM if a.scale == 1.0 else MEAN
    of.update(dict.fromkeys(batches.scaled, MEAN))
    made = {str(v.name) for node in loaded.model.graph for v in node.outputs}
    known = {*flow.samples, *flow.axis}
    strange = [n for n, kind in of.items() if n not in made & known or kind not in (SUM, MEAN, *of)]
    if strange or flow.batch.dim != batches.dim:
        name = strange[0] if strange else batches.dim
        raise ModelError(
            f"the plan adds {name!r} up over micro-batches, and this model does not: it was "
            "edited by hand; make the plan again"
        )
    return Divisible(loaded=loaded, batch=flow.batch, flow=flow, kinds=Kinds(of=of))


def _flow(loaded: LoadedModel) -> Flow:
    batch = batch_of(loaded)
    name_nodes(loaded.model)
    types, other = (
        value_types(loaded.model, {**loaded.dims, batch.dim: size}, fallback=runtime_types)
        for size in (batch.size, 2 * batch.size)
    )
    return flow_of(loaded.model, batch, types, other)


def _few_samples(
    loaded: LoadedModel, batch: Batch, request: Request
) -> Mapping[str, npt.NDArray[Any]]:
    from planner.runtime.feeds.inputs import make_inputs

    path, seed = loaded.path, request.seed
    if request.inputs is not None and batch.size >= SAMPLES:
        feeds, _ = make_inputs(path, seed, loaded.dims, request.inputs)
        return part(feeds, batch.inputs, 0, SAMPLES)
    return make_inputs(path, seed, {**loaded.dims, batch.dim: SAMPLES}, None)[0]


def _notes(loaded: LoadedModel, flow: Flow, kinds: Kinds) -> list[str]:
    """Return notes on assumptions and on differences from one run, for any number of runs."""
    model, found = loaded.model, []
    if kinds.assumed:
        found.append(
            f"micro-batches: {some_of([repr(name) for name in kinds.assumed], _SHOWN)} were 0 on the "
            "samples that ran: planner assumes that they add up as most other totals do"
        )
    if any(kind not in (SUM, MEAN) for kind in kinds.of.values()):
        found.append(
            "micro-batches: means over targets that are not ignored are weighted with the number "
            "of these targets, which may differ from run to run (a step all of whose targets are "
            "ignored has gradients of 0 in place of 0/0)"
        )
    for node in model.graph:
        if "ignore_index" in node.attributes:
            found.append(
                f"micro-batches: node {node.name!r} ({node.op_type}) averages over targets that "
                "are not ignored, in each run over its own: the totals are those of the whole "
                "batch only if each run has equally many"
            )
            break
    random = random_nodes(model)
    if random:
        found.append(
            f"micro-batches: {counted(len(random), 'node')}, first {random[0].name!r} "
            f"({random[0].op_type}), draw random numbers: the runs draw other numbers than one "
            "run on the whole batch, equally good but not the same; planner switched them off to "
            "see how totals add up"
        )
    if has_accumulators(model):
        found.append(
            "micro-batches: the model's own nodes add the gradients up, and lazy_reset_grad() "
            "begins a step; each run returns the loss of its own samples"
        )
    return found


# -- the model of one run -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """The model of one run, in its own file.

    Attributes:
        request: for that file, its batch bound to a part.
        batches: without times yet.
    """

    request: Request
    batches: MicroBatches


def run_model(divided: Divisible, request: Request, runs: int, folder: Path) -> RunModel:
    """Write the model of one of `runs` runs, with the recipes of its inputs.

    Args:
        request: for the original.
        folder: an empty folder.

    Raises:
        UsageError: the batch is not divisible by `runs`.
    """
    loaded, batch = divided.loaded, divided.batch
    check_runs(runs, batch)
    model, batches = divided.emitted(runs)
    path = folder / loaded.path.name
    write_model(model, path)
    _write_recipes(divided, batches, path)
    return RunModel(
        request=replace(
            request,
            model=path,
            dims={**loaded.dims, batch.dim: batch.size // runs},
            inputs=_write_inputs(divided, batches, request, path),
            levers=replace(request.levers, micro_batch="1"),
        ),
        batches=batches,
    )


def _write_recipes(divided: Divisible, batches: MicroBatches, path: Path) -> None:
    """Write the sidecar of the original's input recipes, with zeros for the totals."""
    source = divided.loaded.path.with_name(f"{divided.loaded.path.stem}.inputs.json")
    if not source.is_file():
        return
    target = path.with_name(source.name)
    shutil.copyfile(source, target)
    try:
        recipes = json.loads(target.read_text(encoding="utf-8"))
    except ValueError:
        return  # reading the file reports the fault
    if not isinstance(recipes, dict):
        return
    for accumulator in batches.accumulators:
        kind = divided.flow.types[accumulator.output]
        recipes[accumulator.input] = {
            "shape": list(kind.shape),
            "dtype": str(kind.dtype.numpy()),
            "kind": "const",
            "value": 0,
        }
    target.write_text(json.dumps(recipes), encoding="utf-8")


def _write_inputs(
    divided: Divisible, batches: MicroBatches, request: Request, path: Path
) -> Path | None:
    """Write the first part of the user's arrays, with zeros for the totals."""
    if request.inputs is None:
        return None
    from planner.runtime.feeds.inputs import make_inputs

    loaded, batch = divided.loaded, divided.batch
    feeds, _ = make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)
    arrays = part(feeds, batch.inputs, 0, batch.size // batches.runs)
    for accumulator in batches.accumulators:
        kind = divided.flow.types[accumulator.output]
        arrays[accumulator.input] = np.zeros(kind.shape, kind.dtype.numpy())
    target = path.with_name(request.inputs.name)
    np.savez(target, **arrays)  # pyright: ignore[reportArgumentType]: names are those of the arrays
    return target


def step_notes(divided: Divisible, batches: MicroBatches) -> tuple[str, ...]:
    """Return the assumptions of a plan with micro-batches."""
    size = batches.batch // batches.runs
    text = (
        f"micro-batches: a step is {batches.runs} runs of {size} samples each in place of one of "
        f"{batches.batch} ({batches.dim})"
    )
    if batches.accumulators:
        total = sum(a.bytes for a in batches.accumulators)
        text += (
            f"; {len(batches.accumulators)} totals ({format_bytes(total)}) are fed back from run "
            "to run, starting at zero, and the outputs of the last run are the step's (each run "
            "computes what follows from totals, such as the update, and only the last run's "
            "counts)"
        )
    notes = [text]
    if batches.per_run:
        first, count = next(iter(batches.per_run)), len(batches.per_run)
        notes.append(
            f"micro-batches: {counted(count, 'output')}, first {first!r}, hold only the samples of their "
            "run: join them along the batch"
        )
    return (*notes, *divided.notes)
