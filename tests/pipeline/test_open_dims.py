"""Files whose dims have neither a name nor a size: planned, verified, applied and told by place."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import analyze, apply, optimize
from planner.api import verify
from planner.api_devices import fit_devices
from planner.api_sweep import sweep
from planner.cli.main import main
from planner.errors import ModelError, UsageError
from planner.pipeline.record.assemble import read_plan
from planner.report.document.outcome import optimize_document
from planner.results import OptimizeResult
from tests.pipeline.test_devices import device

USAGE, MODEL = 2, 3
BATCH = 64
COUNT = 6
MIB = 1 << 20


def chain(folder: Path, batch: int | str | None, name: str = "x") -> Path:
    """A forward chain whose every value is read again on the way back."""
    nodes, before = [], name
    for i in range(COUNT):
        nodes.append(h.make_node("Sigmoid", [before], [f"v{i}"], name=f"up{i}"))
        before = f"v{i}"
    for i in reversed(range(COUNT)):
        nodes.append(h.make_node("Mul", [before, f"v{i}"], [f"g{i}"], name=f"down{i}"))
        before = f"g{i}"
    graph = h.make_graph(
        nodes,
        "chain",
        [h.make_tensor_value_info(name, T.FLOAT, [batch, 4096])],
        [h.make_tensor_value_info(before, T.FLOAT, [batch, 4096])],
    )
    folder.mkdir(exist_ok=True)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def planned(path: Path, dims: dict[str, int], *, verify: bool = True) -> OptimizeResult:
    """A model within 60% of its peak; the rewritten model and its plan lie beside it."""
    return optimize(
        path,
        budget="60%",
        budget_of="live",
        dims=dims,
        output=path.with_name("planned.onnx"),
        plan_path=path.with_name("plan.json"),
        calibrate=False,
        time_limit_s=1.0,
        verify=verify,
    )


@pytest.fixture(scope="module", params=[None, "x:1"], ids=["no name", "with a colon"])
def done(request, tmp_path_factory) -> OptimizeResult:
    """The plan of a model whose batch is written in one of the ways, for a batch of 64."""
    folder = tmp_path_factory.mktemp("open")
    return planned(chain(folder, request.param), {"x:0": BATCH})


def files(done: OptimizeResult) -> tuple[Path, Path, Path]:
    """The original, the rewritten model and the plan."""
    assert done.output_path is not None and done.plan_path is not None
    return done.model_path, done.output_path, done.plan_path


@pytest.fixture(scope="module")
def fixed(tmp_path_factory) -> OptimizeResult:
    """The plan of the same model with a size."""
    return planned(chain(tmp_path_factory.mktemp("fixed"), BATCH), {}, verify=False)


def test_the_plan_is_that_of_the_same_model_with_a_size(done, fixed):
    assert done.verification is not None and done.verification.passed
    assert done.plan.baseline.peak_bytes == fixed.plan.baseline.peak_bytes
    assert done.plan.planned.peak_bytes <= done.plan.budget_bytes == fixed.plan.budget_bytes
    assert list(done.plan.dims.values()) == [BATCH]


def test_the_rewritten_model_runs_at_any_size_and_gives_the_same_bits(done):
    original, rewritten, _ = files(done)
    sessions = [
        ort.InferenceSession(str(p), providers=["CPUExecutionProvider"])
        for p in (original, rewritten)
    ]
    for batch in (1, 7, BATCH):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 4096), np.float32)}
        one, other = (session.run(None, feeds)[0] for session in sessions)
        assert one.tobytes() == other.tobytes() and one.shape == (batch, 4096)


def test_a_plan_file_keeps_the_dims_for_apply_verify_and_explain(done, tmp_path, capsys):
    original, rewritten, plan = files(done)
    assert read_plan(plan).dims == done.plan.dims
    again = apply(original, plan, output=tmp_path / "again.onnx")
    assert again.read_bytes() == rewritten.read_bytes()
    assert verify(original, rewritten, plan=plan, fast=True).passed
    tensor = done.plan.decisions[0].tensor
    assert main(["explain", str(original), str(plan), "--tensor", tensor, "-q"]) == 0
    paths = [str(original), str(rewritten), "--fast", "-q"]
    assert main(["verify", *paths, "--shape", f"x={BATCH}x4096"]) == 0
    assert main(["verify", *paths]) == MODEL
    assert "dims without a size: " in capsys.readouterr().err


def test_next_steps_give_the_dims_as_they_are_typed(done):
    payload = optimize_document(done)
    commands = [step.command for step in payload.next_steps if step.command]
    typed = [words for words in map(shlex.split, commands) if words[1] in ("sweep", "optimize")]
    (name,) = done.plan.dims
    assert typed
    for words in typed:
        given = words[words.index("--dim") + 1]
        assert given.startswith(f"{name}={BATCH}")


def test_an_input_whose_name_has_a_colon(tmp_path):
    found = planned(chain(tmp_path, -1, name="in:0"), {"in:0:0": BATCH})
    assert found.verification is not None and found.verification.passed
    assert found.plan.dims == {"in:0:0": BATCH}


def test_a_sweep_over_a_dim_by_its_place(tmp_path, capsys):
    for batch, name in ((-1, "x:0"), ("batch", "batch")):
        path = chain(tmp_path, batch)
        found = sweep(
            path, dims={"x:0": [8, 16]}, budgets=["100%"], time_limit_s=1.0, jobs=1,
            calibrate=False,
        )  # fmt: skip
        assert found.dim == name
        assert [frontier.dims for frontier in found.frontiers] == [{name: 8}, {name: 16}]
        assert [row.size for row in found.largest] == [16]
    options = ["--shape", "x=8x4096", "--budgets", "100%", "--time-limit", "1", "--json", "-q"]
    assert main(["sweep", str(path), "--no-calibrate", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [frontier["dims"] for frontier in document["frontiers"]] == [{"batch": 8}]


def test_the_devices_that_hold_a_batch_by_its_place(tmp_path):
    small = device(tmp_path, "small", 6 * MIB)
    found = {}
    for batch, name in ((-1, "x:0"), ("batch", "batch")):
        fits = fit_devices(
            chain(tmp_path, batch), [small], dims={"x:0": [8, 16], "x:1/2": [4096]}, reserve="0B",
            time_limit_s=1.0,
        )  # fmt: skip
        assert (fits.dim, fits.dims) == (name, {})
        found[name] = [way.size for way in fits.devices[0].ways]
    assert found["x:0"] == found["batch"]


COMMANDS = [
    ["analyze"], ["optimize", "--budget", "60%", "--dry-run"], ["sweep", "--points", "2"],
    ["problem", "--force"], ["fit", "--hardware", "t4"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_says_what_lacks_and_takes_what_it_says(
    command, tmp_path, monkeypatch, capsys
):
    chain(tmp_path, -1)
    monkeypatch.chdir(tmp_path)
    verb, *more = command
    limit = ["--time-limit", "1", "-q"]
    assert main([verb, "model.onnx", *more, *limit]) == MODEL
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.endswith("for example with --shape x=1x4096\n")
    assert "model.onnx has dims without a size: x:0;" in said
    assert main([verb, "model.onnx", *more, *limit, *said.split(" with ")[-1].split()]) == 0
    for shape in ("x=1", "x=1x3", "z=1x3", "x"):
        capsys.readouterr()
        assert main([verb, "model.onnx", *more, *limit, "--shape", shape]) == USAGE
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("planner: error: --shape ")


def test_micro_batches_of_a_batch_without_a_name(tmp_path):
    """Its place is its name there, too; of two inputs no place says that they share a batch."""
    from tests.micro.nets import Mlp

    path = Mlp(update=True, hidden=64, layers=3).save(tmp_path / "mlp.onnx")
    model = onnx.load(path)
    batched = [
        v.name for v in model.graph.input
        if v.type.tensor_type.shape.dim and v.type.tensor_type.shape.dim[0].dim_param == "batch"
    ]  # fmt: skip
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = -1
    onnx.save(model, path)
    assert len(batched) > 1
    with pytest.raises(UsageError, match="are each the first axis of an input"):
        optimize(
            path, budget="60%", micro_batch=2, dims={f"{name}:0": 64 for name in batched},
            dry_run=True,
        )  # fmt: skip


def test_analyze_needs_all_of_them(tmp_path):
    path = chain(tmp_path, None)
    with pytest.raises(ModelError, match="dims without a size: x:0"):
        analyze(path)
    found = analyze(path, dims={"x:0": 2}, time_limit_s=1.0, calibrate=False)
    assert found.dims == {"x:0": 2}
