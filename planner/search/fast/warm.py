"""Compile everything ahead of the clock, on a tiny plan; cached on disk after the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.plan.problem import OpIndex, PlanOp, PlanTensor, Problem, TensorIndex
from planner.processes.compiled import Compilation

if TYPE_CHECKING:
    from planner.plan.candidate import Candidate
    from planner.search.improve import Improver


def is_compiled(*, overlap: bool) -> bool:
    """Whether everything is in the cache on disk, as far as its index tells."""
    return _compilation(overlap).is_done


def begin(*, overlap: bool) -> None:
    """Have a process beside this one compile what is not compiled yet, annealing last; load what is."""
    compilation = _compilation(overlap)
    compilation.begin(annealing(overlap=overlap))
    compilation.load_ahead()


def warm_up(*, overlap: bool) -> None:
    """Compile the replay and the moves, or load them from the cache; waits for what was begun."""
    for begun in (_SERIAL, _OVERLAPPED):
        begun.wait()
    _compilation(overlap).warm_up()


def annealing(*, overlap: bool) -> Compilation:
    """What most searches end before they come to; beside the operations it is compiled with the rest."""
    return _OVERLAPPED if overlap else _ANNEALING


def compile_serial() -> None:
    """Compile what times copies on the stream of the operations, without annealing."""
    _refined(overlap=False)


def compile_annealing() -> None:
    """Compile what `compile_serial` does, and annealing."""
    _annealed(overlap=False)


def compile_overlapped() -> None:
    """Compile what times copies beside the operations, and on their stream."""
    _annealed(overlap=False)
    _annealed(overlap=True)


def _functions_serial() -> tuple[Callable[..., Any], ...]:
    from planner.search.fast.moves import change
    from planner.search.fast.schedule import schedule

    return change, schedule


def _functions_of_annealing() -> tuple[Callable[..., Any], ...]:
    from planner.search.fast.moves import anneal

    return *_functions_serial(), anneal


def _functions_overlapped() -> tuple[Callable[..., Any], ...]:
    from planner.search.fast.streams import place_and_time

    return *_functions_of_annealing(), place_and_time


_SERIAL = Compilation(compile_serial, _functions_serial)
_ANNEALING = Compilation(compile_annealing, _functions_of_annealing)
_OVERLAPPED = Compilation(compile_overlapped, _functions_overlapped)


def _compilation(overlap: bool) -> Compilation:
    return _OVERLAPPED if overlap else _SERIAL


def _refined(*, overlap: bool) -> tuple[Improver, Candidate]:
    from planner.search.evaluate import Evaluator
    from planner.search.improve import Improver

    evaluator = Evaluator(_tiny_problem(overlap=overlap))
    improver = Improver(evaluator)
    return improver, improver.polish(improver.prune(improver.repair(evaluator.base)))


def _annealed(*, overlap: bool) -> None:
    improver, candidate = _refined(overlap=overlap)
    improver.anneal(candidate, iterations=1)


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
