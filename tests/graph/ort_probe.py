"""Measure what one operator's kernel does with its buffers: the judge of `planner.graph.rules`.

Each measurement is a model of one operator, reuse and memory pattern off, optimizations off:

    workspace  the operator alone between feeds and graph outputs: what the peak of bytes in use
               exceeds the bytes in use when it has returned
    in place   one input comes from a node (a kernel never writes over a feed) and has no later
               reader: the operator's `requested_delta` lacks the bytes of an output
    view       the same, but the input has a later reader: only a view still allocates nothing

Where a build records no memory, the least arena of each of these models says the same
(`measure_under_caps`): it grows by the input's bytes unless the two share a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from planner.files.temporary import temporary_folder
from planner.runtime.memory.arena import RESERVED_LIMIT
from planner.runtime.memory.bfc import ROUNDING, round_up
from planner.runtime.options import Opening
from planner.runtime.profile import NodeEvent, create_session, read_profile, run_session
from tests.graph.least_arena import Sized, fit_arenas, least_arenas

Array = npt.NDArray[Any]
_COARSE_BYTES = 2048  # enough to tell whether a buffer of several KiB is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator to measure.

    Attributes:
        inputs: arrays in the node's order; None for an absent optional input.
        constants: indices of inputs that are initializers rather than feeds.
        outputs: number of outputs.
        output_shapes: for kernels that take the shape of an output from its static type.
    """

    op_type: str
    inputs: tuple[Array | None, ...]
    domain: str = ""
    opset: int = 21
    outputs: int = 1
    output_shapes: tuple[tuple[int, ...], ...] = ()
    constants: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was seen.

    Attributes:
        views, inplace: (input, output) pairs that share a buffer: always, or when the input dies.
        not_inplace: pairs of equal shape and element size that do not.
        output_bytes: bytes of all outputs.
        workspace_bytes: the kernel's temporary bytes, rounded up by the arena.
        aliased_bytes: of outputs that share the buffer of an input that is a feed; only measured
            under caps.
    """

    views: tuple[tuple[int, int], ...]
    inplace: tuple[tuple[int, int], ...]
    not_inplace: tuple[tuple[int, int], ...]
    output_bytes: int
    workspace_bytes: int
    aliased_bytes: int = 0


def measure(case: Case) -> Measured:
    """Run the operator and read the memory events.

    Raises:
        ModelError: no kernel. LookupError: ONNX Runtime expands the operator into others.
    """
    event, results = _run(case, None, keep=False)
    views, inplace, not_inplace = [], [], []
    sizes = [r.nbytes for r in results]
    for index, source in enumerate(case.inputs):
        if source is None or index in case.constants or not _producer(source):
            continue
        targets = [k for k, r in enumerate(results) if r.nbytes == source.nbytes]
        if not targets:
            continue
        alone = _run(case, index, keep=False)[0].requested_delta or 0
        shared = _run(case, index, keep=True)[0].requested_delta or 0
        if sum(sizes) - shared == source.nbytes:
            views.append((index, targets[0]))
        elif sum(sizes) - alone == source.nbytes:
            inplace.append((index, targets[0]))
        else:
            not_inplace.extend((index, k) for k in targets if results[k].shape == source.shape)
    return Measured(
        views=tuple(views),
        inplace=tuple(inplace),
        not_inplace=tuple(not_inplace),
        output_bytes=sum(sizes),
        workspace_bytes=(event.in_use_peak or 0) - (event.in_use or 0),
    )


def measure_under_caps(cases: Sequence[Case]) -> list[Measured]:
    """The same as `measure`, from the least arena of each model; in batches, in another process.

    Raises:
        ModelError: no kernel, by the operator's name.
    """
    results = [_run(case, None, keep=False)[1] for case in cases]
    largest = max(sum(r.nbytes for r in found) for found in results)
    largest += max(sum(a.nbytes for a in c.inputs if a is not None) for c in cases)
    with temporary_folder() as folder:

        def least(*, keep: bool, granularity_bytes: int) -> tuple[int, ...]:
            return least_arenas(
                [_saved(folder, case, None, keep=keep) for case in cases],
                most_bytes=4 * largest,
                guesses=[sum(round_up(r.nbytes) for r in found) for found in results],
                granularity_bytes=granularity_bytes,
            )

        alone = least(keep=False, granularity_bytes=ROUNDING)
        base = least(keep=True, granularity_bytes=_COARSE_BYTES)
        keys = [
            (number, index, keep)
            for number, case in enumerate(cases)
            for index in _candidates(case, results[number])
            for keep in (False, True)
        ]
        caps = [base[n] + _array(cases[n], index).nbytes // 2 for n, index, _ in keys]
        models = [_saved(folder, cases[n], index, keep=keep) for n, index, keep in keys]
        shares = dict(zip(keys, fit_arenas(models, caps), strict=True))
    return [
        _from_caps(case, results[n], alone[n], base[n], lambda *key, n=n: shares[n, *key])
        for n, case in enumerate(cases)
    ]


def _saved(folder: Path, case: Case, produced: int | None, *, keep: bool) -> Sized:
    """Save a case's model under a name of its own; return it with its feeds."""
    model, feeds = _model(case, produced, keep=keep)
    path = folder / f"{sum(1 for _ in folder.iterdir())}.onnx"
    ir.save(model, path)
    return path, feeds


