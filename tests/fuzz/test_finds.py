"""Each find of the fuzzer, as a graph small enough to read; all properties are asked of it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest

from planner.pipeline.prepare.prepared import prepare
from planner.request import Request
from tests.fuzz import properties
from tests.fuzz.cases import Case, Mode, feeds_of
from tests.fuzz.onnx_runtime import run
from tests.fuzz.properties import check_case

_HEAD = '<ir_version: 9, opset_import: ["" : 20{imports}]>\n'


def _model(text: str, imports: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(_HEAD.format(imports=imports) + text)
    for i, node in enumerate(model.graph.node):
        node.name = node.name or f"n{i}"
    return model


def _holds(
    model: onnx.ModelProto,
    folder: Path,
    mode: Mode | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    plans: int = 1,
    twice: bool = True,
) -> None:
    case = Case(model, mode or Mode(), dims or {})
    outcome = check_case(case, folder, twice=twice, verify=True)
    assert outcome.findings == []
    assert outcome.refusal == ""
    assert outcome.counts["planned"] >= plans


def _holds_in_each_order(
    model: onnx.ModelProto,
    folder: Path,
    mode: Mode,
    dims: Mapping[str, int] | None = None,
    *,
    twice: bool = True,
) -> None:
    """The rewritten model is planned again in the first order alone."""
    for order in ("default", "priority"):
        (folder / order).mkdir()
        mode = replace(mode, order=order)
        _holds(model, folder / order, mode, dims, twice=twice and order == "default")


CHAIN = """
  h1 = Tanh(v) h2 = Sin(h1) h3 = Tanh(h2) h4 = Sin(h3) h5 = Cos(h4)
  g5 = Mul(h5, h4) g4 = Mul(g5, h3) g3 = Mul(g4, h2) g2 = Mul(g3, h1) out = Mul(g2, v)
