"""The stages before planning: load, let ONNX Runtime optimize, size, build the graph, cost it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from planner.cost.hardware import Hardware, load_hardware
from planner.cost.model import durations_of_changed
from planner.errors import ModelError, UsageError
from planner.exactness import Numbers
from planner.formulate import Formulation, OpCosts, Room, formulate
from planner.graph.build import build_graph
from planner.graph.model import OpId, Placement, TrainingGraph
from planner.graph.reasons import WhyClosed
from planner.graph.schedule import default_order
from planner.halving import CastSaved
from planner.lower.plain_pools import with_plain_pools
from planner.lower.regions import Region
from planner.lower.unfold import unfold
from planner.onnxio.bodies import has_bodies
from planner.onnxio.load import (
    LoadedModel,
    ValueType,
    load_model,
    value_types,
)
from planner.onnxio.names import name_nodes
from planner.pipeline.prepare.baseline import Baseline
from planner.pipeline.prepare.costing import Costing
from planner.pipeline.prepare.original import as_written, original_orders, with_draws_in_order
from planner.pipeline.prepare.sizing import Sizes
from planner.pipeline.prepare.timelines import workspace_of
from planner.pipeline.target.everywhere import check_everywhere
from planner.pipeline.target.holding import held
from planner.pipeline.target.layout import (
    check_layout,
    is_kept_plain,
    is_planned_blocked,
    layout_notes,
)
from planner.pipeline.target.placing import assumed, is_assumed, placed, typed
from planner.pipeline.target.targeting import check_place, check_target, fit_target
from planner.request import Request
from planner.runtime.build import check_build, is_training_build, why_no_copies
from planner.runtime.memory.within import with_bodies
from planner.runtime.optimizers.blocked import (
    Layout,
    block_channels,
    holds_blocked_weights,
    layout_of,
)
from planner.runtime.optimizers.normalize import (
    MAX_PASSES,
    Normalized,
    Written,
    added_nodes,
    is_of_large_files,
)
from planner.runtime.optimizers.shapes import runtime_types, unsized_values
from planner.runtime.options import Level
from planner.targets import ANY, Target, target_named
from planner.units import format_bytes

Progress = Callable[[str], None]

BOUND_SIZES = "sizes, plan and budget hold for"


def silent(_message: str) -> None:
    """Progress for callers that want none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything about the original model that planning needs.

    Attributes:
        request: what was asked for.
        baseline: the original, as ONNX Runtime runs it.
        model: what the plan is made for and written into: `loaded.model`, or what ONNX Runtime's
            optimizers make of it, with folded constants as nodes again.
        types: element type and static shape of every value of `model`.
        graph, order: of `model`, and its default order, random numbers drawn as in the original's.
        target: what the model is planned for; `placement` says where its nodes run there, and is None
            where there is one memory.
        renamed: ONNX Runtime's own copies in the baseline's graph, by what a session of the file
            calls them.
        workspace_bytes: by OpId: what its kernel takes besides its outputs while it runs.
        duration_us: by OpId. `cost_source` says where they come from.
        pin_us: what a node that pins the order takes; 0 where nobody measured it.
        level: of ONNX Runtime's optimizations that made the graph: "extended"; "all" where a session lays
            it out in blocks of channels; "disabled" for the graph as it is.
        block_channels: channels in a block of the layout that weights of `model` are in (NCHWc); 0 where
            none are.
        bounds: of values whose size depends on data, by name; inner_bytes: what the bodies of nodes are
            taken to hold where that does; shown: names of those of both that one run showed.
        resident: names of inputs, initializers and outputs that live on the host.
        halved: names of tensors that are stored in half from forward to backward, `cast_saved` as which.
        numbers: how close the numbers of `model` are to the original's.
        split: regions that run in chunks, those of one rewriting together.
        why_no_swaps: why ONNX Runtime here cannot copy to the host; None where it can.
    """

    request: Request
    loaded: LoadedModel
    baseline: Baseline
    model: ir.Model
    types: Mapping[str, ValueType]
    graph: TrainingGraph
    order: tuple[OpId, ...]
    hardware: Hardware
    target: Target
    placement: Placement | None
    renamed: Mapping[str, str]
    workspace_bytes: tuple[int, ...]
    duration_us: tuple[float, ...]
    cost_source: str
    level: Level
    pin_us: float = 0.0
    why_no_swaps: WhyClosed | None = None
    block_channels: int = 0
    bounds: Mapping[str, ValueType] = field(default_factory=dict)
    inner_bytes: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    resident: tuple[str, ...] = ()
    halved: tuple[str, ...] = ()
    cast_saved: CastSaved = "none"
    numbers: Numbers = "exact"
    split: tuple[tuple[Region, ...], ...] = ()
    _formulated: dict[int, Formulation] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def formulated(self, granularity: int = 1) -> Formulation:
        """The problem in `order`, with no limits and nothing but recompute allowed; made once.

        Args:
            granularity: as `Room` has it.
        """
        if granularity not in self._formulated:
            room = Room(granularity=granularity)
            found = formulate(self.graph, self.order, self.costs, room=room)
            self._formulated[granularity] = found
        return self._formulated[granularity]

    @property
    def ort_optimized(self) -> bool:
        """Whether the graph is as ONNX Runtime's optimizers leave it."""
        return self.level != "disabled"

    @property
    def costs(self) -> OpCosts:
        """Time and workspace of the operations of `graph`."""
        return OpCosts(duration_us=self.duration_us, workspace_bytes=self.workspace_bytes)


