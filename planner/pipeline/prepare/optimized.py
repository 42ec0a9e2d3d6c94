"""The graph that a target runs: the file after ONNX Runtime's optimizers, placed and sized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from planner.errors import ModelError
from planner.lower.plain_pools import with_plain_pools
from planner.onnxio.load import ValueType
from planner.onnxio.names import name_nodes
from planner.pipeline.prepare.sizing import Sizes
from planner.pipeline.target.everywhere import check_everywhere
from planner.pipeline.target.holding import held
from planner.pipeline.target.layout import check_layout, is_planned_blocked, layout_notes
from planner.pipeline.target.placing import assumed, is_assumed, placed, typed
from planner.runtime.optimizers.blocked import Layout, blocked_nodes, layout_of
from planner.runtime.optimizers.normalize import (
    MAX_PASSES,
    Normalized,
    Written,
    added_nodes,
    fused_beside,
    is_of_large_files,
)
from planner.runtime.options import Level
from planner.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """The target's graph, before planner changes it.

    Attributes:
        found: the graph, placed. `types` has the types of its values.
        level: of the sessions that run it: "all", ONNX Runtime's default, or "disabled".
        layout: images that a session with default options would store in blocks of channels.
        notes: remarks for reports, one sentence each.
    """

    found: Normalized
    types: Mapping[str, ValueType]
    level: Level
    layout: Layout
    notes: tuple[str, ...]


def optimized(
    kinds: Sizes,
    target: Target,
    *,
    to_rewrite: bool,
    progress: Callable[[str], None],
    written: Written | None,
    confirmed: Normalized | None = None,
) -> Optimized:
    """Optimize a model with ONNX Runtime as a session with default options does, if requested.

    Args:
        to_rewrite: False if the model is only analysed; one pass of the optimizers suffices then.
        written: the optimizers' result for the file, if some session has written it.
        confirmed: the optimizers' final result for the target, if known (`Normalized.confirmed`).

    Raises:
        ModelError: ONNX Runtime cannot load the model, or lays it out in a way that cannot be planned.
    """
    loaded, request = kinds.loaded, kinds.request
    by_runtime = request.ort_optimize and not is_assumed(target)
    passes = MAX_PASSES if to_rewrite else 1
    level: Level = "all" if by_runtime else "disabled"
    job = _Job(kinds=kinds, target=target, passes=passes, progress=progress)
    if confirmed is None:
        found, types, said = job.graph_of(level, written)
    else:
        found, types, said = *job.settled(confirmed, level), []
    layout = Layout()
    if by_runtime and not target.own_memory:
        found, types, layout = job.laid_out(found, types)
    if target.everywhere:
        placement, said = check_everywhere(found.model, types)
        found = replace(found, placement=placement)
    notes = [*said, *layout_notes(layout, target), *kinds.notes()]
    if not by_runtime:
        notes.append(
            "planned on the graph as it is, for sessions of the level ORT_DISABLE_ALL: at other "
            "levels ONNX Runtime's optimizers may fuse or fold planned nodes"
        )
    elif is_of_large_files(loaded):
        notes.append(
            "initializers in files are not loaded for planning: they are treated as graph "
            "inputs, so no session folds their nodes, and the rewritten model lists them after "
            "its inputs (`get_inputs()` does not change)"
        )
    return Optimized(found=found, types=types, level=level, layout=layout, notes=tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    kinds: Sizes
    target: Target
    passes: int
    progress: Callable[[str], None]

    def graph_of(
        self, level: Level, written: Written | None
    ) -> tuple[Normalized, dict[str, ValueType], list[str]]:
        """Return the graph that the target runs, placed; the types of its values; and notes."""
        kinds, target, loaded = self.kinds, self.target, self.kinds.loaded
        ort_optimize = level != "disabled"
        if is_assumed(target):
            self.progress(f"placing the graph for {target.title}")
            plain = Normalized(model=loaded.model, placement=None)
            types = kinds.settled(plain, level, may_run=False)
            found, said = assumed(loaded, target, types)
            return found, typed(found.model, types), [*said]
        self.progress(f"letting ONNX Runtime optimize the graph for {target.title}")
        try:
            found, said = placed(loaded, target, level=level, passes=self.passes, written=written)
        except ModelError:
            if ort_optimize or target.own_memory:
                raise
            found = Normalized(model=loaded.model, placement=None)
            said = (
                "ONNX Runtime on this machine cannot load the model: planned on the graph of "
                "the file",
            )
            name_nodes(found.model)
        found, types = self.settled(found, level)
        return found, types, [*said]

    def laid_out(
        self, found: Normalized, types: dict[str, ValueType]
    ) -> tuple[Normalized, dict[str, ValueType], Layout]:
        """Return the graph with its images in the planned layout, in blocks or plain.

        See `planner.pipeline.target.layout`.

        Args:
            found: the graph after level ALL; `types` are those of its values.
        """
        kinds, target, loaded = self.kinds, self.target, self.kinds.loaded
        session = found.first or found.model
        is_any = target.everywhere
        if not is_any and not blocked_nodes(session, loaded.model):
            return found, types, Layout()
        plain, plain_types, _ = self.graph_of("extended", None)
        layout = layout_of(loaded.model, plain.model, session)
        check_layout(layout, target)
        if is_planned_blocked(layout, target):
            return found, types, layout
        if layout.nodes:
            model, plain_types = with_plain_pools(plain.model, plain_types, {*layout.nodes})
            plain = replace(plain, model=model)
            if layout.has_more and not is_any and not loaded.has_external_data:
                plain = fused_beside(loaded, model)
                plain_types = kinds.of(plain.model)
        if is_any and not layout.has_more and not layout.nodes:
            return plain, plain_types, layout
        first = replace(plain, first=session, executed=found.executed)
        return first, plain_types, layout

    def settled(self, found: Normalized, level: Level) -> tuple[Normalized, dict[str, ValueType]]:
        """Choose the optimizers' pass to plan on; return its graph and the types of its values."""
        kinds, loaded = self.kinds, self.kinds.loaded
        may_run = not self.target.own_memory
        types = kinds.settled(found, level, may_run=may_run)
        # later passes that add no nodes do not change the numbers
        if level == "disabled" or found.first is None or not added_nodes(found.first, found.model):
            return found, types
        first = replace(found, model=found.first)
        first_types = kinds.settled(first, level, may_run=may_run)
        if held(loaded, found.first, first_types):
            return replace(first, first=None), first_types
        return found, types
