"""A random graph, how it is planned, and what it is fed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.fuzz.builder import DTYPES, FLOATS, WITHIN, Builder, NothingFits, Value
from tests.fuzz.operators import TEMPLATES

OPSET = 20
MAX_TEMPLATES = 14


@dataclass(frozen=True, slots=True)
class Mode:
    """How a graph is planned."""

    swap: str = "auto"
    ort_optimize: bool = True
    order: str = "default"
    resident: str = "device"

    @property
    def packed(self) -> bool:
        """Whether constant weights may be packed: they are none where they live on the host."""
        return self.resident != "host"

    @property
    def level(self) -> str:
        """The optimization level whose graph is planned: what the original is run at."""
        return "all" if self.ort_optimize else "disabled"


@dataclass(frozen=True, slots=True)
class Case:
    """A graph and its mode.

    Attributes:
        dims: of its symbolic dims.
        traits: what it has in it, for the statistics.
    """

    model: onnx.ModelProto
    mode: Mode
    dims: Mapping[str, int] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()


_CHOICES = [name for name, (_, weight) in TEMPLATES.items() for _ in range(weight)]


def draw_case(rng: random.Random, most_templates: int = MAX_TEMPLATES) -> Case:
    """A case whose every choice comes from `rng`."""
    b = Builder(rng, odd_names=rng.randrange(5) == 0)
    if b.odd_names:
        b.traits.add("names like planner's")
    b.input(T.FLOAT, (8, 16))
    if b.chance(2):
        b.input(b.choose((T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT64)), b.shape())
    functions: list[onnx.FunctionProto] = []
    for _ in range(rng.randint(2, most_templates)):
        name = b.choose(_CHOICES)
        with contextlib.suppress(NothingFits):
            TEMPLATES[name][0](b)
            b.traits.add(name)
        if b.chance(25):
            _call(b, functions)
        if b.chance(40):
            _branch(b)
    return _finished(b, functions)


def _mode(b: Builder) -> Mode:
    return Mode(
        swap=b.choose(("auto", "auto", "none", "none", "only")),
        ort_optimize=not b.chance(4),
        order="priority" if b.chance(6) else "default",
        resident=b.choose(("device", "device", "host", "auto")),
    )


def _finished(b: Builder, functions: list[onnx.FunctionProto]) -> Case:
    outputs = _outputs(b)
    dims: dict[str, int] = {}
    inputs = [_declared(b, v, dims) for v in b.inputs]
    inputs += [h.make_tensor_value_info(v.name, v.dtype, v.shape) for v in b.overridable]
    infos = []
    for value in outputs:
        shape: list[int | str] | None = list(value.shape)
        if b.chance(8):
            shape = None
            b.traits.add("output of no shape")
        elif value.shape and b.chance(8):
            shape = ["M", *value.shape[1:]]
            b.traits.add("output of a symbolic shape")
        if value in b.overridable:  # one tensor is declared one way
            shape = list(value.shape)
        infos.append(h.make_tensor_value_info(value.name, value.dtype, shape))
    imports = [h.make_opsetid("", OPSET)]
    imports += [h.make_opsetid(d, v) for d, v in sorted(b.domains.items())]
    graph = h.make_graph(b.nodes, "fuzz", inputs, infos, b.initializers)
    model = h.make_model(graph, opset_imports=imports, ir_version=9, functions=functions)
    unknown_to_onnx = functions or "optional left out" in b.traits  # its inference fails there
    if b.chance(3) and not unknown_to_onnx:
        model = onnx.shape_inference.infer_shapes(model)
        b.traits.add("value_info")
    if b.chance(10):
        model.metadata_props.add(key="owner", value="someone")
    return Case(model, _mode(b), dims, frozenset(b.traits))


def _outputs(b: Builder) -> list[Value]:
    """What nobody reads, most of it; some values that are read; now and then an input or constant."""
    read = {name for node in b.nodes for name in node.input}
    made = {name for node in b.nodes for name in node.output}
    nodes_made = [v for v in b.values if v.name in made]
    found = [v for v in nodes_made if v.name not in read and not b.chance(20)]
    if b.chance(2):
        found += [b.choose(nodes_made)]
        b.traits.add("output that is read")
    if b.chance(15):
        found.append(b.choose(b.inputs))
        b.traits.add("input that is an output")
    if b.chance(25) and b.initializers:
        constant = b.choose(b.initializers)
        found.append(Value(constant.name, constant.data_type, tuple(constant.dims)))
        b.traits.add("initializer that is an output")
    unique = list({v.name: v for v in found if v.dtype != T.BOOL or b.chance(2)}.values())
    b.rng.shuffle(unique)
    return unique or [nodes_made[-1]]


def _declared(b: Builder, value: Value, dims: dict[str, int]) -> onnx.ValueInfoProto:
    """The input, its first dim a symbol at times."""
    shape: list[int | str] = list(value.shape)
    if shape and shape[0] == 8 and b.chance(4):
        shape[0] = "N"
        dims["N"] = 8
        b.traits.add("symbolic dim")
    return h.make_tensor_value_info(value.name, value.dtype, shape)


def _call(b: Builder, functions: list[onnx.FunctionProto]) -> None:
    """Call a function of the model's own, which calls another one at times."""
    b.traits.add("function")
    domain = "my.blocks"
    if not functions:
        inner = h.make_function(
            domain, "Swish", ["x"], ["y"],
            [h.make_node("Sigmoid", ["x"], ["s"], name="inner"),
             h.make_node("Mul", ["x", "s"], ["y"])],
            [h.make_opsetid("", OPSET)],
        )  # fmt: skip
        leaky = h.make_node("LeakyRelu", ["z"], ["w"])
        leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        outer = h.make_function(
            domain, "Block", ["a", "b"], ["w", "z"],
            [h.make_node("Swish", ["a"], ["s"], domain=domain),
             h.make_node("Add", ["s", "b"], ["z"]), leaky],
            [h.make_opsetid("", OPSET), h.make_opsetid(domain, 1)], ["slope"],
        )  # fmt: skip
        functions.extend((inner, outer))
    x = b.pick((T.FLOAT,))
    if b.chance(2):
        b.op("Swish", [x], (x.dtype, x.shape), domain=domain)
    else:
        y = b.pick((T.FLOAT,), shape=x.shape)
        b.op("Block", [x, y], *[(x.dtype, x.shape)] * 2, domain=domain, slope=0.2)


