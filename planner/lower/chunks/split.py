"""Write regions that run in chunks of rows into a model.

Each node of a region (`planner.lower.chunks.regions`) becomes one node for each chunk. A Slice for each
chunk cuts inputs from outside the region. A Concat under the old name joins outputs that other nodes read
whole. Partial results are added up in order, in a product by its C:

    x[rows] → op → y[rows]        x → Slice → op__chunk0 → y__rows0 ┐
                                  x → Slice → op__chunk1 → y__rows1 ┴ Concat → y

Node by node the rewritten graph computes the same as the old one, whatever lies between the nodes of a
region: nodes outside of it read whole values, and nodes in it read chunks or whole values.

New nodes carry the unique attribute, which keeps common-subexpression elimination from merging two of
them, and names such as `op__chunk3`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from planner.lower.chunks.chunked_model import ChunkedModel, Split
from planner.lower.chunks.regions import Ground, Region
from planner.lower.chunks.rows import Way
from planner.lower.chunks.stages import Place
from planner.onnxio.load import ValueType

_SUMMING = frozenset({"FusedMatMul", "Gemm", "MatMul"})
"""Products that a Gemm can compute, which adds its input C."""

_GEMM_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

_GEMM_ATTRIBUTES = ("alpha", "transA", "transB")

_SHAPED = frozenset({"Flatten", "Reshape", "Squeeze"})
"""Views that become a Reshape to a constant shape, which differs between chunks."""


def with_split(ground: Ground, regions: Sequence[Region], order: Sequence[str]) -> Split:
    """Run regions in chunks.

    Args:
        ground: the model, which is not changed.
        regions: regions of it, without common nodes.
        order: names of its nodes, in a topological order.
    """
    model = ChunkedModel(ground, order)
    for region in regions:
        _RegionWriter(model, region).write()
    return model.done()


class _RegionWriter:
    """Writes the chunks of one region."""

    def __init__(self, to: ChunkedModel, region: Region) -> None:
        self.to = to
        self.region = region
        self.count = region.seed.chunks
        self.place = to.keys.of(region)
        self.mine = sorted(region.ways, key=to.keys.step.__getitem__)
        self.chunks: dict[tuple[str, int], ir.Value] = {}
        self.slices: dict[tuple[str, int, int], ir.Value] = {}
        self.whole: dict[str, ir.Value] = {}
        self.last: dict[str, Place] = {}

    def write(self) -> None:
        to = self.to
        made = [v for name in self.mine for v in to.old[name].outputs if v.name]
        for value in made:
            if self._is_wanted(value):
                name = str(value.name)
                self.whole[name] = to.named(name, to.types[name], value)
        for name in self.mine:
            way = self.region.ways[name]
            node = to.old[name]
            if way.is_partial:
                self._add_up(node, way)
            else:
                for chunk in range(self.count):
                    self._chunk(node, way, chunk)
        for name, whole in self.whole.items():
            if name in self.region.cuts:
                self._put_together(name, whole)
        self._hand_over(made)
        for name in self.mine:
            to.drop(name)

    def _is_wanted(self, value: ir.Value) -> bool:
        """Tell whether anything reads the whole value."""
        if value.is_graph_output():
            return True
        for use in value.uses():
            way = self.region.ways.get(str(use.node.name))
            if way is None or way.inputs[use.idx] is None or value.name not in self.region.cuts:
                return True
        return False

    def _hand_over(self, made: Sequence[ir.Value]) -> None:
        """Give graph outputs and readers outside of the region the joined values."""
        outputs = self.to.model.graph.outputs
        for value in made:
            whole = self.whole.get(str(value.name))
            if whole is None:
                continue
            for use in list(value.uses()):
                if str(use.node.name) not in self.region.ways:
                    use.node.replace_input_with(use.idx, whole)
            for i, output in enumerate(outputs):
                if output is value:
                    outputs[i] = whole

    def _kind(self, name: str, axis: int | None, chunk: int) -> ValueType:
        """Return the type of a chunk of a value, or of the value."""
        kind = self.to.types[name]
        if axis is None:
            return kind
        first, behind = self.region.stretch(chunk, kind.shape[axis])
        shape = (*kind.shape[:axis], behind - first, *kind.shape[axis + 1 :])
        return ValueType(dtype=kind.dtype, shape=shape)

    def _inputs(self, node: ir.Node, way: Way, chunk: int) -> list[ir.Value | None]:
        place = self.place(str(node.name), chunk)
        found: list[ir.Value | None] = []
        for value, axis in zip(node.inputs, way.inputs, strict=True):
            if value is None or axis is None:
                whole = None if value is None else self.whole.get(str(value.name))
                found.append(value if whole is None else whole)
            else:
                found.append(self._part(value, axis, chunk, place))
        return found

    def _part(self, value: ir.Value, axis: int, chunk: int, place: Place) -> ir.Value:
        """Return the chunk's rows of a value."""
        name = str(value.name)
        if name in self.region.cuts:
            return self.chunks[name, chunk]
        key = (name, axis, chunk)
        if key not in self.slices:
            self.slices[key] = self._slice(value, axis, chunk, place)
        return self.slices[key]

    def _slice(self, value: ir.Value, axis: int, chunk: int, place: Place) -> ir.Value:
        to, name = self.to, str(value.name)
        value = self.whole.get(name, value)
        first, behind = self.region.stretch(chunk, to.types[name].shape[axis])
        wish = f"{name}__rows{chunk}"
        if to.ground.is_small_constant(name):
            constant = value.const_value
            assert constant is not None
            index = (slice(None),) * axis + (slice(first, behind),)
            return to.constant(wish, np.ascontiguousarray(constant.numpy()[index]))
        made = to.value(wish, self._kind(name, axis, chunk), value)
        # Slices by int64 that share an input become a Split, whose chunks exist all at once
        # (core/optimizer/gather_fusion.cc, GatherSliceToSplitFusion)
        numbers = (to.integers((n,), "int32") for n in (first, behind, axis))
        node = ir.Node("", "Slice", [value, *numbers], outputs=[made])
        to.add(node, f"{made.name}__slice", of=name, place=place.before())
        return made

    def _chunk(self, node: ir.Node, way: Way, chunk: int) -> None:
        """Write one chunk of a node whose outputs are cut."""
        to = self.to
        outputs: list[ir.Value] = []
        for value, axis in zip(node.outputs, way.outputs, strict=True):
            name = str(value.name or "")
            if not name:
                outputs.append(ir.Value(name=""))
                continue
            made = to.value(f"{name}__rows{chunk}", self._kind(name, axis, chunk), value)
            self.chunks[name, chunk] = made
            outputs.append(made)
        self._node(node, self._inputs(node, way, chunk), outputs, chunk)

    def _node(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        chunk: int,
        as_gemm: bool = False,
    ) -> None:
        """Write a node that does another node's work on a chunk."""
        to = self.to
        op_type, domain, version = node.op_type, node.domain, node.version
        attributes = list(node.attributes.values())
        inputs = list(inputs)
        shape = to.types[str(outputs[0].name)].shape
        if op_type in _SHAPED and (op_type != "Squeeze" or len(inputs) < 2):
            op_type, attributes = "Reshape", []
            inputs = [inputs[0], to.integers(shape)]
        elif op_type == "Expand":
            inputs[1] = to.integers(shape)
        elif as_gemm:
            op_type, domain, version = "Gemm", "", None
            attributes = [a for a in attributes if a.name in _GEMM_ATTRIBUTES]
        made = ir.Node(
            domain,
            op_type,
            inputs,
            attributes=attributes,
            overload=node.overload,
            outputs=list(outputs),
            version=version,
        )
        name = str(node.name)
        to.add(made, f"{name}__chunk{chunk}", of=name, place=self.place(name, chunk))

    def _add_up(self, node: ir.Node, way: Way) -> None:
        """Write the chunks of a node whose results are partial, and their sum."""
        value = node.outputs[0]
        total: ir.Value | None = None
        for chunk in range(self.count):
            inputs = self._inputs(node, way, chunk)
            if total is not None and self._adds_up_itself(node):
                made = self._sum(value, chunk)
                self._node(node, [*inputs[:2], total], [made], chunk, as_gemm=True)
                total = made
                continue
            kind = self.to.types[str(value.name)]
            # the first chunk, and any node that cannot add to the total itself
            part = self.to.value(f"{value.name}__part{chunk}", kind, value)
            self._node(node, inputs, [part], chunk)
            if way.is_mean:
                part = self._weighted(node, way, part, chunk)
            total = part if total is None else self._added(node, total, part, chunk)

    def _adds_up_itself(self, node: ir.Node) -> bool:
        kinds = [self.to.types[str(v.name)] for v in node.inputs[:2] if v is not None]
        return (
            node.op_type in _SUMMING
            and all(len(kind.shape) == 2 for kind in kinds)
            and kinds[0].dtype in _GEMM_DTYPES
        )

    def _sum(self, value: ir.Value, chunk: int) -> ir.Value:
        """Return the value for the sum up to a chunk; for the last chunk, the node's output itself."""
        name = str(value.name)
        if chunk == self.count - 1 and name in self.whole:
            return self.whole[name]
        return self.to.value(f"{name}__sum{chunk}", self.to.types[name], value)

    def _added(self, node: ir.Node, total: ir.Value, part: ir.Value, chunk: int) -> ir.Value:
        made = self._sum(node.outputs[0], chunk)
        place = self.place(str(node.name), chunk).behind()
        name = str(node.outputs[0].name)
        adding = ir.Node("", "Add", [total, part], outputs=[made])
        self.to.add(adding, f"{name}__sum{chunk}__node", of=str(node.name), place=place)
        return made

    def _weighted(self, node: ir.Node, way: Way, part: ir.Value, chunk: int) -> ir.Value:
        """Write the product of a chunk's mean and its share of the rows."""
        axis, read = way.inputs[0], node.inputs[0]
        assert axis is not None and read is not None
        rows = self.to.types[str(read.name)].shape[axis]
        first, behind = self.region.stretch(chunk, rows)
        kind = self.to.types[str(part.name)]
        share = np.array((behind - first) / rows, dtype=kind.dtype.numpy())
        weight = self.to.constant(f"{part.name}__share", share)
        made = self.to.value(f"{part.name}__weighted", kind, node.outputs[0])
        place = self.place(str(node.name), chunk).behind()
        scaling = ir.Node("", "Mul", [part, weight], outputs=[made])
        self.to.add(scaling, f"{made.name}__node", of=str(node.name), place=place)
        return made

    def _put_together(self, name: str, whole: ir.Value) -> None:
        parts = [self.chunks[name, chunk] for chunk in range(self.count)]
        axis = ir.AttrInt64("axis", self.region.cuts[name])
        node = ir.Node("", "Concat", parts, attributes=[axis], outputs=[whole])
        maker = self.to.ground.producer[name]
        place = self.place(maker, self.count - 1).behind()
        self.to.add(node, f"{name}__together", of=name, place=place)
