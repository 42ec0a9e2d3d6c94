"""Types of a model's values, with upper bounds for sizes that the model leaves open.

Sizes that depend on data (`NonZero`, `Unique`, a `Range` to a computed end, a loop's collected
values) are open until a model runs. The request's bounds apply first (`planner.request.bounding`).
Sizes still open are taken from one run of the model, and the plan says that. Bounds propagate: a
size inferred from a bounded shape is a bound, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from planner.errors import ModelError, PlannerError, UsageError
from planner.files.reading import closest
from planner.onnxio.bodies import has_bodies
from planner.onnxio.kinds import bits_of
from planner.onnxio.load import (
    LoadedModel,
    OpenShapeError,
    ValueType,
    inferred_types,
    open_dims,
    value_types,
)
from planner.request import Request
from planner.request.bounding import UpperBound
from planner.runtime.memory.within import INNER_KEY, bytes_within, constant_bytes
from planner.runtime.optimizers.normalize import Normalized
from planner.runtime.optimizers.shapes import runtime_types
from planner.runtime.options import Level, Opening
from planner.runtime.profile import NodeEvent
from planner.units import counted

_SHOWN = 3


@dataclass(slots=True)
class _Run:
    """Results of one run of a model.

    They are shapes by value (for a sequence, its bytes), and bytes held by bodies, by node.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inner: dict[str, int] = field(default_factory=dict)
    source: str = ""


