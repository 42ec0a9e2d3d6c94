"""Trace the code after the backward pass into one graph: `optimizer.step`, clipping, averages.

The function runs unchanged, on fake stand-ins for the caller's tensors (`redirect`). The tensors that it
uses are inputs. Tensors that it changes or assigns, and Python numbers that it changes, are state. If its
Python branches on a tensor's value, it runs once for each path, and `torch.where` selects among the
results (`graph`).
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import (
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
    track_tensor_tree,
)

from planner.errors import UsageError
from planner.export.apart.decompose import decompositions
from planner.export.errors import ExportError, UpdateFailure, UpdateRefused
from planner.export.lines import line_of_user
from planner.export.trace.stand_ins import Scattering, StandIns
from planner.export.update.graph import Imported, MergedGraph
from planner.export.update.numbers import Numbers, python_takes_tensors
from planner.export.update.optimizers import schedules_refused
from planner.export.update.outcome import (
    Branch,
    Installed,
    Key,
    Leaf,
    Update,
    UpdateOutcome,
    key_of,
)
from planner.export.update.reach import Path, Reach
from planner.export.update.redirect import Redirected, plainly

_MOST_PATHS = 32
"""Largest number of paths through a function's branches."""


WITH_COMPLEX = (
    'it computes with complex numbers: name an optimizer of planner\'s own ("adamw", "sgd"), or keep '
    "the parameter in real numbers and use torch.view_as_complex in the module"
)

_COUNTS = frozenset({"_opt_called", "_step_count"})
"""Counters by which PyTorch's schedulers detect, and warn of, a wrong order of calls."""