def _branch(b: Builder) -> None:
    """An If whose condition is a constant (ONNX Runtime puts the branch in its place) or computed."""
    b.traits.add("control flow")
    x = b.pick((T.FLOAT,))
    bodies = []
    for name in ("then", "else"):
        result = h.make_tensor_value_info(f"{name}_y", x.dtype, x.shape)
        op = "Neg" if name == "then" else "Abs"
        node = h.make_node(op, [x.name], [f"{name}_y"], name=f"{WITHIN}{name}")
        bodies.append(h.make_graph([node], name, [], [result]))
    if b.chance(2):
        condition = b.const(np.array(True), kind="initializer")
    else:
        total = b.op("ReduceSum", [x], (x.dtype, ()), keepdims=0)[0]
        condition = b.op("IsNaN", [total], (T.BOOL, ()))[0]
    b.op("If", [condition], (x.dtype, x.shape), then_branch=bodies[0], else_branch=bodies[1])


def feeds_of(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the inputs that are no initializers."""
    constants = {i.name for i in case.model.graph.initializer}
    found: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(seed)
    for value in case.model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = [case.dims[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
        dtype = DTYPES[kind.elem_type]
        if kind.elem_type in (*FLOATS, T.FLOAT16):
            found[value.name] = np.asarray(rng.standard_normal(shape) * 0.5, dtype)
        else:
            found[value.name] = np.asarray(rng.integers(0, 2, shape), dtype)
    return found