class Sizes:
    """Types of the values of a file, and of the models that ONNX Runtime's optimizers make of it.

    Attributes:
        bounds: of values with open shapes, by name.
        inner: bytes that a node's bodies are assumed to hold if their sizes are open, by node.
        shown: names in both whose bounds come from a run.
    """

    def __init__(self, loaded: LoadedModel, request: Request) -> None:
        self.loaded = loaded
        self.request = request
        self.bounds: dict[str, ValueType] = {}
        self.inner: dict[str, int] = {}
        self.shown: list[str] = []
        self._source = ""

    def of(self, model: ir.Model) -> dict[str, ValueType]:
        """Return the types of a model's values.

        Raises:
            OpenShapeError: the size of one is open, and no bound says how large it may be.
        """
        dims = self.loaded.dims
        known = None if model is self.loaded.model else self.certain
        return value_types(
            model, dims, known=known, fallback=runtime_types, bounds=self._bounds_in(model)
        )

    @cached_property
    def certain(self) -> dict[str, ValueType]:
        """Types of the file's own values; fusions keep the names of their results."""
        model = self.loaded.model
        return {
            name: ValueType(dtype=dtype, shape=shape)
            for name, (dtype, shape) in inferred_types(
                model, self.loaded.dims, self._bounds_in(model)
            ).items()
            if dtype is not None and shape is not None
        }

    def infer_now(self) -> None:
        """Infer the types of the file's values early, while the caller waits for something else.

        With bounds in the request this does nothing, because they change the types later.
        """
        if not self.request.bounds:
            _ = self.certain

    def settled(self, found: Normalized, level: Level, *, may_run: bool) -> dict[str, ValueType]:
        """Return the types of the values of the graph to plan, with bounds for open sizes.

        Args:
            found: the optimizers' result at `level`. Nodes with bodies of open sizes get their
                bound as metadata.
            may_run: whether the file may be run here to measure sizes.

        Raises:
            ModelError: a size is open, and no run shows it.
            UsageError: a bound names nothing in the model, or a size that is not open.
        """
        model = found.model
        self._take(model, *([found.first] if found.first is not None else []))
        run: _Run | None = None
        try:
            types = self.of(model)
        except OpenShapeError as error:
            if not may_run:
                raise
            run = self._run(found, level, error)
            self._show(model, error.names, run)
            types = self.of(model)
        self._settle_bodies(found, level, types, run if may_run else None, may_run=may_run)
        return types

    def notes(self) -> list[str]:
        """Return notes on the bounds, for every report."""
        notes: list[str] = []
        asked = [n for n in (*self.bounds, *self.inner) if n not in self.shown]
        if asked:
            notes.append(
                f"{counted(len(asked), 'size')} that depend on data are bounded (--bound: "
                f"{_first(asked)}): bytes of these tensors, and of tensors computed from them, "
                "are upper bounds"
            )
        if self.shown:
            notes.append(
                f"{counted(len(self.shown), 'size')} that depend on data ({_first(self.shown)}) are "
                f"those of one run ({self._source}); a run in which one is larger needs more memory "
                "than planned: give bounds with --bound"
            )
        return notes

    # -- what was asked ----------------------------------------------------------------------

    def _take(self, *models: ir.Model) -> None:
        """Convert the request's bounds to types; they may name values of the file, too."""
        asked = [b for b in self.request.bounds if b.name not in self.bounds]
        if not asked:
            return
        known = open_dims(self.loaded.model, self.loaded.dims)
        for model in models:
            known |= open_dims(model, self.loaded.dims)
        nodes = {str(n.name): n for model in models for n in model.graph if has_bodies(n)}
        for bound in asked:
            if bound.name in nodes and bound.name not in known:
                self._take_inner(bound, nodes[bound.name])
            else:
                self._take_shape(bound, known)
        self.__dict__.pop("certain", None)

    def _take_inner(self, bound: UpperBound, node: ir.Node) -> None:
        if bound.size_bytes is None:
            raise UsageError(
                f"--bound {bound.name}: for what the bodies of a node ({node.op_type}) hold, give bytes, "
                f"as --bound '{bound.name}=64MB'"
            )
        self.inner[bound.name] = bound.size_bytes

    def _take_shape(self, bound: UpperBound, known: Mapping[str, tuple[object, object]]) -> None:
        if bound.name not in known:
            near = closest(bound.name, list(known), "is", most=1, cutoff=0.6)
            raise UsageError(f"--bound {bound.name}: the model has no tensor of that name{near}")
        dtype, dims = known[bound.name]
        assert dims is None or isinstance(dims, tuple)
        if dims is not None and None not in dims:
            shape = "x".join(map(str, dims)) or "a scalar's"
            raise UsageError(
                f"--bound {bound.name}: its shape is known, {shape}; there is nothing to bound"
            )
        if not isinstance(dtype, ir.DataType):
            raise UsageError(f"--bound {bound.name}: its element type is not known")
        shape = bound.shape_of(dims, bits_of(dtype), f"tensor {bound.name!r}")
        self.bounds[bound.name] = ValueType(dtype=dtype, shape=shape)

    def _bounds_in(self, model: ir.Model) -> dict[str, ValueType]:
        made = {str(v.name) for node in model.graph for v in node.outputs}
        return {name: kind for name, kind in self.bounds.items() if name in made}

    # -- what a run shows --------------------------------------------------------------------

    def _run(self, found: Normalized, level: Level, why: ModelError) -> _Run:
        """Run the file once, with its inputs."""
        from planner.runtime.feeds.inputs import make_inputs
        from planner.runtime.profiled import profile

        loaded, request = self.loaded, self.request
        first = found.first or found.model
        nodes = {str(node.name): node for node in first.graph}
        try:
            feeds, source = make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)
            (events,) = profile(loaded.path, feeds, Opening(level=level), names=nodes.keys())
        except PlannerError as error:
            raise ModelError(f"{why}; a run of the model did not show it ({error})") from error
        run = _Run(source=source)
        kinds = open_dims(first, loaded.dims).items()
        sequences = {name for name, (dtype, _) in kinds if dtype == ir.DataType.UNDEFINED}
        seen = {str(node.name): event for node, event in _matched(nodes, events)}
        for name, node in nodes.items():
            if name not in seen:
                continue
            event = seen[name]
            made = [str(v.name) for v in node.outputs if v.name]
            outputs = [value for value in made if value not in sequences]
            if len(outputs) == len(event.output_shapes):
                run.shapes.update(zip(outputs, event.output_shapes, strict=True))
            if event.in_use_delta is not None and len(outputs) < len(made):
                # the difference excludes items shared with input sequences
                read = (str(v.name) for v in node.inputs if v is not None and v.name in sequences)
                shared = sum(run.shapes.get(value, (0,))[0] for value in read)
                size = max(0, event.in_use_delta) + shared
                run.shapes.update((value, (size,)) for value in made if value in sequences)
            if event.inner_requested is not None:
                before = (event.requested_in_use or 0) - (event.requested_delta or 0)
                run.inner[str(node.name)] = max(0, event.inner_requested - before)
        return run

    def _show(self, model: ir.Model, names: frozenset[str], run: _Run) -> None:
        """Bound open sizes by those of a run."""
        self._source = run.source
        dtypes = {n: dtype for n, (dtype, _) in open_dims(model, self.loaded.dims).items()}
        for node in model.graph:
            for name in (str(v.name) for v in node.outputs if v.name in names):
                dtype, shape = dtypes.get(name), run.shapes.get(name)
                if dtype is not None and shape is not None and name not in self.bounds:
                    self.bounds[name] = ValueType(dtype=dtype, shape=shape)
                    self.shown.append(name)
        self.__dict__.pop("certain", None)

    def _settle_bodies(
        self,
        found: Normalized,
        level: Level,
        types: Mapping[str, ValueType],
        run: _Run | None,
        *,
        may_run: bool,
    ) -> None:
        """Write bounds for bodies of open sizes into their nodes' metadata."""
        from planner.runtime.memory.within import OpenBodyError

        opset = dict(found.model.graph.opset_imports)
        for node in (n for n in found.model.graph if has_bodies(n)):
            name = str(node.name)
            if name not in self.inner:
                if bytes_within(node, types, opset, found.model.ir_version) is not None:
                    continue
                if not may_run:
                    raise OpenBodyError(node)
                run = run or self._run(found, level, OpenBodyError(node))
                if name not in run.inner:
                    raise OpenBodyError(node)
                self._source = run.source
                self.inner[name] = run.inner[name] + constant_bytes(node)
                self.shown.append(name)
            node.metadata_props[INNER_KEY] = str(self.inner[name])


def _matched(
    nodes: Mapping[str, ir.Node], events: Sequence[NodeEvent]
) -> Iterator[tuple[ir.Node, NodeEvent]]:
    """Match nodes of a graph with their events.

    Nodes match by name. An unnamed node matches if it is the only one left of its operator.
    """
    yield from ((nodes[e.name], e) for e in events if e.name in nodes)
    seen = {e.name for e in events}
    left: dict[str, list[ir.Node]] = {}
    for name, node in nodes.items():
        if name not in seen:
            left.setdefault(node.op_type, []).append(node)
    for op_type, unseen in left.items():
        strange = [e for e in events if e.name not in nodes and e.op_type == op_type]
        if len(unseen) == len(strange) == 1:
            yield unseen[0], strange[0]


def _first(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:_SHOWN])
    return f"{listed}, …" if len(names) > _SHOWN else listed
