"""The graph that a target runs: what ONNX Runtime's optimizers make of the file, placed and sized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from planner.errors import ModelError
from planner.onnxio.load import ValueType
from planner.onnxio.names import name_nodes
from planner.pipeline.prepare.sizing import Sizes
from planner.pipeline.target.everywhere import check_everywhere
from planner.pipeline.target.holding import held
from planner.pipeline.target.layout import check_layout, is_planned_blocked, layout_notes
from planner.pipeline.target.placing import assumed, is_assumed, placed, typed
from planner.runtime.optimizers.blocked import Layout, layout_of
from planner.runtime.optimizers.normalize import (
    MAX_PASSES,
    Normalized,
    Written,
    added_nodes,
    is_of_large_files,
)
from planner.runtime.options import Level
from planner.targets import ANY, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """What is planned before anything of planner's is done to it.

    Attributes:
        found: the graph, placed. `types` are those of its values.
        level: of the optimizations that made it.
        layout: images that a session of default options would store in blocks of channels.
        notes: what is to be said of it, one sentence each.
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
    """Let ONNX Runtime optimize a model, where that is wanted.

    Args:
        to_rewrite: False where the model is only looked at: one pass does.
        written: what the optimizers make of the file, where some session has written that.
        confirmed: what they leave for the target, where that is known (`Normalized.confirmed`).

    Raises:
        ModelError: ONNX Runtime cannot load the model, or lays it out in a way that cannot be planned.
    """
    loaded, request = kinds.loaded, kinds.request
    by_runtime = request.ort_optimize and not is_assumed(target)
    passes = MAX_PASSES if to_rewrite else 1
    level: Level = "extended" if by_runtime else "disabled"
    job = _Job(kinds=kinds, target=target, passes=passes, progress=progress)
    if confirmed is None:
        found, types, said = job.graph_of(level, written)
    else:
        found, types, said = *job.settled(confirmed, level), []
    layout = Layout()
    if by_runtime and not target.own_memory:
        layout = layout_of(loaded, found.model)
        check_layout(layout, target)
        if is_planned_blocked(layout, target):
            level = "all"
            found, types, said = job.graph_of(level, None)
    notes = [*said, *layout_notes(layout, target), *kinds.notes()]
    if not by_runtime:
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
        """The graph that the target runs, placed; the types of its values; and what to say of that."""
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
            said = ("ONNX Runtime here cannot load the model: planned on the graph of the file",)
            name_nodes(found.model)
        found, types = self.settled(found, level)
        if target.name == ANY.name:
            placement, said = check_everywhere(found.model, types)
            found = replace(found, placement=placement)
        return found, types, [*said]

    def settled(self, found: Normalized, level: Level) -> tuple[Normalized, dict[str, ValueType]]:
        """What is planned of what the optimizers leave, and the types of its values."""
        kinds, loaded = self.kinds, self.kinds.loaded
        may_run = not self.target.own_memory
        types = kinds.settled(found, level, may_run=may_run)
        # later passes that make no nodes change no numbers
        if level == "disabled" or found.first is None or not added_nodes(found.first, found.model):
            return found, types
        first = replace(found, model=found.first)
        first_types = kinds.settled(first, level, may_run=may_run)
        if held(loaded, found.first, first_types):
            return replace(first, first=None), first_types
        return found, types
