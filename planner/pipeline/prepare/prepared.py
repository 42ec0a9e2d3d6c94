"""The stages before planning: load, optimize with ONNX Runtime, size, build the graph, cost it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from planner.choices import FuseMode, Numbers
from planner.cost.hardware import Hardware, load_hardware
from planner.cost.measured import Cache
from planner.errors import ModelError, UsageError
from planner.formulate import Formulation, OpCosts, formulate
from planner.graph.model import OpId, Placement, TrainingGraph
from planner.graph.reasons import WhyClosed
from planner.graph.schedule import default_order
from planner.lower.chunks.regions import Region
from planner.onnxio.load import (
    LoadedModel,
    ValueType,
    load_model,
)
from planner.pipeline.prepare.costing import Costed, Costing, can_be_timed
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.optimized import Optimized, optimized
from planner.pipeline.prepare.original import as_written, original_orders, with_draws_in_order
from planner.pipeline.prepare.planned_graph import PlannedGraph, planned_graph
from planner.pipeline.prepare.sizing import Sizes
from planner.pipeline.prepare.timelines import Baseline, workspace_of
from planner.pipeline.target.targeting import check_place, check_target, fit_target
from planner.request import Request
from planner.runtime.build import check_build, why_no_copies
from planner.runtime.optimizers.blocked import (
    block_channels,
    holds_blocked_weights,
)
from planner.runtime.optimizers.normalize import Normalized, Written
from planner.runtime.options import Level
from planner.targets import Target, target_named, titles

Progress = Callable[[str], None]

BOUND_SIZES = "sizes, plan and budget hold for"


def silent(_message: str) -> None:
    """Ignore progress messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All facts about the original model that planning needs.

    Attributes:
        request: the caller's request.
        baseline: the original, as ONNX Runtime runs it.
        model: the model to plan and rewrite: `loaded.model`, or the optimizers' result, with folded
            constants as nodes again.
        types: element type and static shape of every value of `model`.
        graph, order: graph of `model`, and its default order, with random numbers drawn in the
            original's order.
        target: the target to plan for; `placement` gives the provider of each node there, None on a
            target with one memory.
        renamed: names of the copies that ONNX Runtime adds in the baseline's graph, by their names
            in a session of the file.
        workspace_bytes: by OpId, the bytes that its kernel takes beside its outputs while it runs.
        duration_us: by OpId. `cost_source` names their source.
        pin_us: time of a node that pins the order; 0 if not measured.
        cache: of the processor on which times were measured; None if they were not, or it is
            unknown.
        times_key: cache key of the measured times; empty if they are not cached.
        level: of the sessions that the plan is made for: "all", ONNX Runtime's default; "disabled"
            for the graph as it is.
        block_channels: channels in a block of the layout of `model`'s weights (NCHWc); 0 if none
            has that layout.
        bounds: of values whose size depends on data, by name; inner_bytes: bytes that nodes' bodies
            are assumed to hold if their sizes depend on data; shown: names in both whose figures
            come from a run.
        resident: names of inputs, initializers and outputs that live on the host.
        halved: names of tensors stored in half precision from forward to backward.
        numbers: how close the numbers of `model` are to the original's.
        split: regions that run in chunks, grouped by rewriting.
        fuse: how operations of `model` were fused; "none" if they were not. unfused: the first
            operations of the groups that were left as they are, since they are faster so.
        why_no_swaps: why ONNX Runtime here cannot copy to the host; None if it can.
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
    cache: Cache | None = None
    times_key: str = ""
    why_no_swaps: WhyClosed | None = None
    block_channels: int = 0
    bounds: Mapping[str, ValueType] = field(default_factory=dict)
    inner_bytes: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    resident: tuple[str, ...] = ()
    halved: tuple[str, ...] = ()
    numbers: Numbers = "exact"
    split: tuple[tuple[Region, ...], ...] = ()
    fuse: FuseMode = "none"
    unfused: frozenset[str] = frozenset()
    _formulated: dict[int, Formulation] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def noted(self, *texts: str) -> Prepared:
        """Return the same model with further assumptions."""
        graph = self.graph
        return replace(self, graph=replace(graph, assumptions=(*graph.assumptions, *texts)))

    def formulated(self, granularity: int = 1) -> Formulation:
        """Formulate the problem in `order`, without limits, with recompute alone; cached.

        Args:
            granularity: see `formulate`.
        """
        if granularity not in self._formulated:
            found = formulate(self.graph, self.order, self.costs, granularity=granularity)
            self._formulated[granularity] = found
        return self._formulated[granularity]

    @property
    def views_us(self) -> float:
        """The microseconds of nodes that no schedule names (`planner.formulate`).

        A step takes its schedule and these.
        """
        return sum(self.duration_us[op.id] for op in self.graph.operations if op.is_folded)

    @property
    def ort_optimized(self) -> bool:
        """Whether ONNX Runtime's optimizers have processed the graph."""
        return self.level != "disabled"

    @property
    def costs(self) -> OpCosts:
        """The time and workspace of the operations of `graph`."""
        return OpCosts(duration_us=self.duration_us, workspace_bytes=self.workspace_bytes)


