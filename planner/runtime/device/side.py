"""One of the two models of a verification on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from planner.graph.model import OpId, TrainingGraph
from planner.runtime.device.client import DeviceRun
from planner.runtime.options import Level
from planner.runtime.profile import NodeEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One model: its file, its graph as analysed, and the order in which it should run.

    Attributes:
        level: the level of optimizations at which its graph was analysed.
        renamed: the graph's names of nodes that have other names in a session.
    """

    path: Path
    graph: TrainingGraph
    order: tuple[OpId, ...]
    level: Level = "all"
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names, in order."""
        return tuple(self.graph.operations[op].name for op in self.order)

    def seen(self, run: DeviceRun) -> tuple[NodeEvent, ...]:
        """Return the events of a run, by the graph's names."""
        return tuple(replace(e, name=self.renamed.get(e.name, e.name)) for e in run.events)
