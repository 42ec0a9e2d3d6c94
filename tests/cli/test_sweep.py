"""`planner sweep`: points that hold, in processes of this machine and of Ray, text and page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from models import zoo
from planner.cli.main import main
from planner.errors import UsageError
from planner.onnxio.positions import sizes_of
from planner.portfolio.table import POLICY


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """A forward chain whose every value is read again on the way back, of a symbolic batch."""
    count, nodes = 6, []
    for i in range(count):
        nodes.append(h.make_node("Sigmoid", [f"x{i}"], [f"x{i + 1}"], name=f"up{i}"))
    for i in reversed(range(count)):
        back = "x6" if i == count - 1 else f"g{i + 1}"
        nodes.append(h.make_node("Mul", [back, f"x{i + 1}"], [f"g{i}"], name=f"down{i}"))
    graph = h.make_graph(
        nodes,
        "chain",
        [h.make_tensor_value_info("x0", T.FLOAT, ["batch", 4096])],
        [h.make_tensor_value_info("g0", T.FLOAT, ["batch", 4096])],
    )
    path = tmp_path_factory.mktemp("sweep") / "chain.onnx"
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def swept(capsys, *arguments: object) -> dict:
    assert main(["sweep", *map(str, arguments), "--json", "-q"]) == 0
    return json.loads(capsys.readouterr().out)


def check_points(frontier: dict) -> None:
    """Plans fit, respect their bounds, and cost no less where the budget is smaller."""
    slowest = float("inf")
    for point in frontier["points"]:
        if point["peak_bytes"] is None:
            continue
        assert point["peak_bytes"] <= point["budget_bytes"]
        in_order = point["least_slowdown_in_order"]
        assert point["least_slowdown"] <= in_order <= point["slowdown"] + 1e-6
        assert point["slowdown"] <= slowest
        slowest = point["slowdown"]
        assert point["order"] in frontier["orders"]
    assert frontier["points"][-1]["slowdown"] == 0.0


def test_budgets_of_a_training_graph(capsys):
    document = swept(
        capsys, zoo.path("mlp_adamw"), "--points", 4, "--time-limit", 2, "--swap", "none", "-j", 1
    )
    (frontier,) = document["frontiers"]
    assert len(frontier["points"]) == 4
    assert frontier["points"][-1]["budget_bytes"] == frontier["baseline_peak_bytes"]
    check_points(frontier)
    # what is proved of one order is as tight at each budget as a single search has it
    tight = [p for p in frontier["points"] if p["slowdown"]]
    assert all(p["least_slowdown_in_order"] > 0 for p in tight)
    assert not any(p["swap_in_bytes"] for p in frontier["points"])
    assert document["largest"] == []


@pytest.mark.parametrize("where", ["here", "processes", "ray"])
def test_the_largest_batch(where, chain, capsys):
    options: list[object] = {"here": ["-j", 1], "processes": ["-j", 2]}.get(where, [])
    if where == "ray":
        ray = pytest.importorskip("ray", reason="Ray is not installed")
        options = ["--ray", "local", "-j", 2]
    document = swept(
        capsys, chain, "--dim", "batch=8:24:8", "--budgets", "100%,60%,25%,5%", "--time-limit", 1,
        "--swap", "none", *options,
    )  # fmt: skip
    if where == "ray":
        assert not ray.is_initialized()  # else it ends this process once its cluster has gone
    assert [f["dims"] for f in document["frontiers"]] == [{"batch": b} for b in (8, 16, 24)]
    for frontier in document["frontiers"]:
        check_points(frontier)
    rows = document["largest"]
    sizes = [row["size"] or 0 for row in rows]
    assert sizes == sorted(sizes)
    assert rows[-1]["size"] == 24
    assert rows[-1]["slowdown"] == 0.0
    assert rows[0]["size"] is None
    assert rows[0]["next_is_impossible"]
    # what fits at one batch fits at a smaller one
    for row in rows:
        for frontier in document["frontiers"]:
            point = next(p for p in frontier["points"] if p["budget_bytes"] == row["budget_bytes"])
            assert (point["peak_bytes"] is None) == (frontier["dims"]["batch"] > (row["size"] or 0))


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_policy_holds_in_every_process(jobs, tmp_path, capsys):
    turns = (*POLICY.rough, *POLICY.serial, *POLICY.other)
    others = sorted({turn.engine.name for turn in turns} - {"greedy"})
    params = tmp_path / "params.toml"
    params.write_text(
        "[race]\nrough_until = 0.0\n[frontier]\nkept_orders = 1\ncompared_shares = [0.5]\n"
        + "".join(f"[engines.{name}]\nenabled = false\n" for name in others)
    )
    document = swept(
        capsys, zoo.path("mlp_adamw"), "--points", 4, "--time-limit", 2, "--swap", "none",
        "-j", jobs, "--params", params,
    )  # fmt: skip
    (frontier,) = document["frontiers"]
    check_points(frontier)
    assert len(frontier["orders"]) <= 2
    assert {point["engine"] for point in frontier["points"]} <= {"greedy", "order", None}


def test_a_policy_that_makes_no_sense(chain, tmp_path, capsys):
    params = tmp_path / "params.toml"
    arguments = ["sweep", str(chain), "--dim", "batch=8", "--points", "2", "--time-limit", "2"]
    params.write_text("[frontier]\nkept_orders = 0\n")
    assert main([*arguments, "--params", str(params)]) == 2
    assert "frontier.kept_orders is 0, not above 0" in capsys.readouterr().err
    params.write_text("[least-peak]\nmin_s = 3\n")
    assert main([*arguments, "-j", "1", "--params", str(params)]) == 2
    assert "unknown table 'least-peak'" in capsys.readouterr().err


def test_the_table_and_the_page(chain, tmp_path, capsys):
    page = tmp_path / "sweep.html"
    arguments = ["sweep", str(chain), "--dim", "batch=8,16", "--points", "3", "--time-limit", "3"]
    assert main([*arguments, "-j", "1", "-o", str(page)]) == 0
    said = capsys.readouterr()
    assert "Budgets at batch=8" not in said.out  # what was asked for comes first; -v has the rest
    assert "in predicted times: roofline of cpu" in said.out
    assert "without ONNX Runtime's fragmentation" in said.out
    assert "Largest batch within each budget" in said.out
    assert f"wrote {page}" in said.err
    text = page.read_text(encoding="utf-8")
    assert "http://" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert main([*arguments, "-o", str(page)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*arguments, "-j", "1", "-v"]) == 0
    assert "Budgets at batch=8" in (full := capsys.readouterr().out) and "Assumed" in full


def test_sizes():
    assert sizes_of(["batch=8:32:8", "seq=128"]) == {"batch": [8, 16, 24, 32], "seq": [128]}
    assert sizes_of(["n=3:5"]) == {"n": [3, 4, 5]}
    assert sizes_of(["n=8,4,4"]) == {"n": [4, 8]}


@pytest.mark.parametrize(
    "text",
    ["n", "n=", "=3", "n=0", "n=3:1", "n=1:2:3:4", "n=1,2:3", "n=a", "n=1:9:0", "n=1:100000"],
)
def test_sizes_that_are_not_understood(text):
    with pytest.raises(UsageError, match="--dim"):
        sizes_of([text])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dim", "batch=8,16", "--dim", "other=1,2"], "no such dim|only one dim"),
        (["--dim", "batch=8", "--dim", "batch=9"], "given twice"),
        (["--dim", "batch=8", "--budgets", "16"], "ambiguous"),
        (["--dim", "batch=8", "--budgets", "50%,,"], "not understood"),
        (["--dim", "batch=1:900", "--points", "12"], "too many"),
        ([], "without a size: batch .*--dim batch=1"),
        (["--dim", "batch=8", "--swap", "only", "--time-limit", "0"], "--time-limit"),
    ],
)
def test_bad_input(arguments, said, chain, capsys):
    assert main(["sweep", str(chain), *arguments]) in (2, 3)
    out = capsys.readouterr()
    assert out.out == ""
    assert re.search(said, out.err)
    assert out.err.count("\n") == 1


def test_a_cluster_that_is_not_there(chain, capsys):
    pytest.importorskip("ray", reason="Ray is not installed")
    arguments = ["sweep", str(chain), "--dim", "batch=8", "--points", "2", "-q"]
    assert main([*arguments, "--ray", "nowhere"]) == 2
    assert "--ray nowhere" in capsys.readouterr().err
