"""The exported step beside PyTorch's own, at other inputs and parameters, over several steps.

No rule of the exporter's is asked: whatever the trace took for a constant, or lost, shows as soon as it
has another value. The first step is at the example inputs, the others at inputs like them; parameters
move from step to step, and each side carries its own state along. Compared are the loss, what the loss
function returns beside it, every gradient, and every parameter and buffer behind the step.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, fx

from planner.export.checking import rounding
from planner.export.checking.counted import AHEAD, Grown, counts_put_back
from planner.export.checking.eager import Arrays, Ran, ran
from planner.export.checking.norms import apart, is_equal, is_near, norm
from planner.export.checking.parameters import check_parameters
from planner.export.checking.session import GraphSession
from planner.export.checking.updates import EagerUpdate
from planner.export.checking.values import Others, moved, resized
from planner.export.errors import ExportError, OtherStep
from planner.export.optim import GRADIENT_SUFFIX, UPDATED_SUFFIX
from planner.export.trace.joint import JointGraph
from planner.export.trace.lending import Kept, lent, undisturbed
from planner.export.trace.step import TrainingStep
from planner.export.update.traced import TracedUpdate, tensors_of
from planner.export.write.dtypes import HALF, array_of
from planner.export.write.lower import LOSS, lower
from planner.units import format_bytes

STEPS = 3

_MOST_BYTES = 2 << 30
"""Of all tensors of a step together, more of which would take long here."""

_LOSS, _GRADIENT, _IN_HALF = 1e-3, 0.02, 0.1
"""How far apart loss and gradients may be, by the norm of PyTorch's, and either in half precision."""

_LEAST = 1e-6
"""By which loss, other results and buffers may be off in any case."""

_OF_ALL = 1e-5
"""By which a gradient may be off, by the norm of all gradients together."""

_NOT_RUN = "ONNX Runtime does not run it here"

_LARGER = 256
"""By so many times inputs may be larger than the examples, where other sizes are compared."""

_LONG_S = 2.0
"""A step that takes longer on one thread has operators that are worth several."""

_SAME = 1e-5
"""How far two runs of PyTorch's with the same numbers may be apart, by the order of its threads."""


def why_not_compared(
    step: TrainingStep,
    inputs: Mapping[str, Tensor],
    joint: JointGraph,
    stored: Arrays,
    update: TracedUpdate | None = None,
) -> str:
    """Compare an exported step with PyTorch's; why it could not be compared, "" where it was.

    Args:
        joint: what the step was traced to.
        stored: values of the buffers that the graph has as constants.

    Raises:
        OtherStep: they are not the same.
    """
    tensors = tensors_of(step.module)
    devices = {t.device.type for t in (*tensors.values(), *inputs.values())} - {"cpu"}
    if "meta" in devices:
        return "there are tensors on the meta device, which have no values"
    if devices:
        return f"there are tensors on {', '.join(sorted(devices))}: it is compared on the CPU"
    check_parameters(step.module)
    if (total := _bytes_of(joint.module.graph)) > _MOST_BYTES:
        return (
            f"all tensors of a step take {format_bytes(total)} together, which is long to run here"
        )
    try:
        shown = update and replace(update, shows_gradients=True)
        graph = lower(  # the session says what has no kernel
            joint,
            "check",
            optimizer=shown,
            initializers=stored,
            random="inputs",
            cast_for_cpu=True,
        )
        beside = GraphSession(graph)
    except ExportError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    eager = update and EagerUpdate(update, step, graph)
    comparison = _Comparison(
        step=step,
        graph=beside,
        joint=joint,
        inputs=inputs,
        update=eager,
        threads=torch.get_num_threads(),
    )
    lending = eager.lent() if eager else contextlib.nullcontext()
    with undisturbed(), lent(step), lending, _one_thread():
        return comparison.run()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch on one thread at first: its threads wait for each other in each of thousands of small
    operators, and take ten times as long where others have a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _values(graph: fx.Graph) -> Iterator[Tensor]:
    """All tensors of a traced graph."""
    for node in graph.nodes:
        found = node.meta.get("val")
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor):
                yield value