def prepare(
    request: Request,
    *,
    progress: Progress = silent,
    to_rewrite: bool = True,
    on_loaded: Callable[[LoadedModel], Written | None] | None = None,
) -> Prepared:
    """Run the stages before planning; raise their errors.

    Args:
        to_rewrite: False if the model is only analysed.
        on_loaded: called with the checked file, before further stages; returns the optimizers'
            result for it, if some session writes it anyway.
    """
    target = target_named(request.device)
    _check_calibrate(request, target)
    hardware = load_hardware(request.costs.hardware)
    progress("loading")
    loaded = _loaded(request, target)
    written = None if on_loaded is None else on_loaded(loaded)
    target = fit_target(target, loaded.model)

    def analysed(confirmed: Normalized | None = None) -> tuple[Sizes, Optimized, _Graphs]:
        kinds = Sizes(loaded, request)
        if written is not None and confirmed is None:  # a session is being created beside
            kinds.infer_now()
        found = optimized(
            kinds,
            target,
            to_rewrite=to_rewrite,
            progress=progress,
            written=written,
            confirmed=confirmed,
        )
        return kinds, found, _graphs(found, kinds)

    kinds, found, graphs = analysed()
    if found.found.confirmed is not None and (later := found.found.confirmed()) is not None:
        kinds, found, graphs = analysed(later)
    _, original, (order, *_) = graphs
    progress(f"{len(original.operations)} operations")
    costed = Costing(
        request=request,
        loaded=loaded,
        hardware=hardware,
        target=target,
        graph=original,
        order=order,
        optimized=found.found.first or found.found.model,
        level=found.level,
        progress=progress,
    ).costed()
    return _prepared(found, graphs, kinds, target, costed)


_Graphs = tuple[PlannedGraph, TrainingGraph, tuple[tuple[OpId, ...], ...]]


def _prepared(
    found: Optimized, graphs: _Graphs, kinds: Sizes, target: Target, costed: Costed
) -> Prepared:
    """Apply planner's own changes to the model, and collect the result.

    Args:
        graphs: the result of `_graphs`.
        costed: the original's durations.
    """
    plain, original, (order, *others) = graphs
    loaded = kinds.loaded
    planned = planned_graph(found, plain, original, kinds, target)
    no_swaps = why_no_copies(target)
    graph = replace(
        planned.graph,
        assumptions=(
            *planned.graph.assumptions,
            *found.notes,
            *planned.notes,
            *_notes(loaded, target, no_swaps),
            *costed.assumptions,
        ),
    )
    in_file = order if graph.operations is original.operations else default_order(graph)
    return Prepared(
        request=kinds.request,
        loaded=loaded,
        baseline=Baseline(
            graph=original,
            order=order,
            others=tuple(others),
            duration_us=costed.duration_us,
            target=target,
        ),
        model=planned.model,
        types=planned.types,
        graph=graph,
        order=with_draws_in_order(graph, in_file, original, order),
        hardware=costed.hardware,
        target=target,
        placement=planned.placement,
        renamed=found.found.renamed,
        workspace_bytes=workspace_of(graph, target),
        duration_us=planned.durations_us(original, costed.duration_us, costed.hardware),
        cost_source=costed.source,
        pin_us=costed.pin_us,
        cache=costed.cache,
        times_key=costed.times_key,
        level=found.level,
        bounds=kinds.bounds,
        inner_bytes=kinds.inner,
        shown=tuple(kinds.shown),
        block_channels=block_channels() if holds_blocked_weights(planned.model) else 0,
        why_no_swaps=no_swaps,
    )


def _check_calibrate(request: Request, target: Target) -> None:
    if request.costs.calibrate == "always" and target.own_memory and not can_be_timed(target):
        timed = titles(lambda row: row.is_host or bool(row.waits))
        raise UsageError(
            f"--calibrate measures {timed}, on a machine that has it; for {target.title} give "
            "--profile FILE, which ONNX Runtime writes with SessionOptions.enable_profiling"
        )


def _loaded(request: Request, target: Target) -> LoadedModel:
    """Load and check the file, and check that the target can run it."""
    loaded = load_model(request.model, dims=request.dims)
    check_build(loaded.model)
    check_target(loaded.model, request.model, target)
    check_place(loaded.model, target)
    return loaded


def _graphs(found: Optimized, kinds: Sizes) -> _Graphs:
    """Return the target's graph, the graph of the file's own session, and orders of the latter."""
    plain = _plain(found, kinds.request)
    first = found.found.first
    original = plain.graph if first is None else typed_graph(first, kinds.of(first))
    return plain, original, _orders(original, found, kinds.loaded)


def _plain(found: Optimized, request: Request) -> PlannedGraph:
    """Return the graph that the target runs, without planner's changes."""
    model, placement = found.found.model, found.found.placement
    graph = typed_graph(model, found.types, placement=placement)
    if not graph.operations:
        raise ModelError(
            f"{request.model} has nothing to plan: ONNX Runtime folds all of its nodes into constants"
        )
    return PlannedGraph(model=model, types=found.types, graph=graph, placement=placement)


def _orders(
    original: TrainingGraph, found: Optimized, loaded: LoadedModel
) -> tuple[tuple[OpId, ...], ...]:
    """Return possible orders of the original, the likely one first."""
    orders = original_orders(original, loaded)
    if found.layout.nodes:  # no rule places the nodes that the layout adds
        return as_written(original, found.found.executed), *orders
    return tuple(orders)


def _notes(loaded: LoadedModel, target: Target, no_swaps: WhyClosed | None) -> Iterator[str]:
    """Yield the notes that hold for every plan with this target and these sizes."""
    if loaded.dims:
        bound = ", ".join(f"{k} = {v}" for k, v in sorted(loaded.dims.items()))
        yield f"{BOUND_SIZES} {bound}"
    if target.own_memory:
        yield f"temporary workspace of {target.title}'s kernels is not known: set a --reserve for it"
    if no_swaps is not None:
        yield f"{no_swaps.sentence}: plans use order and recompute only"
