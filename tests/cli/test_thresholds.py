"""--fail-if-...: what passes, what fails, and that the files stay."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import planner
from planner.cli.main import main
from planner.cli.thresholds import Thresholds, check_compared, check_optimized, parse_thresholds
from planner.errors import ThresholdError, UsageError
from planner.plan.planfile import PredictedCost
from planner.report.document.diff import diff_document
from planner.report.document.outcome import optimize_document
from tests.report import examples


@pytest.fixture(scope="module")
def headline():
    return optimize_document(examples.optimize_result()).headline


def test_texts_are_read():
    assert parse_thresholds(None, None) == Thresholds()
    assert parse_thresholds("1MiB", "5%") == Thresholds(peak_bytes=1 << 20, slower=Fraction(1, 20))
    assert parse_thresholds("105.5%", "0%") == Thresholds(
        peak_share=Fraction(211, 200), slower=Fraction(0)
    )
    assert parse_thresholds("90%", None).peak_limit(1000) == 900


@pytest.mark.parametrize("peak", ["16", "16G", "0B", "0%", "-1%", "", "abc"])
def test_what_is_no_peak_is_refused(peak):
    with pytest.raises(UsageError, match="--fail-if-peak-above"):
        parse_thresholds(peak, None)


@pytest.mark.parametrize("slower", ["5", "1.05", "-5%", "", "5 ms"])
def test_what_is_no_share_is_refused(slower):
    with pytest.raises(UsageError, match="--fail-if-slower-than"):
        parse_thresholds(None, slower)


def test_a_figure_at_its_threshold_passes(headline):
    peak = max(headline.peak_after_bytes, headline.measured_peak_after_bytes)
    check_optimized(parse_thresholds(f"{peak}B", "200%"), headline)
    check_optimized(parse_thresholds(None, None), headline)
    check_optimized(parse_thresholds("100%", None), headline)


def test_the_planned_and_the_measured_peak_are_checked_and_named(headline):
    assert headline.measured_peak_after_bytes > headline.peak_after_bytes
    with pytest.raises(ThresholdError, match=r"^the replayed peak, .* is above [^;]*$"):
        check_optimized(parse_thresholds(f"{headline.peak_after_bytes}B", None), headline)
    with pytest.raises(ThresholdError, match=r"the planned peak.*; the replayed peak"):
        check_optimized(parse_thresholds("1B", None), headline)


def test_the_predicted_and_the_measured_time_are_checked(headline):
    predicted, measured = headline.predicted_time_ratio, headline.measured_time_ratio
    assert measured < predicted
    between = f"{50 * (predicted + measured) - 100:.4f}%"
    with pytest.raises(ThresholdError, match=r"^the predicted step time is .* above the original"):
        check_optimized(parse_thresholds(None, between), headline)
    with pytest.raises(ThresholdError, match="the measured step time"):
        check_optimized(parse_thresholds(None, "1%"), headline)


def test_a_time_that_is_no_number_fails(headline):
    with pytest.raises(ThresholdError, match="measured"):
        check_optimized(
            parse_thresholds(None, "999%"),
            msgspec.structs.replace(headline, measured_time_ratio=float("nan")),
        )


def test_a_plan_is_compared_with_another():
    plan = examples.optimize_result().plan
    a, b = (
        dataclasses.replace(plan, planned=PredictedCost(peak_bytes=peak, time_us=time_us))
        for peak, time_us in ((100, 10.0), (110, 10.5))
    )
    document = diff_document(a, b, paths=(Path("a"), Path("b")))
    check_compared(parse_thresholds("110%", "5%"), document)
    with pytest.raises(ThresholdError, match="planned peak of the second plan"):
        check_compared(parse_thresholds("109%", None), document)
    with pytest.raises(ThresholdError, match=r"5.00% above the first's, more than 4.90%"):
        check_compared(parse_thresholds(None, "4.9%"), document)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """`planner optimize` with a hand-built result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    stand_in = SimpleNamespace(optimize=lambda *_, **__: examples.optimize_result())
    monkeypatch.setattr(planner, "api", stand_in, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "planner.api", stand_in)

    def run(*options: str) -> int:
        return main(["optimize", "model.onnx", "--budget", "60%", *options])

    run.api = stand_in
    return run


def test_the_exit_code_is_7_after_the_summary(command, capsys):
    assert command("--fail-if-peak-above", "1MiB") == 7
    out, err = capsys.readouterr()
    assert "Live " in out
    assert err.count("\n") == 1 and err.startswith("planner: error: the planned peak, ")
    assert command("--fail-if-peak-above", "1TB", "--fail-if-slower-than", "999%") == 0


def test_a_failed_verification_comes_first(command):
    result = examples.optimize_result()
    bad = dataclasses.replace(result.verification, passed=False, failures=("order",))
    command.api.optimize = lambda *_, **__: dataclasses.replace(result, verification=bad)
    assert command("--fail-if-peak-above", "1B") == 5


def test_a_bad_threshold_is_refused_before_any_work(command):
    def never(*_, **__):
        raise AssertionError("ran")

    command.api.optimize = never
    assert command("--fail-if-peak-above", "16") == 2
