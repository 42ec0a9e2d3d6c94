"""The short summaries: the outcome in about ten lines, and what changes its meaning."""

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import planner
from planner.api import optimize
from planner.report import remarks
from planner.report.document.analysis import analyze_document
from planner.report.document.outcome import optimize_document
from planner.report.document.views import peak_document
from planner.report.remarks import ROUTINE, that_matter
from planner.report.terminal.brief import (
    print_analysis_brief,
    print_optimize_brief,
    print_peak_brief,
    print_possible_brief,
)
from planner.report.terminal.whole import print_optimize
from tests.report import examples

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def printed(function, payload, **options):
    stream = io.StringIO()
    function(payload, Console(file=stream, width=110, highlight=False, markup=False, **options))
    return stream.getvalue()


def changed(**plan):
    result = examples.optimize_result()
    return dataclasses.replace(result, plan=dataclasses.replace(result.plan, **plan))


def rows(payload):
    lines = printed(print_optimize_brief, payload).splitlines()
    return [(line[:10].strip(), line[10:]) for line in lines[1:]]


def test_optimize(snapshot):
    assert printed(print_optimize_brief, optimize_document(examples.optimize_result())) == snapshot


def test_analyze(snapshot):
    assert printed(print_analysis_brief, analyze_document(examples.analysis())) == snapshot


def test_what_is_known_first_can_be_printed_first():
    analysis = examples.analysis()
    payload = analyze_document(analysis)
    first = printed(
        lambda view, out: print_peak_brief(payload.model, view, out),
        peak_document(analysis.default),
    )
    rest = printed(print_possible_brief, payload)
    assert first + rest == printed(print_analysis_brief, payload)
    assert "Peak" in first and "Largest" in first


def test_the_outcome_takes_about_ten_lines_and_says_what_matters():
    payload = optimize_document(examples.optimize_result())
    lines = printed(print_optimize_brief, payload).splitlines()
    assert lines[0].startswith("Does not fit: ")
    named = dict(rows(payload))
    assert {"Verified", "Budget", "Live", "Time", "Done", "Search", "Wrote", "Next"} <= set(named)
    assert "roofline of cpu" in named["Time"]
    assert "measured on this machine" in named["Time"]
    assert "chain.planned.onnx, chain.plan.json, chain.report.html" in named["Wrote"]
    notes = [text for name, text in rows(payload) if name == "Note"]
    assert len(lines) - len(notes) <= 15  # one of them is code to paste, two are what is held


def test_a_plan_that_nothing_verified_says_so():
    result = dataclasses.replace(examples.optimize_result(), verification=None)
    named = dict(rows(optimize_document(result)))
    assert named["Verified"].startswith("no: nothing was run on ONNX Runtime")
    assert "not measured" in named["Time"]


def test_every_check_that_failed_has_its_line():
    result = examples.optimize_result()
    assert result.verification is not None
    bad = dataclasses.replace(result.verification, passed=False, failures=("order", "bytes"))
    found = rows(optimize_document(dataclasses.replace(result, verification=bad)))
    assert [text for name, text in found if name == "Failed"] == ["order", "bytes"]
    assert dict(found)["Verified"].startswith("NO: ")


@pytest.mark.parametrize(
    "text",
    [
        "2 sizes that depend on data ('n' and 'm') are those of one run; give bounds",
        "the graph that ONNX Runtime's optimizers made was not compared with the file by numbers: why",
        "the graph that ONNX Runtime's optimizers made was compared with the file by numbers, on one run "
        "of seeded inputs: 1 of 2 results are the same bits; the others depend on random numbers "
        "without a seed and were not compared, and within 1e-3 of one without optimizations",
        "3 nodes run in chunks of rows, in 1 region: sums are added up in parts, so that numbers "
        "are the same up to rounding",
        "a sentence that nobody has thought of",
    ],
)  # fmt: skip
def test_what_changes_the_meaning_of_the_numbers_is_a_line_of_its_own(text):
    payload = optimize_document(changed(assumptions=(text, "operation times are a roofline of X")))
    notes = [said for name, said in rows(payload) if name == "Note"]
    assert text in notes and not any("roofline" in note for note in notes)