def _array(case: Case, index: int) -> Array:
    array = case.inputs[index]
    assert array is not None
    return array


def _candidates(case: Case, results: Sequence[Array]) -> list[int]:
    """Inputs that some output could be written over."""
    sizes = {r.nbytes for r in results}
    return [
        index
        for index, source in enumerate(case.inputs)
        if source is not None
        and index not in case.constants
        and _producer(source)
        and source.nbytes in sizes
        and source.nbytes > 2 * _COARSE_BYTES
    ]


def _from_caps(
    case: Case,
    results: Sequence[Array],
    alone: int,
    base: int,
    shares: Callable[[int, bool], bool],
) -> Measured:
    """Make one case's answer.

    Args:
        alone: the least arena of the operator between feeds and graph outputs.
        base: the least arena where its outputs are no graph outputs.
        shares: whether an output takes an input's buffer; whether where the input has a later reader.
    """
    views, inplace, not_inplace = [], [], []
    for index in _candidates(case, results):
        source = _array(case, index)
        targets = [k for k, r in enumerate(results) if r.nbytes == source.nbytes]
        # counts of elements take a few hundred bytes too
        if shares(index, True):
            views.append((index, targets[0]))
        elif shares(index, False):
            inplace.append((index, targets[0]))
        else:
            not_inplace.extend((index, k) for k in targets if results[k].shape == source.shape)
    small = [case.inputs[i] for i in case.constants]
    kept = [round_up(a.nbytes) for a in small if a is not None and a.nbytes <= RESERVED_LIMIT]
    own = sum(round_up(r.nbytes) for r in results)
    return Measured(
        views=tuple(views),
        inplace=tuple(inplace),
        not_inplace=tuple(not_inplace),
        output_bytes=sum(r.nbytes for r in results),
        workspace_bytes=max(0, alone - own - sum(kept)),
        aliased_bytes=max(0, alone - base),
    )


def _producer(array: Array) -> str | None:
    if array.dtype == np.bool_:
        return "Not"
    return "Neg" if array.dtype in (np.float32, np.float64, np.int32, np.int64) else None


def _run(case: Case, produced: int | None, *, keep: bool) -> tuple[NodeEvent, list[Array]]:
    """The operator's event, and its outputs where `produced` is None.

    Args:
        produced: the input that a node of its own produces; the operator's outputs then are read
            by nodes and are not graph outputs.
        keep: that input has a reader after the operator.
    """
    model, feeds = _model(case, produced, keep=keep)
    with temporary_folder() as folder:
        path = folder / "probe.onnx"
        ir.save(model, path)
        options = Opening(level="disabled", threads=1).options(profile_prefix=path.with_suffix(""))
        options.enable_mem_pattern = False
        options.enable_mem_reuse = False
        session = create_session(path, options)
        results = run_session(session, feeds)
        (events,) = read_profile(Path(session.end_profiling()))
    event = next((e for e in events if e.name == "probed"), None)
    if event is None:
        raise LookupError(f"ONNX Runtime runs {case.op_type} as other operators")
    return event, [np.asarray(r) for r in results] if produced is None else []