def prepare(
    request: Request,
    *,
    progress: Progress = silent,
    to_rewrite: bool = True,
    on_loaded: Callable[[LoadedModel], Written | None] | None = None,
) -> Prepared:
    """Run the stages; raises what they raise.

    Args:
        to_rewrite: False where the model is only looked at.
        on_loaded: given the checked file, before anything is made of it; gives what the optimizers make
            of it, where some session writes that anyway.
    """
    path, target = request.model, target_named(request.device)
    if request.costs.calibrate == "always" and target.own_memory:
        raise UsageError(
            f"--calibrate measures the CPU; for {target.title} give --profile FILE, which ONNX Runtime "
            "writes with SessionOptions.enable_profiling"
        )
    hardware = load_hardware(request.costs.hardware)
    progress("loading")
    loaded = load_model(path, dims=request.dims)
    check_build(loaded.model)
    check_target(loaded.model, path, target)
    check_place(loaded.model, target)
    written = None if on_loaded is None else on_loaded(loaded)
    target = fit_target(target, loaded.model)
    ort_optimize = request.ort_optimize and not is_assumed(target)
    passes = MAX_PASSES if to_rewrite else 1
    kinds = Sizes(loaded, request)
    level: Level = "extended" if ort_optimize else "disabled"
    found, types, notes = _graph_for(kinds, target, level, passes, progress, written)
    layout = Layout()
    if ort_optimize and not target.own_memory:
        layout = layout_of(loaded, found.model)
        check_layout(layout, target)
        if is_planned_blocked(layout, target):
            level = "all"
            found, types, notes = _graph_for(kinds, target, level, passes, progress)
    model, placement = found.model, found.placement
    notes += [*layout_notes(layout, target), *kinds.notes()]
    if not ort_optimize:
        notes.append(
            "planned on the graph as it is, for sessions of the level ORT_DISABLE_ALL: at others ONNX "
            "Runtime's optimizers may fuse or fold planned nodes"
        )
    elif is_of_large_files(loaded):
        notes.append(
            "initializers in files are not loaded for planning: they are taken for graph inputs, whose "
            "nodes no session folds, and the rewritten model lists them so, behind its inputs "
            "(`get_inputs()` stays as it is)"
        )
    graph = typed_graph(model, types, placement=placement)
    if not graph.operations:
        raise ModelError(
            f"{path} has nothing to plan: ONNX Runtime folds all of its nodes into constants"
        )
    original = graph
    if found.first is not None:
        original = typed_graph(found.first, kinds.of(found.first))
    progress(f"{len(original.operations)} operations")
    order, *other_orders = original_orders(original, loaded)
    if level == "all":  # what is made for the layout has its place in no rule
        order, *other_orders = as_written(original, found.executed), order, *other_orders
    costed = Costing(
        request=request,
        loaded=loaded,
        hardware=hardware,
        target=target,
        graph=original,
        order=order,
        optimized=found.first or found.model,
        level=level,
        progress=progress,
    ).costed()
    hardware = costed.hardware
    durations = original_us = costed.duration_us
    if is_kept_plain(layout, target):
        model, types = with_plain_pools(model, types, {*layout.nodes})
        graph = typed_graph(model, types, placement=placement)
    if graph is not original:
        durations = durations_of_changed(graph, original, original_us, hardware)
    if ort_optimize and target.unfolds:
        stay = [original.tensors[t].name for t in original.inputs if original.tensors[t].on_host]
        mine = set(loaded.model.graph.initializers)
        is_open = bool(loaded.dims or kinds.bounds) or any(has_bodies(n) for n in model.graph)
        unfolded = unfold(model, types, mine, target=target, on_host=stay, is_open=is_open)
        if unfolded.names:
            model, types = unfolded.model, unfolded.types
            if placement is not None:
                placement = replace(placement, on_cpu=placement.on_cpu | unfolded.on_cpu)
            graph = typed_graph(model, types, placement=placement)
            durations = durations_of_changed(graph, original, original_us, hardware)
            notes.append(
                f"{len(unfolded.names)} constant(s) that ONNX Runtime's folding would keep on the "
                f"device throughout ({format_bytes(unfolded.bytes)}) are made when they are needed"
            )
    if loaded.dims:
        bound = ", ".join(f"{k} = {v}" for k, v in sorted(loaded.dims.items()))
        notes.append(f"{BOUND_SIZES} {bound}")
    if target.own_memory:
        notes.append(
            f"temporary workspace of {target.title}'s kernels is not known: set a --reserve for it"
        )
    no_swaps = why_no_copies(target.name)
    if no_swaps is not None:
        notes.append(f"{no_swaps.sentence}: plans use order and recompute only")
    in_file = order if graph.operations is original.operations else default_order(graph)
    graph = replace(graph, assumptions=(*graph.assumptions, *notes, *costed.assumptions))
    return Prepared(
        request=request,
        loaded=loaded,
        baseline=Baseline(
            graph=original,
            order=order,
            others=tuple(other_orders),
            duration_us=original_us,
            target=target,
        ),
        model=model,
        types=types,
        graph=graph,
        order=with_draws_in_order(graph, in_file, original, order),
        hardware=hardware,
        target=target,
        placement=placement,
        renamed=found.renamed,
        workspace_bytes=workspace_of(graph, target),
        duration_us=durations,
        cost_source=costed.source,
        pin_us=costed.pin_us,
        level=level,
        bounds=kinds.bounds,
        inner_bytes=kinds.inner,
        shown=tuple(kinds.shown),
        block_channels=block_channels() if holds_blocked_weights(model) else 0,
        why_no_swaps=no_swaps,
    )


