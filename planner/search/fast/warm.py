"""Compile everything ahead of the clock, on a tiny plan; cached on disk after the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.plan.problem import OpIndex, PlanOp, PlanTensor, Problem, TensorIndex
from planner.processes.compiled import Compilation


def is_compiled(*, overlap: bool) -> bool:
    """Whether everything is in the cache on disk, as far as its index tells."""
    return _compilation(overlap).is_done


def begin(*, overlap: bool) -> None:
    """Have a process beside this one compile what is not compiled yet."""
    _compilation(overlap).begin()


def warm_up(*, overlap: bool) -> None:
    """Compile the replay and the moves, or load them from the cache; waits for what was begun."""
    for begun in (_SERIAL, _OVERLAPPED):
        begun.wait()
    _compilation(overlap).warm_up()


def compile_serial() -> None:
    """Compile what times copies on the stream of the operations."""
    _compile(overlap=False)


def compile_overlapped() -> None:
    """Compile what times copies beside the operations, and on their stream."""
    _compile(overlap=False)
    _compile(overlap=True)


def _functions_serial() -> tuple[Callable[..., Any], ...]:
    from planner.search.fast.moves import anneal, change

    return anneal, change


def _functions_overlapped() -> tuple[Callable[..., Any], ...]:
    from planner.search.fast.streams import place_and_time

    return *_functions_serial(), place_and_time


def compile_second_runs() -> None:
    """Compile the annealing over second runs, which takes longer than all of the rest."""
    from planner.search.second_runs import RunPolicy, anneal_second_runs
    from planner.search.stop import NEVER

    policy = RunPolicy(slice_moves=1, moves=1)
    anneal_second_runs(_tiny_problem(overlap=False), NEVER, policy=policy)


def _functions_of_second_runs() -> tuple[Callable[..., Any], ...]:
    from planner.search.fast.second_run_moves import anneal_runs

    return (anneal_runs,)


_SERIAL = Compilation(compile_serial, _functions_serial)
_OVERLAPPED = Compilation(compile_overlapped, _functions_overlapped)
SECOND_RUNS = Compilation(compile_second_runs, _functions_of_second_runs)
"""Apart, since most searches end before they come to it."""


def _compilation(overlap: bool) -> Compilation:
    return _OVERLAPPED if overlap else _SERIAL


def _compile(*, overlap: bool) -> None:
    from planner.search.evaluate import Evaluator
    from planner.search.improve import Improver

    evaluator = Evaluator(_tiny_problem(overlap=overlap))
    improver = Improver(evaluator)
    fitting = improver.repair(evaluator.base)
    improver.polish(improver.prune(improver.anneal(fitting, iterations=1)))


def _tiny_problem(*, overlap: bool) -> Problem:
    ops = tuple(
        PlanOp(
            name=f"op{i}",
            duration_us=1.0,
            inputs=(TensorIndex(0),) if i == 3 else (TensorIndex(i - 1),) if i else (),
            outputs=(TensorIndex(i),),
        )
        for i in range(4)
    )
    uses = {0: (OpIndex(1), OpIndex(3)), 1: (OpIndex(2),)}
    tensors = tuple(
        PlanTensor(name=f"t{i}", bytes=8, producer=OpIndex(i), uses=uses.get(i, ()))
        for i in range(4)
    )
    return Problem(
        name="warm-up",
        ops=ops,
        tensors=tensors,
        fixed_bytes=0,
        capacity_bytes=20,
        swap_out_bytes_per_s=1e6,
        swap_in_bytes_per_s=1e6,
        overlap=overlap,
    )
