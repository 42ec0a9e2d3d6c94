"""Compare the graph that ONNX Runtime's optimizers return with the file that it was made from.

A plan is made on the optimized graph (`planner.runtime.optimizers.normalize`). Verification of the
rewritten model compares its numbers with the original's anyway. Without verification, this module
compares one run of each instead:

    the graph, as it is         with a session of the file at the level that made the graph: bit for bit,
                                or at least within the tolerance
    the graph, as it is         with a session of the file without any optimization: fusions change last
                                bits, and the tolerance applies

The first comparison checks planner, which reads the graph and puts initializers back: where it fails,
nothing may be written. The second checks ONNX Runtime itself: any session of the file has the same
numbers, and a difference is only reported.

A model that cannot run here is compared by its content, and the outcome says that. So is a model with
long steps where the user wants no run at all (`--no-calibrate`). Where steps are long, the second
comparison is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from google.protobuf.message import EncodeError

from planner.choices import RELATIVE
from planner.errors import ModelError, UsageError, VerificationError
from planner.graph.effects import SHARED_GENERATOR, Effect
from planner.graph.model import OpId, TrainingGraph
from planner.runtime.inmemory import ModelInMemory
from planner.runtime.judge.compare import compare
from planner.runtime.judge.draws import drawn_outputs
from planner.runtime.optimizers.written import as_left, with_own, written_inputs
from planner.runtime.options import Level, Opening, Order, default_threads
from planner.runtime.profiled import Profiled
from planner.runtime.timing import available_bytes
from planner.units import format_duration

Array = npt.NDArray[Any]

_TIMES_PEAK = 4
"""The most bytes of a session, in live peaks: arenas, packed weights, results kept for the
comparison."""

_TIME_LIMIT_S = 120.0

_LONG_US = 1e6
"""The step time from which on a step counts as long, and runs once for each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedFile:
    """A file, and the graph that the optimizers made from it.

    Attributes:
        original: the checked model of the file at `path`.
        model: the graph that is planned.
        graph: its analysis; order: the order in which it runs here; peak_bytes: its live peak.
        level: level of the optimizations that made it.
        step_us: predicted time of a step, in microseconds.
        no_runs: whether long runs are unwanted.
        seed: of the sessions' random numbers.
        opened: a session of the file with that seed, which may be run in place of a new one, and is
            then released.
    """

    path: Path
    original: ir.Model
    model: ir.Model
    graph: TrainingGraph
    order: Sequence[OpId]
    peak_bytes: int
    level: Level = "all"
    step_us: float = 0.0
    no_runs: bool = False
    seed: int = 0
    opened: Profiled | None = None

    @property
    def is_long(self) -> bool:
        """Whether a step takes long."""
        return self.step_us > _LONG_US


def same_numbers(subject: OptimizedFile, make_feeds: Callable[[], Mapping[str, Array]]) -> str:
    """Compare, and return one sentence on what was compared and how.

    Args:
        make_feeds: makes inputs; called only for a run.

    Raises:
        VerificationError: the graph computes other numbers than the file.
    """
    free = available_bytes()
    if free is not None and _TIMES_PEAK * subject.peak_bytes > free:
        return _unrun(subject, "a run may take more memory than this machine has free")
    if subject.no_runs and subject.is_long:
        step = format_duration(subject.step_us)
        return _unrun(
            subject, f"--no-calibrate allows no run, and a step is predicted to take {step}"
        )
    try:
        feeds = make_feeds()
        graph = ModelInMemory(data=_in_order(subject), folder=subject.path.parent)
        file = ModelInMemory(data=subject.path.read_bytes(), folder=subject.path.parent)
        ours = _run(subject, graph, feeds, "disabled", order="priority")
        theirs = _run(subject, file, feeds, subject.level)
        if subject.opened is not None:
            subject.opened.drop()  # with its memory: another session follows
    except (ModelError, UsageError, EncodeError, ValueError, OSError) as error:
        return _unrun(subject, f"it could not be run here ({str(error).splitlines()[0]})")
    drawn = drawn_outputs(subject.graph)
    names = [name for name in theirs if name not in drawn]
    compared = {n: compare(n, theirs[n], ours.get(n, np.zeros(0))) for n in names}
    far = [name for name, found in compared.items() if not found.is_near]
    if far:
        found = compared[far[0]]
        raise VerificationError(
            f"the graph that ONNX Runtime's optimizers made of {subject.path} computes something else: "
            f"output {far[0]!r} differs from the file's by {found.max_abs_diff:.3g} at most "
            f"({found.max_rel_diff:.3g} relative); plan the graph as it is with --no-ort-optimize"
        )
    same = all(found.identical for found in compared.values())
    said = (
        "the graph that ONNX Runtime's optimizers made was compared with the file by numbers, on one "
        f"run of seeded inputs: {len(names)} of {len(theirs)} results are "
        + ("the same bits as" if same else "within rounding of those of")
        + " in a session of the file"
    )
    if drawn:
        said += "; the others depend on random numbers without a seed and were not compared"
    return said + _without_optimizations(subject, file, feeds, ours)