class Tracer:
    """Runs a function on stand-ins, and merges its paths into one graph.

    Args:
        names: names of inputs for tensors by key, in place of generated ones; tensors of one name and
            value share an input.

    Attributes:
        leaves: the caller's tensors that were used.
        absent: inputs for state of places that some path through the function has not created.
    """

    def __init__(self, update: Update, reach: Reach, names: Mapping[Key, str]) -> None:
        self.merged = MergedGraph()
        self.reach = reach
        self.leaves: dict[Key, Leaf] = {}
        self.absent: dict[Path, fx.Node] = {}
        self._update, self._names = update, names
        self._memory: dict[int, Key] = {}
        self._parts = decompositions()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def run(
        self,
        installed: Mapping[Path, Installed],
        hooked: Callable[[_Pass], contextlib.AbstractContextManager[Any]],
        *,
        is_trial: bool = False,
    ) -> UpdateOutcome:
        """Run all paths through the function; return their merged outcome.

        Args:
            installed: inputs to put in places before each run.
            hooked: a context for each run.
            is_trial: run the first path only.

        Raises:
            ExportError: the function cannot be traced.
        """
        ways: list[tuple[list[Branch], UpdateOutcome]] = []
        forced: list[bool] | None = []
        while forced is not None:
            run = _Pass(self, forced)
            try:
                ways.append((run.questions, run.trace(self._update, installed, hooked)))
            finally:
                self.reach.put_back()
            if len(ways) > _MOST_PATHS:
                lines = sorted({question.line for question in run.questions})
                raise UpdateRefused(
                    f"its Python code branches on values of tensors in more than {_MOST_PATHS} "
                    f"ways, at {'; '.join(lines)}: write the branch with torch.where"
                )
            forced = None if is_trial else _next(run.questions)
        return self._choice(ways, 0)

    def _choice(
        self, ways: Sequence[tuple[list[Branch], UpdateOutcome]], depth: int
    ) -> UpdateOutcome:
        """Merge the outcomes of several paths that share their first answers."""
        if len(ways) == 1:
            return ways[0][1]
        question = ways[0][0][depth]
        yes = self._choice([way for way in ways if way[0][depth].answer], depth + 1)
        no = self._choice([way for way in ways if not way[0][depth].answer], depth + 1)
        found = UpdateOutcome(created=no.created | yes.created)
        for key in {**yes.leaves, **no.leaves}:
            one, other = (o.leaves.get(key) or self.input_of(key) for o in (yes, no))
            found.leaves[key] = self._chosen(question, one, other, str(key))
        for path in {**yes.places, **no.places}:
            one, other = (self._place(outcome, path, found.created) for outcome in (yes, no))
            found.places[path] = self._chosen(question, one, other, str(path[-1]))
        for name in {**yes.results, **no.results}:
            if name not in yes.results or name not in no.results:
                raise UpdateRefused(f"it returns {name!r} in one branch only, at {question.line}")
            found.results[name] = self._chosen(question, yes.results[name], no.results[name], name)
        return found

    def _place(
        self, outcome: UpdateOutcome, path: Path, created: Mapping[Path, fx.Node]
    ) -> fx.Node:
        """Return the value of a place after a run that may not have reached it."""
        if path in outcome.places:
            return outcome.places[path]
        if path in created:  # the path has not created this future input
            held = created[path].meta["val"]
            self.absent[path] = self.input(f"absent {path}", held.shape, held.dtype)
            return self.absent[path]
        place = self.reach.places()[path]
        if isinstance(place.value, Tensor):
            return outcome.leaves.get(key_of(place.value)) or self.input_of(key_of(place.value))
        return self.merged.full(float(place.value), self.blank((), torch.float64))

    def _chosen(self, question: Branch, one: fx.Node, other: fx.Node, what: str) -> fx.Node:
        held, beside = one.meta["val"], other.meta["val"]
        if (held.shape, held.dtype) != (beside.shape, beside.dtype):
            raise UpdateRefused(
                f"{what} has different shapes or types in the two branches, at {question.line}"
            )
        return self.merged.where(question.condition, one, other)

    def input_of(self, key: Key) -> fx.Node:
        """Return the graph's input for a caller's tensor."""
        leaf = self.leaves[key]
        return self.input(leaf.name, leaf.tensor.shape, leaf.tensor.dtype)

    def input(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> fx.Node:
        return self.merged.placeholder(name, self.blank(shape, dtype))

    def blank(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        with plainly(), self._mode:
            return torch.empty(tuple(shape), dtype=dtype)

    def leaf(self, tensor: Tensor) -> Leaf:
        """Return the record of a caller's tensor, created at its first use."""
        key = key_of(tensor)
        if key not in self.leaves:
            memory = key[0]
            if self._memory.setdefault(memory, key) != key:
                other = self.leaves[self._memory[memory]].name
                raise UpdateRefused(
                    f"two tensors are views of {other!r}'s memory: use the whole tensor"
                )
            name = self._names.get(key, f"tensor_{len(self.leaves)}")
            self.leaves[key] = Leaf(tensor, name)
        return self.leaves[key]


def _tracer() -> Any:
    """Return PyTorch's tracer of the trace in progress."""
    mode = get_proxy_mode()
    assert mode is not None
    return mode.tracer


def _next(questions: Sequence[Branch]) -> list[bool] | None:
    """Return the answers that select the next path, depth first; None after the last path."""
    answers = [question.answer for question in questions]
    while answers and not answers[-1]:
        answers.pop()
    return [*answers[:-1], False] if answers else None


class _Pass:
    """One run along one path through the function.

    Args:
        forced: answers to its first questions; the others are answered with True.
    """

    def __init__(self, tracer: Tracer, forced: Sequence[bool]) -> None:
        self.tracer = tracer
        self.questions: list[Branch] = []
        self._forced = forced
        self._stand_ins: dict[Key, FunctionalTensor] = {}
        self._held: list[Any] = []  # kept alive: their memory must not be reused
        self._first: dict[int, fx.Node] = {}
        self._installed: dict[Path, FunctionalTensor] = {}
        self._imported: Imported | None = None
        self._lists: set[int] = set()

    def trace(
        self,
        update: Update,
        installed: Mapping[Path, Installed],
        hooked: Callable[[_Pass], contextlib.AbstractContextManager[Any]],
    ) -> UpdateOutcome:
        outcome = UpdateOutcome()

        def body() -> tuple[()]:
            self._imported = Imported(self.tracer.merged, _tracer().root)
            with (
                FunctionalTensorMode(),
                torch.no_grad(),
                Scattering(),
                StandIns(),
                Redirected(self._stand_in, self._made),
                Numbers(self._decide),
                python_takes_tensors(),
                schedules_refused(),
                mock.patch.object(FunctionalTensor, "__bool__", Tensor.__bool__),
                hooked(self),
            ):
                self._install(installed)
                places = self.tracer.reach.places()
                held = {path: place.value for path, place in places.items()}
                self._lists = {
                    id(p.holder) for p in places.values() if isinstance(p.holder, list | deque)
                }
                self._results(update(), outcome)
                self._collect(held, outcome)
            return ()

        try:
            with self.tracer._mode:
                make_fx(body, decomposition_table=self.tracer._parts)()
        except (ExportError, UsageError):
            raise
        except Exception as error:
            if any(leaf.tensor.is_complex() for leaf in self.tracer.leaves.values()):
                raise UpdateRefused(WITH_COMPLEX) from error
            line = line_of_user(traceback.extract_tb(error.__traceback__))
            raise UpdateFailure(line, error) from error
        return outcome

    def fed(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> FunctionalTensor:
        """Return a new tensor that is an input of the graph."""
        node = self.tracer.input(name, shape, dtype)
        tracer = _tracer()
        fake = self.tracer.blank(shape, dtype)
        proxy = tracer.create_proxy("placeholder", f"input_{len(self._held)}", (), {})
        track_tensor_tree(fake, proxy, constant=None, tracer=tracer)
        assert self._imported is not None
        self._imported.made[proxy.node] = node
        found = FunctionalTensor.to_functional(fake)
        self._held.append(found)
        return found

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the merged graph's node for a tensor's current value."""
        if not isinstance(tensor, FunctionalTensor):
            tensor = self._stand_in(tensor)
        torch._sync(tensor)  # pyright: ignore[reportPrivateImportUsage]
        inner = torch._from_functional_tensor(  # pyright: ignore[reportPrivateImportUsage]
            tensor.elem
        )
        slot: Any = get_proxy_slot(inner, _tracer())
        assert self._imported is not None
        return self._imported.node(slot.proxy.node)

    def changed(self, tensor: Tensor) -> bool:
        """Tell whether this run has written one of the caller's tensors so far."""
        known = self._stand_ins.get(key_of(tensor))
        return known is not None and self.node_of(known) is not self.tracer.input_of(key_of(tensor))

    def has_met(self, tensor: Tensor) -> bool:
        """Tell whether this run has read or written one of the caller's tensors so far."""
        return key_of(tensor) in self._stand_ins

    def is_zero(self, tensor: Tensor) -> bool:
        """Tell whether one of the caller's tensors has been filled with zeros."""
        if isinstance(tensor, FunctionalTensor) or not self.has_met(tensor):
            return False
        found = self.tracer.merged.value_of(self.node_of(tensor))
        return found is not None and not bool(found.any())

    def _stand_in(self, tensor: Tensor) -> FunctionalTensor:
        key = key_of(tensor)
        if key not in self._stand_ins:
            self._held.append(tensor)
            name = self.tracer.leaf(tensor).name
            self._stand_ins[key] = self.fed(name, tensor.shape, tensor.dtype)
        return self._stand_ins[key]

    def _made(self, tensor: Tensor) -> None:
        """Record a tensor's value at its creation."""
        if isinstance(tensor, FunctionalTensor) and id(tensor) not in self._first:
            self._held.append(tensor)
            self._first[id(tensor)] = self.node_of(tensor)

    def _decide(self, tensor: Tensor) -> bool:
        if tensor.numel() != 1:
            raise RuntimeError("the truth of a tensor with more than one element is ambiguous")
        line = line_of_user(traceback.extract_stack())
        condition = self.node_of(tensor.detach().reshape(()) != 0)
        known = self.tracer.merged.value_of(condition)
        if known is not None:
            with plainly():
                return bool(known)
        for question in self.questions:
            if question.condition is condition:
                return question.answer
        at = len(self.questions)
        answer = self._forced[at] if at < len(self._forced) else True
        self.questions.append(Branch(condition, answer, line))
        return answer

    def _install(self, installed: Mapping[Path, Installed]) -> None:
        for path, item in installed.items():
            self._installed[path] = self.fed(item.name, item.shape, item.dtype)
        self.tracer.reach.put(self._installed)

    def _results(self, returned: Any, outcome: UpdateOutcome) -> None:
        if returned is not None and not isinstance(returned, Mapping):
            raise UsageError(
                f"what runs after the backward pass returns a {type(returned).__name__}; return "
                'nothing, or tensors by name, as in {"grad_norm": norm}'
            )
        for name, value in (returned or {}).items():
            if not isinstance(value, Tensor):
                raise UsageError(
                    f"what runs after the backward pass returns {name!r} as a "
                    f"{type(value).__name__}, not as a tensor"
                )
            outcome.results[str(name)] = self.node_of(value)

    def _collect(self, held: Mapping[Path, Any], outcome: UpdateOutcome) -> None:
        for path, place in self.tracer.reach.places().items():
            value = place.value
            was = held.get(path)
            if path not in held and (
                id(place.holder) in self._lists or self.tracer.reach.has_grown(place)
            ):
                continue  # a log; where the update reads it, the comparison finds another step
            if isinstance(value, Tensor) and (value is not was or path in self._installed):
                outcome.places[path] = self.node_of(value)
                if path not in self._installed and not isinstance(was, Tensor | int | float):
                    outcome.created[path] = self._first.get(id(value), outcome.places[path])
            elif isinstance(value, int | float) and path[-1] not in _COUNTS:
                if not isinstance(was, Tensor) and value == was:
                    continue
                node = self.node_of(torch.full((), float(value), dtype=torch.float64))
                outcome.places[path] = node
                if not isinstance(was, Tensor | int | float):
                    outcome.created[path] = node
        for key, stand_in in self._stand_ins.items():
            outcome.leaves[key] = self.node_of(stand_in)
