"""PyTorch's min-cut partitioner beside planner's solver, on one and the same problem.

What torch.compile does to a training step is taken apart here: AOTAutograd traces forward and backward as
one graph (with inductor's decompositions), the partitioner chooses what is saved at each
`activation_memory_budget`, and makes a forward and a backward graph. Operators of the joint graph are a
`planner.plan.problem.Problem`: tensors with the storages that they really have, views folded away, and
parameters, data and the incoming gradient on the device throughout. The partitioner's two graphs, one
after the other, are a schedule of that problem (what the backward graph has again is a recompute), and
the simulator, which knows no solver, says its peak and its time. Then planner's solver is given that peak
as the budget, and the operators in the partitioner's own order.

Nothing is fused in either: this is about what is chosen, and no claim about compiled code. Two prices are
looked at, each with its own solution: times measured here, operator by operator, and floating-point
operations, which is all that the partitioner itself counts.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch._inductor.lowering  # what its decompositions look at
from torch import Tensor, fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils.flop_counter import FlopCounterMode

from planner.plan.candidate import Replay
from planner.plan.problem import Action, ActionKind, Problem
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from reports.peers.networks import DrawnStep, Network, drawn
from reports.solver.build import Builder, base_peak

BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.1)
PRICES = ("measured", "flops")
_REPEATS = 3
_PLACEHOLDERS = frozenset({"placeholder", "output", "get_attr"})

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Forward and backward as one traced graph, with the values of the trace."""

    graph: fx.GraphModule
    inputs: Sequence[Any]
    forward_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one node did when it ran: microseconds, floating-point operations, and the storage of each of
    its tensors as (number, bytes); an output whose number an earlier node had is a view."""

    us: float
    flops: int
    storages: tuple[tuple[int, int], ...]


def rows(
    network: Network,
    threads: int,
    limit_s: float,
    budgets: Sequence[float] = BUDGETS,
    prices: Sequence[str] = PRICES,
) -> list[Row]:
    """Return a row for each budget and price; `limit_s` limits each of planner's searches."""
    torch.set_num_threads(threads)
    joint = traced(drawn(network))
    seen = observed(joint)
    found: list[Row] = []
    for budget in budgets:
        order = partitioned(joint, budget)
        for price in prices:
            found.append(
                {"budget": budget, "price": price, **compared(joint, seen, order, price, limit_s)}
            )
    return found