def _bytes_of(graph: fx.Graph) -> int:
    """All of them together, at the sizes of the example."""
    total = 0
    for value in _values(graph):
        sizes = (d if isinstance(d, int) else int(d.node.hint) for d in value.shape)
        total += math.prod(sizes) * value.element_size()
    return total


@dataclass(kw_only=True)
class _Comparison:
    """Steps of both, one after the other.

    Attributes:
        threads: of PyTorch, where a step takes long on one.
        leaves: tensors that received a gradient in a step before.
    """

    step: TrainingStep
    graph: GraphSession
    joint: JointGraph
    inputs: Mapping[str, Tensor]
    update: EagerUpdate | None = None
    threads: int = 1
    leaves: dict[int, Tensor] = field(default_factory=dict)

    def run(self) -> str:
        """Why they could not be compared; "" where they were, and are the same.

        Raises:
            OtherStep: they are not.
        """
        state = {name: array_of(t).copy() for name, t in tensors_of(self.step.module).items()}
        with counts_put_back(self.step) as counted:
            for number in range(STEPS):
                if why := self._compared(number, state):
                    return why
            self._look_ahead(counted.grown(), state)
        return self._beyond_borders(state)

    def _beyond_borders(self, state: Arrays) -> str:
        """Compare at sizes for which a condition of the trace does not hold; those that PyTorch refuses
        say nothing. Why one was not compared, "" where all were.

        Raises:
            OtherStep: something else is computed there, or nothing.
        """
        examples = self.inputs
        for number, border in enumerate(self.joint.borders, 2 * STEPS):
            told = ", ".join(f"{name} = {size}" for name, size in border.sizes.items())
            where = f"at {told}, where {border.condition} does not hold"
            axes = self.joint.open
            self.inputs = {
                n: resized(t, axes.get(n, {}), border.sizes) for n, t in examples.items()
            }
            count = sum(t.numel() for t in self.inputs.values())
            if count > _LARGER * sum(t.numel() for t in examples.values()):
                return f"{where}, it would take long"
            before = Kept(self.step, copied=True)
            try:
                why = self._compared(number, state)
                if why.startswith(_NOT_RUN):
                    raise OtherStep(None, why)
                if why:
                    before.put_back()
            except OtherStep as error:
                raise OtherStep(
                    None,
                    f"{where}, {error.what}: the module chooses by a size, and the graph has what it "
                    "chose for the example's: choose with torch.where, or export a graph for each size",
                ) from None
            finally:
                self.inputs = examples
        return ""

    def _look_ahead(self, grown: Sequence[Grown], state: Arrays) -> None:
        """Compare steps at which what the step counts is larger.

        Raises:
            OtherStep: something else is computed there.
        """
        for number, further in enumerate(AHEAD if grown else (), STEPS):
            for counter in grown:
                counter.move(further / STEPS)
            try:
                if self._compared(number, state):
                    return  # it does not run so far ahead
            except OtherStep as error:
                names = ", ".join(sorted(counter.place.name for counter in grown))
                raise OtherStep(
                    None,
                    f"some {further} steps later, with what it counts ({names}) as large, {error.what}: "
                    "a graph does not count in Python; count in a buffer (self.n.add_(1)) and choose "
                    "with torch.where, or export a graph for each phase",
                ) from None

    def _compared(self, number: int, state: Arrays) -> str:
        """One step; why it could not be compared, "" where it was. `state` is what it leaves.

        Raises:
            OtherStep: the two are not the same.
        """
        if number:
            self._move(state, torch.Generator().manual_seed(number))
        before = Kept(self.step, copied=True)
        started = time.perf_counter()
        try:
            inputs, theirs = self._ran(number, before)
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else ""
            where = "the example inputs" if not number else "other inputs like the examples"
            return f"PyTorch's step fails on {where}: {type(error).__name__}: {said}"
        if time.perf_counter() - started > _LONG_S:
            torch.set_num_threads(self.threads)
        if not math.isfinite(norm(theirs.loss)):
            return f"the loss is {float(theirs.loss)} in PyTorch"
        self._check_leaves(theirs)
        if theirs.draws.others:
            drawn = ", ".join(sorted(theirs.draws.others))
            return f"random numbers of {drawn} are not the same in both"
        draws = theirs.draws.feeds(self.graph.graph.draws)
        if draws is None:
            return "the random numbers of both do not match"
        try:
            arrays = {name: array_of(tensor) for name, tensor in inputs.items()}
            more = self.update.feeds(number) if self.update else {}
            ours = self.graph.run({**state, **more, **arrays, **draws})
        except Exception as error:
            return f"{_NOT_RUN}: {str(error).splitlines()[0]}"
        lost = self._lost(theirs, state)
        wrong = lost or self._wrong_numbers(ours, theirs) or self._wrong_state(ours, theirs)
        if wrong and (lost or not self._is_rounding(ours, theirs, before, inputs)):
            raise OtherStep(number, wrong)
        if self.update and (wrong := self.update.wrong(ours, inputs)):
            raise OtherStep(number, wrong)
        if self.update:  # as the update leaves them: those that are not trained are not moved
            state |= self.update.left()
        for name in self.joint.updated_buffers:
            state[name] = ours[name + UPDATED_SUFFIX]
        self.leaves |= theirs.leaves
        return ""

    def _ran(self, number: int, before: Kept) -> tuple[dict[str, Tensor], Ran]:
        """(the inputs of a step, what PyTorch makes of them): rows in another order, or in the example's
        where that is an error, as with offsets and places in a table."""
        inputs = self._inputs(number, is_shuffled=True)
        try:
            return inputs, ran(self.step, inputs, seed=number)
        except Exception:
            if not number:
                raise
            before.put_back()
            inputs = self._inputs(number, is_shuffled=False)
            return inputs, ran(self.step, inputs, seed=number)

    def _inputs(self, number: int, *, is_shuffled: bool) -> dict[str, Tensor]:
        """Other inputs, but at the first step, and where the graph is for those of which the same is
        read."""
        if not number:
            return dict(self.inputs)
        others = Others(number, is_shuffled=is_shuffled)
        if self.joint.reads:
            return dict(self.inputs)
        return {name: others.tensor(tensor) for name, tensor in self.inputs.items()}

    def _move(self, state: Arrays, generator: torch.Generator) -> None:
        """Parameters as another step might leave them, the same on both sides."""
        parameters = dict(self.step.module.named_parameters())
        with torch.no_grad():
            for name in self.joint.parameters:
                value = moved(parameters[name], generator)
                parameters[name].copy_(value)
                state[name] = array_of(value).copy()

    def _check_leaves(self, theirs: Ran) -> None:
        """Raise where the loss trains what is not the module's: a parameter, or a tensor that received a
        gradient in an earlier step, too."""
        own = {id(parameter) for parameter in self.step.module.parameters()}
        named = {id(p): n for n, p in self.step.named_parameters()}
        for key, leaf in theirs.leaves.items():
            if key in own or not (isinstance(leaf, torch.nn.Parameter) or key in self.leaves):
                continue
            name = named.get(key, f"of shape {list(leaf.shape)}")
            raise OtherStep(
                None,
                f"the loss trains a tensor that is not the module's ({name}), and the graph has it as a "
                "constant: make it a parameter of the module (a module that holds both and returns the "
                "loss will do), or requires_grad_(False) if it is not to be trained",
            )

    def _wrong_numbers(self, ours: Arrays, theirs: Ran) -> str:
        """The first of loss, other results and gradients that is not the same; "" where all are. A
        gradient that is not finite in PyTorch says nothing.
        """
        loss, gradient = self.allowed
        if not is_near(ours[LOSS], theirs.loss, loss, floor=_LEAST):
            return f"the loss is {float(ours[LOSS]):.6g}, and {float(theirs.loss):.6g} in PyTorch"
        for name, array in theirs.results.items():
            if not is_near(ours[name], array, _of(array, loss), floor=_LEAST):
                return f"the output {name!r} is off by {apart(ours[name], array):.2g} of its norm"
        norms = {name: norm(array) for name, array in theirs.gradients.items()}
        floor = _floor(norms.values())
        for name, array in theirs.gradients.items():
            if not math.isfinite(norms[name]):
                continue
            found = ours.get(name + GRADIENT_SUFFIX)
            if found is None and norms[name] > 0:
                return f"{name!r} receives a gradient in PyTorch, and none in the graph"
            if found is None or is_near(found, array, gradient, floor=floor):
                continue
            return f"the gradient of {name!r} is off by {apart(found, array):.2g} of its norm"
        return ""

    def _lost(self, theirs: Ran, before: Arrays) -> str:
        """The first parameter or buffer that the step changes, and the graph does not; "" for none."""
        for name, array in theirs.state.items():
            old = before.get(name)
            if name in self.joint.updated_buffers or is_equal(old, array):
                continue
            if old is None:
                return (
                    f"the step makes {name!r} as it first runs: run the module once on the inputs "
                    "before the export, or make it in __init__"
                )
            return f"the step changes {name!r}, and the graph does not return it"
        return ""

    def _wrong_state(self, ours: Arrays, theirs: Ran) -> str:
        """The first parameter or buffer that has another value behind the step; "" where none has."""
        _, allowed = self.allowed
        for name in self.joint.updated_buffers:
            array = theirs.state[name]
            share = _of(array, allowed)
            if not is_near(ours[name + UPDATED_SUFFIX], array, share, floor=_LEAST):
                return f"{name!r} has another value behind the step"
        return ""

    @cached_property
    def halves(self) -> set[torch.dtype]:
        """The types of half precision in the step."""
        return {value.dtype for value in _values(self.joint.module.graph)} & HALF

    @cached_property
    def allowed(self) -> tuple[float, float]:
        """How far loss and gradients may be apart."""
        return (_IN_HALF, _IN_HALF) if self.halves else (_LOSS, _GRADIENT)

    def _is_rounding(
        self,
        ours: Arrays,
        theirs: Ran,
        before: Kept,
        inputs: Mapping[str, Tensor],
    ) -> bool:
        """Whether PyTorch's step is as far from itself, where its numbers change by a rounding: not
        where it is so with the same numbers, too."""
        after = Kept(self.step, copied=True)
        try:
            return self._is_as_far(ours, theirs, before, inputs)
        except Exception:  # what is near the inputs may be none
            return False
        finally:
            after.put_back()

    def _is_as_far(
        self, ours: Arrays, theirs: Ran, before: Kept, inputs: Mapping[str, Tensor]
    ) -> bool:
        before.put_back()
        again = ran(self.step, inputs, theirs.seed)
        if not is_near(again.loss, theirs.loss, _SAME, floor=0.0):
            return False
        loss, gradient = self.allowed
        least = max([rounding.LEAST, *(torch.finfo(kind).eps for kind in self.halves)])
        buffers = {name + UPDATED_SUFFIX for name in self.joint.updated_buffers}
        untrained = {LOSS, *theirs.results, *buffers}
        state = {name + UPDATED_SUFFIX for name in theirs.state}
        expected = {n: a for n, a in theirs.arrays.items() if n not in state or n in buffers}
        by_rounding = rounding.shares(
            self.step, inputs, expected, before=before, seed=theirs.seed, least=least
        )
        floor = _floor(map(norm, theirs.gradients.values()))

        def is_as_far(name: str, array: np.ndarray) -> bool:
            share = loss if name == LOSS or name in theirs.results else gradient
            return name in ours and is_near(
                ours[name],
                array,
                max(_of(array, share), by_rounding[name]),
                floor=_LEAST if name in untrained else floor,
            )

        return all(is_as_far(name, array) for name, array in expected.items())


def _of(array: np.ndarray, share: float) -> float:
    """How far a result may be apart, by its norm: whole numbers and booleans not at all."""
    return share if array.dtype.kind not in "biu" else 0.0


def _floor(norms: Iterable[float]) -> float:
    """By which any gradient may be off, given the norms of all."""
    return _OF_ALL * math.hypot(*filter(math.isfinite, norms))
