"""Compare the exported step with PyTorch's own, at other inputs and parameters, over several steps.

The comparison doesn't rely on the exporter's rules: a value that the trace lost, or took for a constant,
shows as soon as it changes. The first step runs on the example inputs, later ones on inputs like them.
Parameters change from step to step, and each side carries its own state along. The check compares the
loss, other results of the loss function, every gradient, and every parameter and buffer after the step.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, fx

from planner.export.checking.counted import AHEAD, Grown, counts_put_back
from planner.export.checking.eager import Arrays, Ran, ran
from planner.export.checking.judging import StepJudge, values_of
from planner.export.checking.norms import norm
from planner.export.checking.parameters import check_parameters
from planner.export.checking.session import GraphSession
from planner.export.checking.updates import EagerUpdate
from planner.export.checking.values import Others, moved, resized
from planner.export.errors import ExportError, OtherStep
from planner.export.optim import UPDATED_SUFFIX
from planner.export.trace.joint import JointGraph
from planner.export.trace.lending import Kept, lent, undisturbed
from planner.export.trace.step import TrainingStep
from planner.export.update.traced import TracedUpdate, tensors_of
from planner.export.write.dtypes import array_of
from planner.export.write.lower import lower
from planner.units import format_bytes

STEPS = 3

_MOST_BYTES = 2 << 30
"""The largest sum of all tensors of a step that is compared; more would take too long."""

_LARGER = 256
"""How many times larger than the examples inputs may be, where other sizes are compared."""

_LONG_S = 2.0
"""A step that takes longer than this on one thread gets several."""


def why_not_compared(
    step: TrainingStep,
    inputs: Mapping[str, Tensor],
    joint: JointGraph,
    stored: Arrays,
    update: TracedUpdate | None = None,
) -> str:
    """Compare an exported step with PyTorch's; return why it could not be compared, or "" where it was.

    Args:
        joint: the traced step.
        stored: values of the buffers that are constants of the graph.

    Raises:
        OtherStep: the steps differ.
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
    """Run PyTorch on one thread at first.

    Its threads wait for each other in each of thousands of small operators, which takes ten times as long
    where another process has one of the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _bytes_of(graph: fx.Graph) -> int:
    """Return the bytes of all tensors together, at the examples' sizes."""
    total = 0
    for value in values_of(graph):
        sizes = (d if isinstance(d, int) else int(d.node.hint) for d in value.shape)
        total += math.prod(sizes) * value.element_size()
    return total


@dataclass(frozen=True, slots=True)
class _NotCompared:
    """The reason why a step was not compared; `is_of_graph`: PyTorch runs it, ONNX Runtime does not."""

    why: str
    is_of_graph: bool = False