def analysed_graph(
    model: ir.Model,
    dims: Mapping[str, int],
    *,
    known: Mapping[str, ValueType] | None = None,
    placement: Placement | None = None,
) -> TrainingGraph:
    """The training graph of `model` with `dims` bound.

    Args:
        placement: where its nodes run; None where there is one memory.
    """
    types = value_types(model, dims, known=known, fallback=runtime_types)
    return typed_graph(model, types, placement=placement)


def typed_graph(
    model: ir.Model,
    types: Mapping[str, ValueType],
    *,
    placement: Placement | None = None,
    unsized: Set[str] | None = None,
) -> TrainingGraph:
    """The training graph of `model`, whose values are of these types.

    Args:
        placement: as for `analysed_graph`.
        unsized: values whose shape ONNX Runtime learns only as it runs; asked of it if not given.
    """
    if unsized is None:
        unsized = unsized_values(model, types)
    graph = build_graph(model, types, unsized=unsized, placement=placement)
    return _as_run_here(with_bodies(graph, model, types))


def _graph_for(
    kinds: Sizes,
    target: Target,
    level: Level,
    passes: int,
    progress: Progress,
    written: Written | None = None,
) -> tuple[Normalized, dict[str, ValueType], list[str]]:
    """The graph that the target runs, placed; the types of its values; and what to say of that."""
    loaded, ort_optimize = kinds.loaded, level != "disabled"
    if is_assumed(target):
        progress(f"placing the graph for {target.title}")
        plain = Normalized(model=loaded.model, placement=None)
        types = kinds.settled(plain, level, may_run=False)
        found, said = assumed(loaded, target, types)
        return found, typed(found.model, types), [*said]
    progress(f"letting ONNX Runtime optimize the graph for {target.title}")
    try:
        found, said = placed(loaded, target, level=level, passes=passes, written=written)
    except ModelError:
        if ort_optimize or target.own_memory:
            raise
        found = Normalized(model=loaded.model, placement=None)
        said = ("ONNX Runtime here cannot load the model: planned on the graph of the file",)
        name_nodes(found.model)
    types = kinds.settled(found, level, may_run=not target.own_memory)
    # later passes that make no nodes change no numbers
    if ort_optimize and found.first is not None and added_nodes(found.first, found.model):
        first_types = kinds.settled(
            replace(found, model=found.first), level, may_run=not target.own_memory
        )
        if held(loaded, found.first, first_types):
            found, types = replace(found, model=found.first, first=None), first_types
    if target.name == ANY.name:
        placement, said = check_everywhere(found.model, types)
        found = replace(found, placement=placement)
    return found, types, [*said]


def _as_run_here(graph: TrainingGraph) -> TrainingGraph:
    """With what depends on the installed build of ONNX Runtime."""
    return replace(graph, shapes_follow=is_training_build())