def single_model(case: Case, *, sized: bool = False) -> tuple[ir.Model, dict[str, Array]]:
    """The operator alone between graph inputs `x0`, `x1`, ... and outputs `y0`, ..., and its feeds.

    Args:
        sized: the graph's outputs are the sizes of the operator's, which then may share buffers.
    """
    return _model(case, None, keep=sized)


def _model(case: Case, produced: int | None, *, keep: bool) -> tuple[ir.Model, dict[str, Array]]:
    bare = produced is None and not keep  # the outputs are graph outputs
    feeds: dict[str, Array] = {}
    graph_inputs: list[ir.Value] = []
    initializers: list[ir.Value] = []
    node_inputs: list[ir.Value | None] = []
    before: list[ir.Node] = []
    after: list[ir.Node] = []
    outputs: list[ir.Value] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            node_inputs.append(None)
            continue
        dtype = ir.DataType.from_numpy(array.dtype)
        value = ir.Value(name=f"x{index}", shape=ir.Shape(array.shape), type=ir.TensorType(dtype))
        if index in case.constants:
            value.const_value = ir.tensor(array, name=value.name)
            initializers.append(value)
        else:
            graph_inputs.append(value)
            feeds[f"x{index}"] = np.array(array)  # a kernel may write over it
        if index == produced:
            negate = ir.node(str(_producer(array)), [value], name="producer")
            feeds[f"x{index}"] = ~array if array.dtype == np.bool_ else -array
            negate.outputs[0].shape, negate.outputs[0].type = value.shape, value.type
            value = negate.outputs[0]
            value.name = "produced"
            # first in the file: the default order runs this leaf last
            if keep:
                outputs.append(_reader(value, before, initializers))
            before.append(negate)
        node_inputs.append(value)
    probed = ir.node(
        case.op_type,
        node_inputs,
        case.attributes,
        domain=case.domain,
        num_outputs=case.outputs,
        name="probed",
    )
    for index, value in enumerate(probed.outputs):
        value.name = f"y{index}"
        if index < len(case.output_shapes):
            value.shape = ir.Shape(case.output_shapes[index])
            value.type = ir.TensorType(ir.DataType.FLOAT)
        outputs.append(value if bare else _size(value, f"size{index}", after))
    nodes = _topological(before, probed, after)
    imports = {"": case.opset}
    if case.domain:
        imports[case.domain] = 1
    graph = ir.Graph(
        graph_inputs,
        outputs,
        nodes=nodes,
        initializers=initializers,
        opset_imports=imports,
        name="probe",
    )
    return ir.Model(graph, ir_version=10), feeds


def _reader(value: ir.Value, into: list[ir.Node], initializers: list[ir.Value]) -> ir.Value:
    """A late reader with a small result; not Size, which builds with training move forward."""
    rank = value.shape.rank() if value.shape is not None else 1
    if not rank:
        return _size(value, "later", into)
    first = ir.Value(
        name="first",
        shape=ir.Shape([]),
        type=ir.TensorType(ir.DataType.INT64),
        const_value=ir.tensor(0, dtype=ir.DataType.INT64, name="first"),
    )
    initializers.append(first)
    into.append(ir.node("Gather", [value, first], name="later_node"))
    result = into[-1].outputs[0]
    result.name, result.type = "later", value.type
    return result


def _size(value: ir.Value, name: str, into: list[ir.Node]) -> ir.Value:
    node = ir.node("Size", [value], name=f"{name}_node")
    into.append(node)
    result = node.outputs[0]
    result.name = name
    result.type = ir.TensorType(ir.DataType.INT64)
    result.shape = ir.Shape([])
    return result


def _topological(
    before: Sequence[ir.Node], probed: ir.Node, after: Sequence[ir.Node]
) -> list[ir.Node]:
    makers = [n for n in before if n.name == "producer"]
    later = [n for n in before if n.name != "producer"]
    return [*makers, *later, probed, *after]