"""
"""From `v` to `out`: what a backward pass reads, so that there is something to plan."""

COMPUTED_SHAPE = f"""
g (float[N, 16] x, float[16, 16] w) => (float[M, 16] y, float[K, 16] out) {{
  v = MatMul(x, w)
  s = Shape(v)
  {CHAIN}
  a = Sigmoid(g5)
  r = Reshape(a, s)
  y = Softmax(r)
}}
"""


@pytest.mark.parametrize("swap", ["none", "only", "auto"])
def test_what_a_view_reads_besides_its_source_runs_before_its_readers(
    tmp_path: Path, swap: str
) -> None:
    _holds(_model(COMPUTED_SHAPE), tmp_path, Mode(swap=swap), {"N": 8})


def test_a_node_that_takes_over_the_output_of_an_identity_keeps_its_place(tmp_path: Path) -> None:
    """The order of the original, and so its peak, was predicted wrongly."""
    text = """
    g (float[8, 16] x, float[16, 16] w) => (float[16, 16] i, float[8, 16] t) {
      c = Neg(w)
      m = MatMul(c, c)
      h = Tanh(m)
      i = Identity(h)
      t = Tanh(x)
    }
    """
    model, path = _model(text), tmp_path / "model.onnx"
    onnx.save(model, path)
    prepared = prepare(Request(model=path))
    order = tuple(prepared.baseline.graph.operations[op].name for op in prepared.baseline.order)
    ran = run(path, feeds_of(Case(model, Mode())), level="all").order
    assert order == ran


def test_nodes_of_an_inlined_function_run_where_onnx_runtime_puts_them(tmp_path: Path) -> None:
    text = """
    g (float[8, 16] x, float[8, 16] u) => (float[8, 16] y, float[8, 16] z) {
      y = my.blocks.Gate(x, u)
      a = Exp(u)
      z = Div(x, a)
    }
    <domain: "my.blocks", opset_import: ["" : 20]>
    Gate (p, q) => (r) {
      s = Sin(p)
      t = Mul(s, q)
      r = Softmax(t)
    }
    """
    model, path = _model(text, ', "my.blocks" : 1'), tmp_path / "model.onnx"
    onnx.save(model, path)
    prepared = prepare(Request(model=path))
    ops = prepared.baseline.graph.operations
    order = [ops[op].op_type for op in prepared.baseline.order]
    by_name = {ops[op].name: ops[op].op_type for op in prepared.baseline.order}
    ran = run(path, feeds_of(Case(model, Mode())), level="all").order
    kinds = {"n1": "Exp", "n2": "Div"} | by_name
    assert order[: len(ran)] == [kinds.get(n, n.rsplit("_", 1)[0]) for n in ran]


CONSTANT_NODES = f"""
g (float[8, 16] x) => (float[8, 16] out) {{
  k = Constant <value = float[4] {{1,2,3,4}}> ()
  l = Concat <axis = 0> (k, k, k, k)
  v = Mul(x, l)
  {CHAIN}
}}
"""


@pytest.mark.parametrize("order", ["default", "priority"])
def test_constant_nodes_are_no_steps_of_a_plan_on_the_graph_as_it_is(
    tmp_path: Path, order: str
) -> None:
    _holds(_model(CONSTANT_NODES), tmp_path, Mode(ort_optimize=False, order=order))


QUANTIZED = f"""
g (float[8, 16] x) => (float[8, 16] out, float[8, 16] y, float[8, 16] z)
<float s = {{0.05}}, uint8 o = {{128}}>
{{
  a = Tanh(x)
  q = QuantizeLinear(a, s, o)
  d = DequantizeLinear(q, s, o)
  v = Sin(d)
  {CHAIN}
  y = Mul(g3, d)
  z = CumSum(d, axis)
}}
"""


@pytest.mark.parametrize("swap", ["none", "only"])
@pytest.mark.parametrize("optimized", [True, False])
def test_each_reader_of_a_dequantize_has_its_own(
    tmp_path: Path, swap: str, optimized: bool
) -> None:
    """ONNX Runtime copied the node for each reader that the plan added, an anchor among them."""
    model = _model(QUANTIZED)
    model.graph.initializer.append(onnx.helper.make_tensor("axis", onnx.TensorProto.INT64, [], [1]))
    _holds(model, tmp_path, Mode(swap=swap, ort_optimize=optimized))


def test_an_output_that_is_an_input_may_leave_out_its_shape(tmp_path: Path) -> None:
    text = """
    g (float[N, 16] x) => (float[M, 16] x, float[N, 16] y) {
      a = Tanh(x) b = Sin(a) y = Mul(a, b)
    }
    """
    model = _model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    outcome = check_case(Case(model, Mode(), {"N": 8}), tmp_path)
    assert (outcome.findings, outcome.refusal) == ([], "")


def test_a_convolution_whose_weight_is_a_constant_node_is_planned_in_blocks(
    tmp_path: Path,
) -> None:
    text = """
    g (float[2, 16, 8, 8] x, float[2, 16, 8, 8] u) => (float[2, 16, 8, 8] y) {
      k = ConstantOfShape <value = float[1] {0.5}> (dims)
      c = Conv(x, k)
      r = Relu(c)
      t = Tanh(r)
      y = Mul(t, u)
    }
    """
    model = _model(text)
    dims = onnx.helper.make_tensor("dims", onnx.TensorProto.INT64, [4], [16, 16, 1, 1])
    model.graph.initializer.append(dims)
    outcome = check_case(Case(model, Mode()), tmp_path)
    assert (outcome.findings, outcome.refusal) == ([], "")


def test_the_least_budget_that_is_named_has_a_plan_though_anchors_take_bytes(
    tmp_path: Path,
) -> None:
    text = """
    g (float[8, 16] x, float[8, 4] w) => (float[8, 16] y, float[16] z, float[8, 4] v) {
      a = Tanh(x)
      b = Sigmoid(a)
      y = Mul(a, b)
      z = ReduceMax <keepdims = 0> (b, axes)
      v = Tanh(w)
    }
    """
    model = _model(text)
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])
    model.graph.initializer.append(axes)
    for swap in ("none", "only", "auto"):
        folder = tmp_path / swap
        folder.mkdir()
        outcome = check_case(Case(model, Mode(swap=swap, ort_optimize=False)), folder)
        assert (outcome.findings, outcome.refusal) == ([], "")


def test_copies_of_a_symbolic_tensor_have_no_bound_shape(tmp_path: Path) -> None:
    """A Shape behind such a copy was folded, and the file held for one size alone."""
    text = """
    g (float[N, 16] x, float[16, 16] w) => (float[M, 16] y, float[K, 16] out) {
      v = MatMul(x, w)
      CHAIN
      m = MatMul(h1, w)
      s = Shape(m)
      e = Expand(one, s)
      y = Add(g2, e)
    }
    """
    model = _model(text.replace("CHAIN", CHAIN))
    model.graph.initializer.append(onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1]))
    _holds(model, tmp_path, Mode(swap="only"), {"N": 8})
    planned = tmp_path / "planned_0.onnx"
    other = feeds_of(Case(model, Mode(), {"N": 5}))
    before, after = (run(p, other, level="all") for p in (tmp_path / "model.onnx", planned))
    assert all((before.outputs[n] == after.outputs[n]).all() for n in before.outputs)


def test_a_file_with_simplified_layer_norms_can_be_planned_again(tmp_path: Path) -> None:
    text = """
    g (float[8, 16] x, float[16] k) => (float[8, 16] out)
    <float two = {2}, float eps = {0.00001}>
    {
      p = Pow(x, two)
      m = ReduceMean(p, axes)
      e = Add(m, eps)
      r = Sqrt(e)
      d = Div(x, r)
      v = Mul(d, scale)
      CHAIN
    }
    """
    model = _model(text.replace("CHAIN", CHAIN))
    ones = onnx.helper.make_tensor("scale", onnx.TensorProto.FLOAT, [16], [1.0] * 16)
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [-1])
    model.graph.initializer.extend([ones, axes])
    _holds(model, tmp_path)
    kinds = {n.op_type for n in onnx.load(tmp_path / "planned_0.onnx").graph.node}
    assert "SimplifiedLayerNormalization" in kinds


def test_an_initializer_that_is_an_output_is_copied_by_each_run(tmp_path: Path) -> None:
    """The copy was not counted: the rewritten model failed under its cap."""
    text = f"""
    g (float[8, 16] x) => (float[8, 16] out, float[128, 64] zeros) {{
      v = Sin(x)
      {CHAIN}
      zeros = ConstantOfShape <value = float[1] {{0.5}}> (dims)
    }}
    """
    model = _model(text)
    dims = onnx.helper.make_tensor("dims", onnx.TensorProto.INT64, [2], [128, 64])
    model.graph.initializer.append(dims)
    _holds(model, tmp_path, Mode(swap="none"))


def test_a_copy_that_onnx_runtime_makes_has_no_place_in_the_file(tmp_path: Path) -> None:
    """`n1/duplicated` was taken for `n1`, which reads the same."""
    text = f"""
    g (float[8, 16] x) => (float[8, 16] out, float[8, 16] late)
    <float s = {{0.05}}, uint8 o = {{128}}>
    {{
      q = QuantizeLinear(x, s, o)
      v = DequantizeLinear(q, s, o)
      {CHAIN}
      late = Exp(x)
    }}
    """
    model, path = _model(text), tmp_path / "model.onnx"
    onnx.save(model, path)
    prepared = prepare(Request(model=path))
    order = tuple(prepared.baseline.graph.operations[op].name for op in prepared.baseline.order)
    assert order == run(path, feeds_of(Case(model, Mode())), level="all").order


def test_dequantized_tensors_of_one_reader_are_put_right_without_an_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nothing fits its arena, whatever the time; and what the clock ends is not the same twice
    monkeypatch.setattr(properties, "TIME_LIMIT_S", 3.0)
    text = f"""
    g (float[8, 16] x, float[16, 16] k) => (float[8, 16] out, float[8, 16] late)
    <float s = {{0.05}}, uint8 o = {{128}}>
    {{
      a = Flatten(x)
      b = Tanh(a)
      q = QuantizeLinear(b, s, o)
      d = DequantizeLinear(q, s, o)
      r = QuantizeLinear(k, s, o)
      e = DequantizeLinear(r, s, o)
      v = MatMul(d, e)
      {CHAIN}
      p = QuantizeLinear(g5, s, o)
      f = DequantizeLinear(p, s, o)
      h = Sigmoid(f)
      late = Mul(f, h)
    }}
    """
    mode = Mode(swap="none", ort_optimize=False)
    _holds_in_each_order(_model(text), tmp_path, mode, twice=False)


@pytest.mark.parametrize(
    "reader",
    [
        "z = LogSoftmax(mean)",
        "w, z, u = BatchNormalization <training_mode = 1> (y, scale, bias, mean, var)",
    ],
)
def test_a_running_statistic_that_is_read_elsewhere_is_refused(reader: str, tmp_path: Path) -> None:
    """Training-mode BatchNormalization writes over it, and nothing says who comes first: neither who
    reads it nor who writes the next statistic over it."""
    text = f"""
    g (float[8, 16] x, float[16] mean, float[16] var) => (float[8, 16] y, float[16] z)
    {{
      y, m, v = BatchNormalization <training_mode = 1> (x, scale, bias, mean, var)
      {reader}
    }}
    """
    model = _model(text)
    for name in ("scale", "bias"):
        ones = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [16], [1.0] * 16)
        model.graph.initializer.append(ones)
    outcome = check_case(Case(model, Mode()), tmp_path)
    assert outcome.findings == []
    assert "'mean' is written over by node 'n0'" in outcome.refusal


def test_pools_that_are_laid_out_anew_are_planned(tmp_path: Path) -> None:
    text = f"""
    g (float[2, 16, 8, 8] x) => (float[2, 16, 8, 8] out) {{
      v = Sin(x)
      {CHAIN}
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (g5)
      q = Exp(p)
    }}
    """
    model = _model(text)
    model.graph.output.append(onnx.helper.make_tensor_value_info("q", 1, [2, 16, 4, 4]))
    outcome = check_case(Case(model, Mode()), tmp_path)
    assert (outcome.findings, outcome.refusal) == ([], "")
    assert outcome.counts["planned"]


def test_casts_that_are_put_in_run_first(tmp_path: Path) -> None:
    text = """
    g (float16[8, 16] h, float[8, 16] x) => (float16[8, 16] y, float[8, 16] z) {
      a = Add(h, h)
      y = Mul(a, h)
      b = Tanh(x)
      z = Mul(b, x)
    }
    """
    model, path = _model(text), tmp_path / "model.onnx"
    onnx.save(model, path)
    prepared = prepare(Request(model=path, ort_optimize=False))
    order = tuple(prepared.baseline.graph.operations[op].name for op in prepared.baseline.order)
    ran = run(path, feeds_of(Case(model, Mode())), level="disabled").order

    def bare(name: str) -> str:  # planner has names of its own for what is put in
        return name.removeprefix("Cast:").removeprefix("InsertedPrecisionFreeCast_")

    assert [*map(bare, order)] == [*map(bare, ran)]


def test_a_node_whose_copies_are_taken_away_runs_once(tmp_path: Path) -> None:
    """Dropout at inference stays as long as it reads a graph input; a copy behind a barrier does not."""
    text = f"""
    g (float[64, 16] x, float ratio) => (float[64, 16] out)
    <float ratio = {{0.3}}, bool off = {{0}}>
    {{
      v = Dropout(x, ratio, off)
      {CHAIN}
    }}
    """
    _holds_in_each_order(_model(text), tmp_path, Mode(swap="none"))


@pytest.mark.parametrize("order", ["default", "priority"])
def test_the_shape_of_a_swapped_tensor_stays_as_unknown_as_it_was(
    tmp_path: Path, order: str
) -> None:
    """With the shape that it has for once, ONNX Runtime folds the Shape behind it."""
    text = f"""
    g (float[32, 16] x, int64[1] start, int64[1] axis) => (float[L, 16] out, int64[2] shape)
    <int64[1] start = {{0}}, int64[1] stop = {{24}}, int64[1] axis = {{0}}>
    {{
      v = Slice(x, start, stop, axis)
      {CHAIN}
      shape = Shape(h1)
    }}
    """
    _holds(_model(text), tmp_path, Mode(swap="only", order=order))


def test_random_numbers_are_drawn_in_the_order_of_the_original(tmp_path: Path) -> None:
    """Training-mode Dropouts without a seed share one generator; inlining puts them another way."""
    text = f"""
    g (float[8, 16] x, float[8, 16] w) => (float[8, 16] y, float[8, 16] z, float[8, 16] out,
       float[8, 16] u)
    <float ratio = {{0.3}}, bool on = {{1}}>
    {{
      p = Dropout(x, ratio, on)
      y = Ceil(p)
      s = my.blocks.Swish(w)
      v = Add(s, x)
      {CHAIN}
      l = LogSoftmax(v)
      u = Dropout(v, ratio, on)
      z = Dropout(l, ratio, on)
    }}
    <domain: "my.blocks", opset_import: ["" : 20]>
    Swish (a) => (b) {{ c = Sigmoid(a) b = Mul(a, c) }}
    """
    _holds(_model(text, ', "my.blocks" : 1'), tmp_path)


def test_a_log_softmax_of_doubles_has_a_buffer_of_its_own(tmp_path: Path) -> None:
    """Its kernel for single precision computes in place."""
    text = """
    g (double[8, 16] x) => (double[8, 16] out) {
      h1 = Tanh(x) h2 = Sin(h1) h3 = Tanh(h2) h4 = Sin(h3)
      t = Exp(h4) l = LogSoftmax(t) r = ReduceSum(l)
      g4 = Mul(r, h4) g3 = Mul(g4, h3) g2 = Mul(g3, h2) out = Mul(g2, h1)
    }
    """
    _holds(_model(text), tmp_path, Mode(swap="none"))


def test_what_reads_through_a_barrier_that_is_taken_away_runs_once(tmp_path: Path) -> None:
    """A Transpose is moved behind the reshape that a barrier is."""
    text = f"""
    g (double[8, 16] x, double[16, 8] w, double[8] b, float[N, 16] z)
      => (double[M, 8] out, double[8, 8] u, float[N, 16] y)
    {{
      m = MatMul(x, w)
      a = Add(m, b)
      k = Relu(a)
      v = Transpose <perm = [1, 0]> (k)
      {CHAIN}
      u = Add(g5, b)
      y = Cos(z)
    }}
    """
    _holds_in_each_order(_model(text), tmp_path, Mode(swap="none"), {"N": 4})


def test_a_plan_on_the_graph_as_it_is_loads_where_products_are_fused(tmp_path: Path) -> None:
    """The mark of a recomputed activation would be an attribute that a FusedGemm does not know."""
    text = f"""
    g (float[16, 8] x, float[16, 8] w) => (float[8, 8] out) {{
      m = Gemm <transA = 1> (x, w)
      v = Relu(m)
      {CHAIN}
    }}
    """
    _holds(_model(text), tmp_path, Mode(swap="none", ort_optimize=False))


def test_what_only_a_second_pass_would_fuse_is_not_fused(tmp_path: Path) -> None:
    """Gelu once the product that reads `d` as well has taken the division in: other last bits than
    the original's, in which it is not fused."""
    text = f"""
    g (float[16, 16] v, float[16, 16] u) => (float[16, 16] out, float[16, 16] y, float[16, 16] z)
    <float root = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}>
    {{
      x = MatMul(v, u)
      d = Div(x, root)
      e = Erf(d)
      f = Add(e, one)
      m = Mul(x, f)
      y = Mul(m, half)
      w = MatMul(d, d)
      z = Relu(w)
      {CHAIN}
    }}
    """
    _holds_in_each_order(_model(text), tmp_path, Mode(swap="none"))


