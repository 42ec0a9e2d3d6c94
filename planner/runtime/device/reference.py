"""The two models of a verification on a device, and the original's results there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.graph.model import OpId, TrainingGraph
from planner.runtime.device import client
from planner.runtime.device.client import DeviceRun
from planner.runtime.options import Level, session_options
from planner.runtime.profile import NodeEvent, create_session, run_session
from planner.targets import Target

Array = npt.NDArray[Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The original model's results: two runs on the device, and its outputs on the CPU.

    Attributes:
        cpu: outputs on the CPU; empty where the model is too large to run there.
        spared: two runs with the options recommended for a tight budget; None where these change nothing.
    """

    device: DeviceRun
    cpu: Mapping[str, Array]
    spared: DeviceRun | None = None


def reference(
    target: Target,
    original: Side,
    inputs: Mapping[str, Array],
    progress: Callable[[str], None] = lambda _: None,
) -> Reference:
    """Run the original model twice on the device, and once on the CPU.

    Raises:
        UsageError: the device is not available.
        ModelError: the model does not load or run on it.
    """
    progress(f"original model on {target.title}: outputs, order and bytes")
    opening = client.DeviceOpening(level=original.level)
    on_device = client.run(target, original.path, inputs, opening, runs=2)
    progress("original model on the CPU: outputs")
    session = create_session(original.path, session_options())
    results = run_session(session, inputs)
    names = [o.name for o in session.get_outputs()]
    return Reference(
        device=on_device,
        cpu=dict(zip(names, results, strict=True)),
        spared=spared(target, original.path, inputs, opening),
    )


def spared(
    target: Target, path: Path, inputs: Mapping[str, Array], opening: client.DeviceOpening
) -> DeviceRun | None:
    """Run a model twice with the options recommended for a tight budget; return None where they
    change nothing.

    Raises:
        UsageError: the device is not available.
        ModelError: the model does not load or run on it.
    """
    if not target.is_arena:
        return None
    opening = replace(opening, memory="recommended", profile=True)
    return client.run(target, path, inputs, opening, runs=2, keep=0)
