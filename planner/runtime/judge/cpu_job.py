"""The request for a verification on the CPU: the models, and the options of their sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from planner.choices import BudgetOf, Numbers
from planner.graph.model import OpId, TrainingGraph
from planner.runtime.options import Level, Memory, Opening, Order, default_threads
from planner.runtime.profiled import Profiled

Array = npt.NDArray[Any]


@dataclass(kw_only=True)
class CpuJob:
    """The models, inputs and options of a verification on the CPU.

    Attributes:
        paths, graphs: files and graphs of the models "original" and "rewritten".
        orders: the predicted order of each model, as OpIds. For the original, the order in which it ran
            replaces it, once it has run the nodes of its graph.
        planned: names of the rewritten model's nodes, in planned order.
        budget_bytes: the device's budget, graph inputs and initializers included.
        budget_of: the bytes that the budget bounds; see `planner.request.Request`.
        strict: treat different last bits in sessions with default options as a failure.
        inputs: the inputs, by name; `inputs_source` says where they come from.
        is_copy: the rewritten model is the original, which has no planned order.
        level: the optimization level of the sessions that the plan is for: "all", or "disabled" for a
            plan of the graph as it stands.
        order: the session option that the rewritten model is written for.
        has_swaps: host copies share the CPU's arena: bytes are replayed, and there is no cap.
        thorough: run twice, at other levels and under other options too, and time longer.
        is_timed: measure times.
        packed: let kernels pack constant weights; False where a constant of the original is not constant
            in the rewritten model.
        numbers: how close the outputs of both models must be.
        threads: intra-operator threads; by default the machine's cores, 8 at most.
        may_copy: whether the original's session may write the graph that it runs to a temporary file.
        ahead: a session of the original that is already being created, if any.
    """

    paths: Mapping[str, Path]
    graphs: Mapping[str, TrainingGraph]
    orders: Mapping[str, tuple[OpId, ...]]
    planned: Sequence[str]
    budget_bytes: int
    budget_of: BudgetOf = "live"
    strict: bool = False
    inputs: Mapping[str, Array]
    inputs_source: str = "given by the caller"
    seed: int = 0
    is_copy: bool = False
    level: Level = "all"
    order: Order = "default"
    has_swaps: bool = False
    thorough: bool = True
    is_timed: bool = True
    packed: bool = True
    numbers: Numbers = "exact"
    threads: int = field(default_factory=default_threads)
    may_copy: bool = False
    ahead: Profiled | None = None
    progress: Callable[[str], None] = lambda _: None

    @property
    def runs(self) -> int:
        """The number of runs of a session whose later runs do not hold more."""
        return 2 if self.thorough else 1

    @property
    def is_optimized(self) -> bool:
        """Whether the plan is for the graph after ONNX Runtime's optimizers."""
        return self.level != "disabled"

    @property
    def default_level(self) -> Level:
        """The level for loading the models: ONNX Runtime's default, or "disabled" as planned."""
        return "all" if self.is_optimized else "disabled"

    def opening_of(self, model: str, memory: Memory = "default") -> Opening:
        """Return the options of a model's session, at its default level."""
        return self.opening(model, self.default_level, memory)

    def opening(self, model: str, level: Level, memory: Memory = "default") -> Opening:
        """Return the options of a model's session, with the order that the model is written for."""
        order = self.order_of(model)
        return Opening(
            memory=memory, level=level, order=order, threads=self.threads, packed=self.packed
        )

    def order_of(self, model: str) -> Order:
        """Return the order option that a model is written for."""
        return self.order if model == "rewritten" else "default"