@pytest.mark.parametrize("order", ["default", "priority"])
def test_nothing_is_in_place_where_an_overridable_initializer_hides_the_shape(
    order: str, tmp_path: Path
) -> None:
    """What `axes` holds is known as the session runs: so is the rank of all that follows."""
    text = f"""
    g (float[16, 16] v, int64[1] axes) => (float[16, 16] out, float[16, 16] y)
    <int64[1] axes = {{0}}, int64[3] wide = {{8, 16, 16}}>
    {{
      a = Unsqueeze(v, axes)
      b = Expand(a, wide)
      d = Relu(b)
      y = ReduceSum <keepdims = 0> (d, axes)
      {CHAIN}
    }}
    """
    _holds(_model(text), tmp_path, Mode(swap="only", ort_optimize=False, order=order))


def test_a_product_that_only_a_copy_would_fuse_is_not_fused(tmp_path: Path) -> None:
    """ONNX Runtime names what such a fusion adds as it did in the original, and does not load."""
    text = """
    g (float[2, 4, 16] x, float[16, 16] w, float[16, 16] u, float[16] bias)
    => (float[2, 4, 16] out, float[2, 4, 16] y, float[2, 4, 16] z)
    {
      v = MatMul(x, w)
      h1 = Tanh(v) h2 = Sin(h1) h3 = Tanh(h2) h4 = Sin(h3) h5 = Cos(h4)
      p = MatMul(h1, u)
      q = Add(p, bias)
      g5 = Mul(h5, h4) g4 = Mul(g5, h3) g3 = Mul(g4, h2) out = Mul(g3, h1)
      y = Cos(q)
      z = Add(v, bias)
    }
    """
    _holds_in_each_order(_model(text), tmp_path, Mode(swap="none"))