def traced(step: DrawnStep) -> Joint:
    """Trace the joint graph that torch.compile would partition, without inductor's own passes."""
    names = [name for name, _ in step.module.named_parameters()]
    buffers = [name for name, _ in step.module.named_buffers()]
    held: list[Joint] = []

    def whole(
        values: Sequence[Tensor], kept: Sequence[Tensor], given: Tensor, target: Tensor
    ) -> Tensor:
        tensors = {**dict(zip(names, values, strict=True)), **dict(zip(buffers, kept, strict=True))}
        return step.loss(torch.func.functional_call(step.module, tensors, (given,)), target)

    def hold(
        graph: fx.GraphModule, inputs: Any, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        held.append(
            Joint(
                graph=copy.deepcopy(graph),
                inputs=inputs,
                forward_outputs=options["num_fwd_outputs"],
            )
        )
        return min_cut_rematerialization_partition(graph, inputs, **options)

    def as_it_is(gm: fx.GraphModule, example_inputs: Any) -> Any:
        del example_inputs
        return make_boxed_func(gm.forward)

    function = aot_function(
        whole,
        fw_compiler=as_it_is,
        bw_compiler=as_it_is,
        partition_fn=hold,
        decompositions=select_decomp_table(),
    )
    values = [p.detach().clone().requires_grad_() for p in step.module.parameters()]
    kept = [b.detach().clone() for b in step.module.buffers()]
    function(values, kept, step.input, step.target).backward()
    (joint,) = held
    primals = [*(v.detach() for v in values), *kept, step.input, step.target]
    return replace(joint, inputs=_fed(joint.graph, primals))


def _fed(graph: fx.GraphModule, primals: Sequence[Tensor]) -> list[Tensor]:
    """Return values for the placeholders: the primals in order, then ones as the gradient of the loss."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    shapes = [tuple(node.meta["val"].shape) for node in nodes]
    given = [*primals, *(torch.ones(shape) for shape in shapes[len(primals) :])]
    if [tuple(value.shape) for value in given] != shapes:
        raise RuntimeError(
            "AOTAutograd's placeholders are not parameters, buffers, input and target"
        )
    return given


class _Watching(fx.Interpreter):
    """An interpreter that runs a graph node by node, and records each node's time and results."""

    def __init__(self, joint: Joint, *, flops: bool) -> None:
        super().__init__(joint.graph)
        self.counts_flops = flops
        self.us: dict[str, float] = {}
        self.flops: dict[str, int] = {}
        self.storages: dict[str, tuple[tuple[int, int], ...]] = {}
        self._number: dict[int, int] = {}
        self._held: list[torch.UntypedStorage] = []  # so that no two of them get one address

    def run_node(self, n: fx.Node) -> Any:
        if self.counts_flops:
            with FlopCounterMode(display=False) as counter:
                found = super().run_node(n)
            self.flops[n.name] = counter.get_total_flops()
            self.storages[n.name] = tuple(self._numbered(t) for t in _tensors(found))
            return found
        start = time.perf_counter()
        found = super().run_node(n)
        self.us[n.name] = (time.perf_counter() - start) * 1e6
        return found

    def _numbered(self, tensor: Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        number = self._number.setdefault(storage.data_ptr(), len(self._number))
        self._held.append(storage)
        return number, storage.nbytes()


def observed(joint: Joint) -> dict[str, Observed]:
    """Observe each node, by name; times are medians of a few runs."""
    with torch.no_grad():
        first = _Watching(joint, flops=True)
        first.run(*joint.inputs)
        runs = [_Watching(joint, flops=False) for _ in range(_REPEATS)]
        for run in runs:
            run.run(*joint.inputs)
    return {
        name: Observed(
            us=statistics.median(run.us[name] for run in runs),
            flops=first.flops[name],
            storages=storages,
        )
        for name, storages in first.storages.items()
    }


def partitioned(joint: Joint, budget: float) -> list[str]:
    """Names of the nodes that run, forward then backward, as the partitioner has them at a budget."""
    with functorch_config.patch(activation_memory_budget=budget):
        forward, backward = min_cut_rematerialization_partition(
            copy.deepcopy(joint.graph),
            joint.inputs,
            compiler="inductor",
            num_fwd_outputs=joint.forward_outputs,
        )
    nodes = [*forward.graph.nodes, *backward.graph.nodes]
    return [node.name for node in nodes if node.op not in _PLACEHOLDERS]


def compared(
    joint: Joint, seen: Mapping[str, Observed], order: Sequence[str], price: str, limit_s: float
) -> Row:
    """The partitioner's schedule and planner's within its peak, under one price."""
    base = list(dict.fromkeys(order))  # what runs for the first time, in the partitioner's order
    problem, index = posed(joint, seen, base, price)
    schedule = [Action(kind=ActionKind.RUN, target=index[name]) for name in order if name in index]
    theirs = simulate(problem, schedule)
    within = replace(problem, capacity_bytes=theirs.peak_bytes)
    solved = solve(within, SearchSettings(limit_s=limit_s))
    ours = None if solved.candidate is None else simulate(within, solved.candidate.actions)
    return {
        "operators": len(problem.ops),
        "keep_all_bytes": base_peak(problem),
        "peak_bytes": theirs.peak_bytes,
        "partitioner": _figures(theirs, problem),
        "planner": None
        if ours is None
        else {**_figures(ours, problem), "peak_bytes": ours.peak_bytes},
        "bound": max(0.0, solved.bound_us / problem.base_duration_us - 1),
        "engine": solved.engine,
    }


def posed(
    joint: Joint, seen: Mapping[str, Observed], base: Sequence[str], price: str
) -> tuple[Problem, dict[str, int]]:
    """The planning problem of a base order, and each operator's place in it by name.

    Nodes that make no storage of their own (views, `getitem`) are folded into their readers.
    """
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    given = [node.name for node in nodes.values() if node.op in ("placeholder", "get_attr")]
    fixed = {number: size for name in given for number, size in seen[name].storages}
    made: dict[int, tuple[int, int]] = {}  # storage -> (operator, bytes)
    index: dict[str, int] = {}
    for name in base:
        new = [(n, size) for n, size in seen[name].storages if n not in fixed and n not in made]
        if new:
            index[name] = len(index)
            made |= {number: (index[name], size) for number, size in new}
    number_of = {storage: i for i, storage in enumerate(made)}
    reads: list[list[int]] = [[] for _ in index]
    for name, place in index.items():
        sources = (
            n for source in nodes[name].all_input_nodes for n, _ in seen[source.name].storages
        )
        reads[place] = sorted({number_of[n] for n in sources if n in made and made[n][0] != place})
    (output,) = (node for node in nodes.values() if node.op == "output")
    kept = {n for source in output.all_input_nodes for n, _ in seen[source.name].storages}
    builder = Builder()
    for name, place in index.items():
        took_us = seen[name].us if price == "measured" else max(seen[name].flops, 1) / 1e6
        sizes = [size for producer, size in made.values() if producer == place]
        builder.op(name, took_us, reads[place], sizes)
    builder.to_end = {number_of[storage] for storage in kept if storage in made}
    problem = builder.problem("joint graph")
    problem = replace(problem, fixed_bytes=sum(fixed.values()), capacity_bytes=1 << 62)
    return problem, index


def _figures(replay: Replay, problem: Problem) -> Row:
    return {
        "added": replay.time_us / problem.base_duration_us - 1,
        "recomputed_ops": replay.recomputed_ops,
    }


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple | list) else []