@dataclass(kw_only=True)
class _Comparison:
    """A comparison of both sides, step by step.

    Attributes:
        threads: PyTorch's threads, for a step that takes long on one.
        leaves: tensors that received a gradient in an earlier step.
    """

    step: TrainingStep
    graph: GraphSession
    joint: JointGraph
    inputs: Mapping[str, Tensor]
    update: EagerUpdate | None = None
    threads: int = 1
    leaves: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def _judge(self) -> StepJudge:
        rewritten = self.update.rewritten if self.update else ()
        return StepJudge(step=self.step, joint=self.joint, rewritten=rewritten)

    def run(self) -> str:
        """Compare the steps; return why they could not be compared, or "" where they are the same.

        Raises:
            OtherStep: the steps differ.
        """
        state = {name: array_of(t).copy() for name, t in tensors_of(self.step.module).items()}
        with counts_put_back(self.step) as counted:
            for number in range(STEPS):
                if stop := self._compared(number, self.inputs, state):
                    return stop.why
            self._look_ahead(counted.grown(), state)
        return self._beyond_borders(state)

    def _beyond_borders(self, state: Arrays) -> str:
        """Compare at sizes for which a condition of the trace does not hold.

        Sizes that PyTorch refuses are skipped. Returns why a size was not compared, or "" where all were.

        Raises:
            OtherStep: the graph computes something else at such a size, or fails.
        """
        for number, border in enumerate(self.joint.borders, 2 * STEPS):
            told = ", ".join(f"{name} = {size}" for name, size in border.sizes.items())
            where = f"at {told}, where {border.condition} does not hold"
            axes = self.joint.open
            inputs = {n: resized(t, axes.get(n, {}), border.sizes) for n, t in self.inputs.items()}
            count = sum(t.numel() for t in inputs.values())
            if count > _LARGER * sum(t.numel() for t in self.inputs.values()):
                return f"{where}, a run would take too long"
            before = Kept(self.step, copied=True)
            try:
                stop = self._compared(number, inputs, state)
                if stop and stop.is_of_graph:
                    raise OtherStep(None, stop.why)
                if stop:
                    before.put_back()
            except OtherStep as error:
                raise OtherStep(
                    None,
                    f"{where}, {error.what}: the module branches on a size, and the graph has the "
                    "branch of the example's size only: use torch.where, or export one graph for "
                    "each size",
                ) from None
        return ""

    def _look_ahead(self, grown: Sequence[Grown], state: Arrays) -> None:
        """Compare later steps, at which the module's Python counters are larger.

        Raises:
            OtherStep: the graph computes something else there.
        """
        for number, further in enumerate(AHEAD if grown else (), STEPS):
            for counter in grown:
                counter.move(further / STEPS)
            try:
                if self._compared(number, self.inputs, state):
                    return  # the step does not run this far ahead
            except OtherStep as error:
                names = ", ".join(sorted(counter.place.name for counter in grown))
                raise OtherStep(
                    None,
                    f"after {further} more steps, with its counters ({names}) as large, "
                    f"{error.what}: a graph cannot count in Python; count in a buffer "
                    "(self.n.add_(1)) and branch with torch.where, or export one graph for each "
                    "phase",
                ) from None

    def _compared(
        self, number: int, examples: Mapping[str, Tensor], state: Arrays
    ) -> _NotCompared | None:
        """Compare one step on inputs like the examples, and update `state` to the state after it.

        Returns why the step could not be compared, or None where it was.

        Raises:
            OtherStep: the steps differ.
        """
        if number:
            self._move(state, torch.Generator().manual_seed(number))
        before = Kept(self.step, copied=True)
        try:
            inputs, theirs = self._ran(number, examples, before)
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else ""
            where = "the example inputs" if not number else "other inputs like the examples"
            return _NotCompared(f"PyTorch's step fails on {where}: {type(error).__name__}: {said}")
        if why := self._why_not_comparable(theirs):
            return _NotCompared(why)
        draws = theirs.draws.feeds(self.graph.graph.draws)
        if draws is None:
            return _NotCompared("the random numbers of both do not match")
        try:
            arrays = {name: array_of(tensor) for name, tensor in inputs.items()}
            more = self.update.feeds(number) if self.update else {}
            ours = self.graph.run({**state, **more, **arrays, **draws})
        except Exception as error:
            why = f"ONNX Runtime does not run it here: {str(error).splitlines()[0]}"
            return _NotCompared(why, is_of_graph=True)
        lost = self._judge.lost(theirs, state)
        wrong = lost or self._judge.wrong(ours, theirs)
        if wrong and (lost or not self._judge.is_rounding(ours, theirs, before, inputs)):
            raise OtherStep(number, wrong)
        if self.update and (wrong := self.update.wrong(ours, inputs)):
            raise OtherStep(number, wrong)
        if self.update:  # the update's own values: parameters that are not trained keep theirs
            state |= self.update.left()
        for name in self.joint.updated_buffers:
            state[name] = ours[name + UPDATED_SUFFIX]
        self.leaves |= theirs.leaves
        return None

    def _why_not_comparable(self, theirs: Ran) -> str:
        """Return why no graph can be compared with PyTorch's step, or "" where one can.

        Raises:
            OtherStep: the loss trains a tensor that is not the module's.
        """
        if not math.isfinite(norm(theirs.loss)):
            return f"the loss is {float(theirs.loss)} in PyTorch"
        self._check_leaves(theirs)
        if theirs.draws.others:
            drawn = ", ".join(sorted(theirs.draws.others))
            return f"random numbers of {drawn} are not the same in both"
        return ""

    def _ran(
        self, number: int, examples: Mapping[str, Tensor], before: Kept
    ) -> tuple[dict[str, Tensor], Ran]:
        """Run PyTorch's step on new inputs; return the inputs and the outcome.

        Rows are in another order than the examples', unless PyTorch fails on that, as with offsets and
        indices into a table.
        """
        started = time.perf_counter()
        inputs = self._inputs(number, examples, is_shuffled=True)
        try:
            theirs = ran(self.step, inputs, seed=number)
        except Exception:
            if not number:
                raise
            before.put_back()
            inputs = self._inputs(number, examples, is_shuffled=False)
            theirs = ran(self.step, inputs, seed=number)
        if time.perf_counter() - started > _LONG_S:
            torch.set_num_threads(self.threads)
        return inputs, theirs

    def _inputs(
        self, number: int, examples: Mapping[str, Tensor], *, is_shuffled: bool
    ) -> dict[str, Tensor]:
        """Draw inputs like the examples.

        The first step gets the examples themselves, and so does a graph that holds only for the values
        read from them.
        """
        if not number or self.joint.reads:
            return dict(examples)
        others = Others(number, is_shuffled=is_shuffled)
        return {name: others.tensor(tensor) for name, tensor in examples.items()}

    def _move(self, state: Arrays, generator: torch.Generator) -> None:
        """Move the parameters as another step might, equally on both sides."""
        parameters = dict(self.step.module.named_parameters())
        with torch.no_grad():
            for name in self.joint.parameters:
                value = moved(parameters[name], generator)
                parameters[name].copy_(value)
                state[name] = array_of(value).copy()

    def _check_leaves(self, theirs: Ran) -> None:
        """Raise OtherStep where the loss trains a tensor that is not the module's.

        Such a tensor is a parameter, or received a gradient in an earlier step too.
        """
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