def test_an_output_that_a_second_run_makes_again_was_never_absent(tmp_path: Path) -> None:
    """The mean stays to the end; the layer norm runs again for its first output."""
    text = """
    g (float[16, 16] x, float[16] s, float[16] b) => (float[16, 16] out, float[16, 1] mean)
    {
      v, mean = LayerNormalization <axis = 1> (x, s, b)
      h1 = Tanh(v) h2 = Sin(h1) h3 = Tanh(h2) h4 = Sin(h3) h5 = Cos(h4)
      g5 = Mul(h5, h4) g4 = Mul(g5, h3) g3 = Mul(g4, h2) g2 = Mul(g3, h1) out = Mul(g2, v)
    }
    """
    _holds_in_each_order(_model(text), tmp_path, Mode(swap="none"))


def test_no_quantizers_are_put_in_behind_a_plan(tmp_path: Path) -> None:
    """ONNX Runtime moves DequantizeLinear on past a Transpose, with a pair of its own, where a plan
    makes room for that."""
    text = f"""
    g (float[16, 16] x) => (float[16, 16] out, float[16, 16] t)
    <float s = {{0.05}}, int8 zero = {{0}}, float[16, 16] w = {{{", ".join(["0.1"] * 256)}}}>
    {{
      a = QuantizeLinear(x, s, zero)
      b = DequantizeLinear(a, s, zero)
      c = QuantizeLinear(w, s, zero)
      d = DequantizeLinear(c, s, zero)
      p = MatMul(b, d)
      q = QuantizeLinear(p, s, zero)
      v = DequantizeLinear(q, s, zero)
      {CHAIN}
      t = Transpose(v)
    }}
    """
    _holds_in_each_order(_model(text), tmp_path, Mode())


