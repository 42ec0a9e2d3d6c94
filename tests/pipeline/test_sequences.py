"""Sequences and strings: planned around, their bytes never below those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from planner import apply, optimize
from planner.errors import VerificationError
from planner.graph.model import OPAQUE
from planner.results import OptimizeResult

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

LISTS = """g (float[64,512] X, int64 pos) => (float[64,512] y, int64 len, float[n,512] cc) {
    a = Sin(X) b = Sin(a) c = Sin(b) d = Sin(c)
    s = SequenceConstruct(a, b)
    s2 = SequenceInsert(s, c)
    e = SequenceErase(s2, pos)
    t = SequenceAt(s2, pos)
    sp = SplitToSequence<axis=0, keepdims=0>(d)
    len = SequenceLength(sp)
    cc = ConcatFromSequence<axis=0>(e)
    i = Identity(s2)
    u = SequenceAt(i, pos)
    v = Add(d, t) w = Add(v, u) w1 = Add(w, c) w2 = Add(w1, b) w3 = Add(w2, a)
    y = Relu(w3)
}"""

WORDS = """g (string[8192] X, string[8192] Y, float[8192] Z)
    => (string[8192] o, float[8192] f, float[8192] h) <string[1] k = {"foo"}> {
    z1 = Sin(Z) z2 = Sin(z1) z3 = Sin(z2)
    a = StringConcat(X, Y) b = StringConcat(a, Y) b0 = StringConcat(b, k)
    i = Identity(b0)
    o = StringConcat(i, X)
    bb = StringConcat(b, a)
    c = Equal(bb, X)
    cf = Cast<to=1>(c)
    f0 = Add(cf, z3) f1 = Add(f0, z2) f = Add(f1, z1)
    h = Sin(z3)
}"""

COLLECTS = """g (float[64,512] X, int64 n, bool go) => (float[m,512] out, float[64,512] y) {
    s0 = SequenceEmpty()
    a = Sin(X) b = Sin(a)
    s = Loop(n, go, s0) <body = body (int64 i, bool c, seq(float[64,512]) q)
        => (bool c2, seq(float[64,512]) q2) { c2 = Identity(c) q2 = SequenceInsert(q, b) }>
    out = ConcatFromSequence<axis=0>(s)
    d = Sin(b) e = Add(d, a)
    y = Add(e, b)
}"""


def saved(text: str, folder: Path) -> Path:
    model = onnx.parser.parse_model(HEAD + text)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}_{node.op_type}"
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def looping(folder: Path, times: int) -> Path:
    path = folder / "feeds.npz"
    x = np.random.default_rng(0).random((64, 512), np.float32)
    np.savez(path, X=x, n=np.array(times), go=np.array(True))
    return path


def planned(path: Path, **more: Any) -> OptimizeResult:
    options: dict[str, Any] = {
        "swap": "none",
        "budget_of": "live",
        "time_limit_s": 1.0,
        **more,
    }
    plan = path.with_name("plan.json")
    return optimize(path, output=path.with_name("planned.onnx"), plan_path=plan, **options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (LISTS, {"budget": "90%"}),
        (LISTS, {"budget": "75%", "swap": "only"}),
        (WORDS, {"budget": "95%", "verify": "thorough"}),
        (WORDS, {"budget": "92%", "swap": "auto", "copies": "overlapped"}),
    ],
)
def test_planned_around_and_verified(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = saved(text, tmp_path)
    result = planned(path, **options)
    found = result.verification
    assert found is not None and found.passed and all(o.identical for o in found.outputs)
    assert result.after.timeline.peak_bytes < result.before.timeline.peak_bytes
    for check in found.memory:  # of strings, too, predictions are what the runtime counts
        held = [(b <= a if text is LISTS else b == a) for _, a, b in check.per_node]
        assert held and (all(held) or check.how == "replayed"), check
    before, after = (onnx.load(p).graph.node for p in (path, tmp_path / "planned.onnx"))
    names = [node.name for node in after]
    assert len(names) > len(before) or names != [node.name for node in before]
    opaque = {t.name for t in result.before.graph.tensors if t.dtype in OPAQUE}
    made = [name for node in after for name in node.output]
    assert all(made.count(name) == 1 for name in opaque if name in made)
    copies = (node for node in after if node.op_type.startswith(("Memcpy", "Swap")))
    assert not any(opaque & {*node.input} for node in copies)
    assert any(word in a for a in result.plan.assumptions for word in ("of strings", "sequence(s)"))
    apply(path, tmp_path / "plan.json", output=tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "planned.onnx").read_bytes()


def test_a_loop_that_collects_is_as_a_run_showed_it(tmp_path: Path) -> None:
    path = saved(COLLECTS, tmp_path)
    result = planned(path, budget="99%", inputs=looping(tmp_path, 3))
    assert result.verification is not None and result.verification.passed
    shown = {bound.name: bound for bound in result.plan.bounds if bound.shown}
    assert {"s", "out"} <= shown.keys()
    assert (shown["s"].shape or (0,))[0] >= 3 * 64 * 512 * 4


def test_a_sequence_beyond_its_bound_is_no_plan(tmp_path: Path) -> None:
    path = saved(COLLECTS, tmp_path)
    bounds = {"s": "400kB", "out": "192x512", "n3_Loop": "1MB"}
    with pytest.raises(VerificationError, match=r"sequence 's' takes .* larger --bound"):
        planned(path, budget="99%", inputs=looping(tmp_path, 8), bounds=bounds)


def test_a_branch_that_does_not_run_may_have_no_shape(tmp_path: Path) -> None:
    """The size that is given is right for one branch."""
    text = """g (float[1,n] x, bool c) => (float[1,m] y) {
        a = Exp(x)
        y = If(c) <
            then_branch = t () => (float[1,m] p) { p = Mul(a, a) },
            else_branch = e () => (float[1,m] q) {
                axes = Constant<value_ints=[1]>()
                z = Squeeze(a, axes)
                q = Unsqueeze(z, axes)
            }>
    }"""
    path = saved(text, tmp_path)
    np.savez(tmp_path / "feeds.npz", x=np.ones((1, 4), np.float32), c=np.array(True))
    inputs = tmp_path / "feeds.npz"
    found = planned(path, budget="100%", dims={"n": 4}, inputs=inputs)
    assert found.verification is not None and found.verification.passed
