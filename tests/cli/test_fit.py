"""`planner fit`: the table, the document, exit codes, and what it says of bad input."""

from __future__ import annotations

import json
import re

import pytest

from models import zoo
from planner.cli.main import main
from planner.defaults import requested
from planner.targets import target_named
from planner.targets.backend import runs_here
from planner.units import parse_bytes
from tests.pipeline.test_devices import chain, device  # noqa: F401

MIB = 1 << 20


def test_a_document_and_its_exit_code(tmp_path, capsys):
    large, small = device(tmp_path, "large", 64 * MIB), device(tmp_path, "small", 6 * MIB)
    arguments = ["fit", str(zoo.path("mlp_adamw")), "--hardware", large, "--json", "-q"]
    assert main([*arguments, "--time-limit", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["all_fit"] is True
    # recompute alone does not fit 6 MiB, copies do not fit 1 MiB
    arguments = [*arguments, "--hardware", f"{small},t4", "--reserve", "0B", "--time-limit", "3"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "planner.fit/1"
    made_of = document["composition_at_peak"]
    as_it_is = document["devices"][1]["ways"][0]
    assert {"parameter", "optimizer state"} <= made_of.keys()
    assert sum(made_of.values()) == as_it_is["peak_bytes"]
    assert [row["hardware"] for row in document["devices"]] == [large, small, "t4"]
    ways = {way["how"]: way for way in document["devices"][1]["ways"]}
    assert [way["fits"] for way in ways.values()] == [False, False, True, True]
    assert ways["copies"]["peak_bytes"] <= 6 * MIB
    verdicts = [row["verdict"] for row in document["devices"]]
    assert re.fullmatch(r"fits at ×1\.\d\d \(copies\)", verdicts[1])
    assert verdicts[0] == verdicts[2] == "fits as it is"
    assert document["devices"][1]["best"] == "copies"
    # the first that needs a plan, as it is typed
    assert document["next"].split()[:2] == ["planner", "optimize"]
    assert {"--device", "cuda", small, "--reserve", "0B"} <= set(document["next"].split())
    assert ("--no-verify" in document["next"]) is not runs_here(target_named("cuda"))
    given = {"model": "m.onnx", "hardware": small, "device": "cuda", "reserve": "0B"}
    budget = requested("optimize", given).budget
    assert parse_bytes(budget) == document["devices"][1]["budget_bytes"] == 6 * MIB
    assert ways["copies overlapped"]["what_if"]
    tiny = device(tmp_path, "tiny", MIB)
    assert main([*arguments, "--hardware", tiny]) == 4
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert not document["all_fit"] and not document["devices"][-1]["fits"]
    assert document["devices"][-1]["verdict"].startswith("no: least ")
    assert re.search(r"no plan of .* fits \S*tiny.toml; .*least feasible budget", said.err)
    assert said.err.count("\n") == 1


def test_the_table(chain, tmp_path, capsys):  # noqa: F811
    small = device(tmp_path, "small", 6 * MIB)
    arguments = ["fit", str(chain), "--hardware", small, "--dim", "batch", "--time-limit", "2"]
    assert main(arguments) == 0
    brief = capsys.readouterr().out
    for text in (
        "The largest batch that fits",
        "batch/s",
        "verdict",
        "small.toml",
        "nothing was run on these",
        "Made of",
    ):
        assert text in brief
    assert "--reserve" in brief and "Assumed" not in brief and "Every way" not in brief
    assert re.search(r"batch \d+ at ×\d", brief) and "planner optimize" in brief
    assert main([*arguments, "-v"]) == 0
    full = capsys.readouterr().out
    assert "Assumed" in full and "overlapped" in full and "ZeRO-3" in full


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--hardware'"),
        (["--hardware", "nothing"], "unknown hardware 'nothing'"),
        (["--hardware", ""], "empty name"),
        (["--hardware", "h100,,t4"], "empty name"),
        (["--hardware", "gone.toml"], "gone.toml"),
        (["--hardware", "t4", "--dim", "other"], "no such dim"),
        (["--hardware", "t4", "--dim", "other=3"], "no such dim"),
        (["--hardware", "t4", "--dim", "batch=3", "--dim", "batch"], "given twice"),
        (["--hardware", "t4", "--dim", "batch=3:1"], "--dim"),
        (["--hardware", "t4", "--dim", "batch", "--dim", "seq=1,2"], "only one dim"),
        (["--hardware", "t4", "--dim", "batch=8", "--reserve", "16GB"], "takes all memory"),
        (["--hardware", "t4", "--dim", "batch=8", "--reserve", "16"], "ambiguous"),
        (["--hardware", "t4", "--dim", "batch=8", "--time-limit", "-1"], "--time-limit"),
    ],
)
def test_bad_input(arguments, said, chain, capsys):  # noqa: F811
    assert main(["fit", str(chain), *arguments]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert said in out.err
    assert out.err.count("\n") == 1