def _without_optimizations(
    subject: OptimizedFile,
    file: ModelInMemory,
    feeds: Mapping[str, Array],
    ours: Mapping[str, Array],
) -> str:
    """Compare the graph with the file without any optimization; return the rest of a sentence.

    Return "" where a step takes long.
    """
    if subject.is_long:
        return ""
    random = drawn_outputs(subject.graph, SHARED_GENERATOR)
    try:
        plain = _run(subject, file, feeds, "disabled")
    except ModelError:
        return "; without optimizations the file does not run here"
    names = [n for n in plain if n not in random]
    far = [n for n in names if not compare(n, plain[n], ours.get(n, np.zeros(0))).is_near]
    if far:
        return (
            f"; ONNX Runtime's own optimizations change {len(far)} of them, first {far[0]!r}, by more "
            f"than {_tolerance()} against a session without any"
        )
    return f", and within {_tolerance()} of one without optimizations"


def _tolerance() -> str:
    return f"{RELATIVE['float32']:g} of the largest element ({RELATIVE['float16']:g} in half precision)"


def _in_order(subject: OptimizedFile) -> bytes:
    """Return the graph as a serialized file with its nodes in the order of execution."""
    proto = ir.to_proto(subject.model)
    place = {subject.graph.operations[op].name: i for i, op in enumerate(subject.order)}
    nodes = sorted(proto.graph.node, key=lambda node: place[node.name])
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto.SerializeToString()


def _run(
    subject: OptimizedFile,
    model: ModelInMemory,
    feeds: Mapping[str, Array],
    level: Level,
    *,
    order: Order = "default",
) -> dict[str, Array]:
    """Return the outputs of one run, and the inputs that it wrote over."""
    racing = any(op.effect is Effect.ANY_ORDER for op in subject.graph.operations)
    threads = 1 if racing else default_threads()
    written = written_inputs(subject.graph)
    own = with_own(feeds, written)
    opening, opened = Opening(level=level, order=order, threads=threads), subject.opened
    if opened is not None and opened.opening == opening:
        results = opened.run(own, time_limit_s=_TIME_LIMIT_S)
    else:
        results = model.run(own, opening=opening, seed=subject.seed, time_limit_s=_TIME_LIMIT_S)
    copies = {name: np.array(array) for name, array in results.items()}
    return {**copies, **as_left(own, written, list(results))}


def _unrun(subject: OptimizedFile, why: str) -> str:
    """Return a comparison of the models' contents, without a run."""
    nodes = list(subject.model.graph)
    original = {_key(node) for node in subject.original.graph}
    kept = sum(_key(node) in original for node in nodes)
    before, after = subject.original.graph.initializers, subject.model.graph.initializers
    shared = [n for n in after if n in before]
    same = sum(after[n].const_value is before[n].const_value for n in shared)
    return (
        "the graph that ONNX Runtime's optimizers made was not compared with the file by numbers: "
        f"{why}; {kept} of its {len(nodes)} nodes are the file's own, by operator, attributes and what "
        f"they read and write, and {same} of the {len(shared)} initializers that it shares with the "
        "file are unchanged; the rest is as the optimizers left it"
    )


def _key(node: ir.Node) -> tuple[object, ...]:
    """Return a key that is equal for two nodes that compute the same from the same names."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    attributes = sorted((name, _text(a)) for name, a in node.attributes.items())
    return domain, node.op_type, _names(node.inputs), _names(node.outputs), tuple(attributes)


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return (
            f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(tensor.tobytes()).hexdigest()}"
        )
    return str(attribute.value)


def _names(values: Sequence[ir.Value | None]) -> tuple[str, ...]:
    return tuple("" if v is None else str(v.name or "") for v in values)
