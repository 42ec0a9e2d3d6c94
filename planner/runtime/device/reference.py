"""The two models of a verification on a device, and what the original does there."""

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
        level: of optimizations, at which its graph was analysed.
        renamed: names in its graph of nodes that a session calls otherwise.
    """

    path: Path
    graph: TrainingGraph
    order: tuple[OpId, ...]
    level: Level = "all"
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, in order."""
        return tuple(self.graph.operations[op].name for op in self.order)

    def seen(self, run: DeviceRun) -> tuple[NodeEvent, ...]:
        """The events of a run, by the names that the graph has."""
        return tuple(replace(e, name=self.renamed.get(e.name, e.name)) for e in run.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the original model does: two runs on the device, and its outputs on the CPU.

    Attributes:
        cpu: empty where the model is too large to be run there; then nothing is said of it.
        spared: two runs with the options recommended for a tight budget, where those say more.
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
    """Run the original model on the device, twice, and on the CPU.

    Raises:
        UsageError: the device is not here.
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
    """Two runs with the options recommended for a tight budget; None where they change nothing.

    Raises:
        UsageError: the device is not here. ModelError: the model does not load or run on it.
    """
    if not target.is_arena:
        return None
    opening = replace(opening, memory="recommended", profile=True)
    return client.run(target, path, inputs, opening, runs=2, keep=0)