def test_a_transpose_that_would_take_quantizers_along_stays(tmp_path: Path) -> None:
    """Of a value that comes back from the host, it is the only reader."""
    text = """
    g (float[2, 8, 8] x, float[1, 16, 8] w, float[1, 16, 4] r, float[3, 1, 1, 1] k, float s)
      => (float[4, 8, 1] d, float[M] flat, float[N, 2, 3, 8, 4] big)
    <float s = {0.05}, uint8 z = {128}, int64[1] one = {-1}, int64[5] to = {2, 2, 3, 8, 4}>
    {
      a, b, c = LSTM<hidden_size = 4>(x, w, r)
      flat = Reshape(b, one)
      u, v = my.blocks.Block(c, c)
      t = Transpose<perm = [2, 1, 0]>(v)
      q = QuantizeLinear(t, s, z)
      d = DequantizeLinear(q, s, z)
      f = Conv(a, k)
      e = Expand(f, to)
      big = Ceil(e)
    }
    <domain: "my.blocks", opset_import: ["" : 20]>
    Block (a, b) => (w, z) {
      h = Sigmoid(a)
      m = Mul(a, h)
      z = Add(m, b)
      w = LeakyRelu<alpha = 0.2>(z)
    }
    """
    _holds(_model(text, ', "my.blocks" : 1'), tmp_path, Mode(swap="only"))
