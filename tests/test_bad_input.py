"""Whatever is wrong with the input: one line that says what, the right exit code, nothing left."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import planner
from planner.cli.main import main
from tests.process import started
from tests.reliability.graphs import SIDE, diamond, info, node, proto, save

ZOO = Path(__file__).parents[1] / "models" / "zoo"
OK, INTERNAL, USAGE, MODEL, INFEASIBLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Each test runs in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def optimize(model: str, *options: str, budget: str = "60%") -> int:
    return main(["optimize", model, "--budget", budget, "--time-limit", "2", *options])


def only_line(capsys) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert "Traceback" not in said.err
    assert "bug in planner" not in said.err
    assert lines[0].startswith("planner: error: ")
    return lines[0]


def refused(model: onnx.ModelProto, capsys, *words: str) -> None:
    """`analyze` and `optimize` both refuse the model with exit code 3 and these words."""
    path = save(model)
    before = sorted(Path().iterdir())
    for command in (["analyze", path], ["optimize", path, "--budget", "60%"]):
        assert main(command) == MODEL
        line = only_line(capsys)
        for word in words:
            assert word in line, line
    assert sorted(Path().iterdir()) == before


def works(model: onnx.ModelProto, budget: str = "1GB", **options: Any) -> None:
    """The model is planned, and what is written passes its verification."""
    planned = "model.planned.onnx"
    made = planner.optimize(save(model), budget=budget, output=planned, time_limit_s=1.0, **options)
    assert made.verification is not None and made.verification.passed


# -- not a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"hello, world\n", b'{"ir_version": 9}', b"\xff" * 1000, b"PK\x03\x04zip", b"\n"],
)
def test_not_a_model(content, capsys):
    Path("model.onnx").write_bytes(content)
    assert optimize("model.onnx") == MODEL
    assert "model.onnx" in only_line(capsys)
    assert os.listdir() == ["model.onnx"]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.37, 0.5, 0.9, 0.999])
def test_a_truncated_model(share, capsys):
    whole = (ZOO / "gpt.onnx").read_bytes()
    Path("model.onnx").write_bytes(whole[: int(len(whole) * share)])
    assert optimize("model.onnx") == MODEL
    only_line(capsys)
    assert os.listdir() == ["model.onnx"]


@pytest.mark.parametrize("missing", range(1, 25))
def test_a_model_that_lacks_its_last_bytes(missing, capsys):
    whole = proto(diamond()).SerializeToString()
    Path("model.onnx").write_bytes(whole[:-missing])
    assert main(["analyze", "model.onnx"]) == MODEL
    only_line(capsys)


def test_a_model_that_does_not_exist(capsys):
    assert optimize("none.onnx") == USAGE
    assert "none.onnx" in only_line(capsys)


def test_a_folder_for_a_model(capsys):
    Path("folder.onnx").mkdir()
    assert optimize("folder.onnx") == USAGE
    assert "folder" in only_line(capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_model_that_may_not_be_read(capsys):
    Path(save(proto(diamond()))).chmod(0)
    assert optimize("model.onnx") in (USAGE, MODEL)
    only_line(capsys)


# -- external data -------------------------------------------------------------------------------


def external(**fields: str) -> onnx.ModelProto:
    weight = T(name="w", data_type=T.FLOAT, dims=[SIDE, SIDE], data_location=T.EXTERNAL)
    for key, value in {"location": "w.bin", **fields}.items():
        weight.external_data.add(key=key, value=value)
    return proto([node("MatMul", ["x", "w"], ["y"])], initializers=[weight])


def test_missing_external_data(capsys):
    refused(external(), capsys, "'w'", "w.bin")


def test_truncated_external_data(capsys):
    Path("w.bin").write_bytes(bytes(SIDE * SIDE * 4 - 1))
    refused(external(offset="0", length=str(SIDE * SIDE * 4)), capsys, "'w'", "truncated")


def test_truncated_external_data_of_unstated_length(capsys):
    Path("w.bin").write_bytes(bytes(SIDE * SIDE * 4 - 1))
    refused(external(), capsys, "'w'", "truncated")


def test_external_data_behind_the_end_of_the_file(capsys):
    Path("w.bin").write_bytes(bytes(SIDE * SIDE * 4))
    refused(external(offset="4096", length=str(SIDE * SIDE * 4)), capsys, "'w'")


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": "abc"},
        {"offset": "-4"},
        {"length": "many"},
        {"length": "8"},
        {"location": ""},
        {"location": "."},
        {"location": "../w.bin"},
    ],
)
def test_malformed_external_data(fields, capsys):
    Path("w.bin").write_bytes(bytes(SIDE * SIDE * 4))
    Path("../w.bin").write_bytes(bytes(SIDE * SIDE * 4))
    refused(external(**fields), capsys, "'w'")


# -- the graph -----------------------------------------------------------------------------------


def test_an_unknown_operator(capsys):
    refused(proto([node("Frobnicate", ["x"], ["y"])]), capsys, "Frobnicate", "'y'")


def test_an_operator_newer_than_the_model_s_operator_set(capsys):
    refused(proto([node("Gelu", ["x"], ["y"])]), capsys, "Gelu")


def test_an_operator_of_a_domain_that_is_not_imported(capsys):
    refused(proto([node("Magic", ["x"], ["y"], domain="com.example")]), capsys, "com.example")


def test_an_operator_of_a_domain_that_onnx_runtime_does_not_know(capsys):
    model = proto(
        [node("Magic", ["x"], ["y"], domain="com.example")],
        opsets=(("", 18), ("com.example", 1)),
    )
    refused(model, capsys, "Magic")


def test_a_shape_that_depends_on_values_where_no_run_shows_it(capsys):
    nodes = [node("NonZero", ["x"], ["n"]), node("Gather", ["x", "far"], ["z"]),
             node("Cast", ["n"], ["y"], to=T.FLOAT)]  # fmt: skip
    far = numpy_helper.from_array(np.array([SIDE + 1], np.int64), "far")
    outputs = [info("y", 2, None), info("z", 1, SIDE)]
    model = proto(nodes, outputs=outputs, initializers=[far])
    refused(model, capsys, "'n'", "NonZero", "--bound", "run of the model")


def test_a_symbolic_dim_that_is_not_bound(capsys):
    model = proto(diamond(), inputs=[info("x", "batch", SIDE)], outputs=[info("y", "batch", SIDE)])
    refused(model, capsys, "batch (x)", "--dim batch=1")


def test_a_dim_without_value_or_name(capsys):
    model = proto(diamond(), inputs=[info("x", None, SIDE)], outputs=[info("y", None, SIDE)])
    refused(model, capsys, "x:0", f"--shape x=1x{SIDE}")


def test_a_dim_that_the_model_has_not(capsys):
    assert optimize(save(proto(diamond())), "--dim", "batch=4") == USAGE
    assert "batch" in only_line(capsys)


def test_an_input_without_a_shape(capsys):
    x = onnx.ValueInfoProto(name="x")
    x.type.tensor_type.elem_type = T.FLOAT
    refused(proto(diamond(), inputs=[x]), capsys, "'x'", "shape")


def test_a_shape_that_contradicts_the_graph(capsys):
    refused(proto(diamond(), outputs=[info("y", SIDE, 3)]), capsys, "'y'")


def test_shapes_that_do_not_fit_each_other(capsys):
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    inputs = [info("x", SIDE, SIDE), info("w", 3, SIDE)]
    refused(proto(nodes, inputs=inputs), capsys)


def test_a_cycle(capsys):
    nodes = [
        node("Add", ["x", "b"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Neg", ["b"], ["y"]),
    ]
    refused(proto(nodes), capsys, "cycle", "'a'", "'b'")


def test_a_node_that_reads_its_own_output(capsys):
    refused(proto([node("Add", ["x", "y"], ["y"])]), capsys, "cycle", "'y'")


def test_nodes_that_are_not_sorted(capsys):
    refused(proto(reversed(diamond())), capsys, "not sorted")


def test_a_tensor_that_nothing_produces(capsys):
    refused(proto([node("Add", ["x", "ghost"], ["y"])]), capsys, "'ghost'", "'y'")


def test_an_output_that_nothing_produces(capsys):
    refused(proto([node("Neg", ["x"], ["z"])]), capsys, "'y'")


def test_a_tensor_that_two_nodes_produce(capsys):
    nodes = [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["a"], name="second")]
    refused(proto([*nodes, node("Neg", ["a"], ["y"])]), capsys, "'a'", "'second'")


def test_two_inputs_of_one_name(capsys):
    twice = [info("x", SIDE, SIDE), info("x", SIDE, SIDE)]
    refused(proto(diamond(), inputs=twice), capsys, "'x'", "twice")


def test_two_initializers_of_one_name(capsys):
    weight = numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32), "w")
    model = proto([node("Mul", ["x", "w"], ["y"])], initializers=[weight, weight])
    refused(model, capsys, "'w'", "twice")


def test_two_outputs_of_one_name(capsys):
    twice = [info("y", SIDE, SIDE), info("y", SIDE, SIDE)]
    refused(proto(diamond(), outputs=twice), capsys, "'y'", "twice")


def test_two_nodes_of_one_name(capsys):
    nodes = diamond()
    nodes[0].name = nodes[1].name = "same"
    refused(proto(nodes), capsys, "same")  # ONNX Runtime does not load it


def test_a_branch_that_reads_what_nothing_makes(capsys):
    branch = h.make_graph([node("Neg", ["ghost"], ["b"])], "branch", [], [info("b", SIDE, SIDE)])
    nodes = [node("If", ["flag"], ["y"], name="choose", then_branch=branch, else_branch=branch)]
    inputs = [info("x", SIDE, SIDE), info("flag", dtype=T.BOOL)]
    refused(proto(nodes, inputs=inputs), capsys, "'choose'", "If", "'ghost'")


def test_a_sparse_initializer(capsys):
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64), "w_indices")
    model = proto([node("Neg", ["x"], ["y"])])
    model.graph.sparse_initializer.append(h.make_sparse_tensor(values, indices, [SIDE, SIDE]))
    refused(model, capsys, "sparse", "'w'")


def test_an_initializer_with_too_little_data(capsys):
    weight = T(name="w", data_type=T.FLOAT, dims=[SIDE, SIDE], raw_data=bytes(8))
    refused(proto([node("Mul", ["x", "w"], ["y"])], initializers=[weight]), capsys)


def test_an_initializer_of_no_type(capsys):
    weight = T(name="w", dims=[2], raw_data=bytes(8))
    refused(proto([node("Mul", ["x", "w"], ["y"])], initializers=[weight]), capsys)


def test_a_sequence_for_an_input(capsys):
    kind = h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, [SIDE, SIDE]))
    inputs = [h.make_value_info("x", kind)]
    refused(proto([node("SequenceAt", ["x", "i"], ["y"])], inputs=inputs), capsys, "'x'")


def test_a_sequence_of_unknown_bytes(capsys):
    """What is advised is what a sequence takes."""
    kind = h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, None))
    body = h.make_graph(
        [node("Identity", ["c"], ["c2"]), node("SequenceInsert", ["q", "x"], ["q2"])],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), h.make_value_info("q", kind)],
        [info("c2", dtype=T.BOOL), h.make_value_info("q2", kind)],
    )
    nodes = [
        node("SequenceEmpty", [], ["s0"]),
        node("Loop", ["n", "c0", "s0"], ["s"], body=body),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    inputs = [info("x", SIDE, SIDE), info("n", dtype=T.INT64), info("c0", dtype=T.BOOL)]
    model = proto(nodes, inputs=inputs, outputs=[info("y", None, SIDE)])
    refused(model, capsys, "sequence 's'", "Loop", "--bound 's=64MB'", "--inputs")


def test_no_nodes(capsys):
    refused(proto([], outputs=[info("x", SIDE, SIDE)]), capsys, "no nodes")


def test_no_outputs(capsys):
    model = proto(diamond())
    del model.graph.output[:]
    refused(model, capsys, "no graph outputs")


def test_an_operator_set_from_the_future(capsys):
    refused(proto(diamond(), opsets=(("", 9999),)), capsys)


def test_names_that_would_break_the_terminal_are_shown_escaped(capsys):
    refused(proto([node("Frob\nnicate\x1b[31m", ["x"], ["y"])]), capsys)


# -- odd, and fine -------------------------------------------------------------------------------


def test_nodes_without_names():
    nodes = diamond()
    for i, n in enumerate(nodes):
        n.name = "" if i % 2 else n.name
    works(proto(nodes), budget="70%")


def test_empty_and_scalar_tensors():
    nodes = [
        *diamond()[:-1],
        node("Mul", ["b1", "a0"], ["long"]),
        node("Neg", ["nothing"], ["still_nothing"]),
        node("Concat", ["long", "still_nothing"], ["joined"], axis=0),
        node("ReduceMean", ["joined"], ["scalar"], keepdims=0),
        node("Mul", ["joined", "scalar"], ["y"]),
    ]
    inputs = [info("x", SIDE, SIDE), info("nothing", 0, SIDE)]
    works(proto(nodes, inputs=inputs), budget="80%")


def test_a_graph_with_no_tensor_worth_moving(capsys):
    works(proto([node("Neg", ["x"], ["y"])]))
    assert Path("model.planned.onnx").read_bytes() == Path("model.onnx").read_bytes()
    assert optimize("model.onnx", "-f", budget="99%") == INFEASIBLE
    assert "'" not in only_line(capsys).split(":")[0]


def test_a_bound_dim():
    model = proto(diamond(), inputs=[info("x", "batch", SIDE)], outputs=[info("y", "batch", SIDE)])
    works(model, budget="70%", dims={"batch": 8})


def test_an_output_that_is_an_input():
    model = proto(diamond(), outputs=[info("y", SIDE, SIDE), info("x", SIDE, SIDE)])
    works(model)


# -- budgets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["0", "0B", "-1", "16", "16G", "abc", "150%", "", "0%", "nan%"])
def test_a_budget_that_is_none(budget, capsys):
    model = save(proto(diamond()))
    assert main(["optimize", model, f"--budget={budget}"]) == USAGE
    assert "budget" in only_line(capsys)
    assert os.listdir() == [model]


@pytest.mark.parametrize("budget", ["1B", "0.001%", "2KiB"])
def test_a_budget_below_everything(budget, capsys):
    model = save(proto(diamond()))
    assert optimize(model, budget=budget) == INFEASIBLE
    line = only_line(capsys)
    assert "least" in line
    assert "a4 1.00 KiB" in line  # the tensors that bind
    assert os.listdir() == [model]


def test_a_reserve_as_large_as_the_budget(capsys):
    assert optimize(save(proto(diamond())), "--reserve", "1MB", budget="1MB") == INFEASIBLE
    assert "reserve" in only_line(capsys)


# -- outputs -------------------------------------------------------------------------------------


def test_an_output_that_exists_is_kept(capsys):
    model = save(proto(diamond()))
    Path("out.onnx").write_text("precious")
    assert optimize(model, "-o", "out.onnx") == USAGE
    assert "out.onnx exists" in only_line(capsys)
    assert Path("out.onnx").read_text() == "precious"


@pytest.mark.parametrize("taken", ["model.plan.json", "model.report.html"])
def test_a_plan_or_report_that_exists_is_kept(taken, capsys):
    model = save(proto(diamond()))
    Path(taken).write_text("precious")
    assert optimize(model) == USAGE
    assert taken in only_line(capsys)
    assert sorted(os.listdir()) == sorted([model, taken])
    assert Path(taken).read_text() == "precious"


def test_a_folder_for_a_plan(capsys):
    Path("plans").mkdir()
    assert optimize(save(proto(diamond())), "--plan", "plans") == USAGE
    assert "folder" in only_line(capsys)


def test_an_output_in_a_missing_folder(capsys):
    assert optimize(save(proto(diamond())), "-o", "nowhere/out.onnx") == USAGE
    assert "nowhere" in only_line(capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_output_in_a_read_only_folder(capsys):
    model = save(proto(diamond()))
    Path("fixed").mkdir(mode=0o555)
    assert optimize(model, "-o", "fixed/out.onnx") == USAGE
    assert "cannot be written" in only_line(capsys)


@pytest.mark.parametrize("name", ["model.onnx", "./model.onnx", "link.onnx"])
def test_an_output_that_is_the_model(name, capsys):
    model = save(proto(diamond()))
    before = Path(model).read_bytes()
    Path("link.onnx").symlink_to(model)
    assert optimize(model, "-f", "-o", name) == USAGE
    only_line(capsys)
    assert Path(model).read_bytes() == before


def test_a_model_in_a_folder_that_may_not_be_written_is_read(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.onnx").write_bytes(proto(diamond()).SerializeToString())
    source.chmod(0o555)
    try:
        assert optimize(str(source / "model.onnx"), "-q", "--no-verify", budget="70%") == OK
    finally:
        source.chmod(0o755)
    assert os.listdir(source) == ["model.onnx"]
    assert (tmp_path / "model.planned.onnx").is_file()


# -- Ctrl-C --------------------------------------------------------------------------------------


def interrupt(arguments: list[str], folder: Path, *, when: str) -> tuple[int, str]:
    """Run planner, press Ctrl-C once it says `when`; (exit code, what it said after that)."""
    scratch = folder / "scratch"
    scratch.mkdir()
    process = started(*arguments, cwd=folder, env={**os.environ, "TMPDIR": str(scratch)})
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if when in line:
                break  # at once: of a search that has a plan already, Ctrl-C keeps the plan
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert not list(scratch.glob("planner*"))  # ONNX Runtime leaves a file of its own there
    shutil.rmtree(scratch)
    return process.returncode, said


@pytest.mark.parametrize("when", ["loading", "comparing base orders"])
def test_ctrl_c_leaves_nothing(when, folder):
    model = ZOO / "gpt.onnx"
    arguments = ["optimize", str(model), "--budget", "40%", "--time-limit", "60", "-v"]
    status, said = interrupt(arguments, folder, when=when)
    assert status == INTERRUPTED
    assert "interrupted" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not os.listdir(folder)