def test_the_gap_says_of_which_times_it_is():
    proved = changed(gap=0.0001, proved_optimal=False, cost_source="roofline of a100-40gb")
    text = "at most 0.01% above the bound (in predicted times: roofline of a100-40gb)"
    assert text in dict(rows(optimize_document(proved)))["Search"]
    assert text in " ".join(printed(print_optimize, optimize_document(proved)).split())
    measured = changed(gap=0.0001, proved_optimal=False, cost_source="measured on this machine")
    assert (
        "in operation times measured on this machine"
        in dict(rows(optimize_document(measured)))["Search"]
    )


def test_a_busy_machine_is_one_note():
    costed = "the machine was busy while operation times were measured (50%): they may be too long"
    timed = "the machine was busy while steps were timed: threads waited for a core for 20.00%"
    both = f"{costed}; it was busy, too, while steps were timed"
    assert that_matter([costed, "other", timed]) == [both, "other"]
    for alone in (costed, timed):
        assert that_matter(["other", alone]) == ["other", alone]


def test_what_is_left_out_is_printed_in_full():
    payload = optimize_document(examples.optimize_result())
    full = printed(print_optimize, payload)
    for heading in ("Largest decisions", "Memory on ONNX Runtime", "Assumed", "What to do next"):
        assert heading in full and heading not in printed(print_optimize_brief, payload)


def test_one_of_a_kind_is_counted_in_the_singular():
    result = examples.optimize_result(4)
    checks = dataclasses.replace(result.verification, outputs=result.verification.outputs[:1])
    payload = optimize_document(dataclasses.replace(result, verification=checks))
    named = dict(rows(payload))
    assert re.fullmatch(
        r"1 operation recomputed \(.*\), 1 tensor swapped \(.* out, .* in, .*\)", named["Done"]
    )
    assert "1 of 1 output bit-identical" in named["Verified"]
    assert f"Done      {named['Done']}" in printed(print_optimize, payload)


def test_names_of_files_below_the_working_folder_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = dataclasses.replace(
        examples.optimize_result(),
        model_path=tmp_path / "in" / "a b.onnx",
        output_path=tmp_path / "out" / "small.onnx",
        plan_path=tmp_path.parent / "p.json",
    )
    payload = optimize_document(result)
    for function in (print_optimize_brief, print_optimize):
        text = printed(function, payload)
        assert "out/small.onnx" in text and str(tmp_path / "out") not in text
        assert str(tmp_path.parent / "p.json") in text
        assert "planner optimize 'in/a b.onnx' --budget" in text
    assert payload.model == str(tmp_path / "in" / "a b.onnx")  # the document says where it is


def test_what_a_real_run_remarks_as_a_matter_of_course_is_left_out(tmp_path):
    result = optimize(
        ZOO / "mlp_adamw.onnx",
        budget="75%",
        output=tmp_path / "m.onnx",
        swap="none",
        resident="device",
        time_limit_s=0.5,
    )
    payload = optimize_document(result)
    said = [*payload.assumptions, *payload.verification.notes]
    assert any(text.startswith("operation times are a roofline") for text in said)
    due = ("the budget bounds live bytes", "the machine was busy", "step times vary")
    assert not {text for text in that_matter(said) if not any(part in text for part in due)}
    assert len(printed(print_optimize_brief, payload).splitlines()) <= 16


def test_each_routine_remark_is_one_that_planner_makes():
    folder = Path(planner.__file__).parent
    known = Path(remarks.__file__)
    text = "".join(p.read_text() for p in sorted(folder.rglob("*.py")) if p != known)
    text = re.sub(r'"\s*\n\s*f?"', "", text)  # a sentence in several pieces
    for beginning in ROUTINE:
        words = re.sub(r"\(\?!.*", "", beginning).replace("\\(", "(").replace("\\)", ")")
        fixed = max(re.split(r"\\d\+|\[\\d,\]\+|\\w\+|\.\*|[|]", words), key=len).strip("() ")
        assert len(fixed) > 12 and fixed in text, beginning
