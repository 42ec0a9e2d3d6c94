"""The summaries for a terminal: the numbers of the payload, plain text, no escape sequences."""

import io

import pytest
from rich.console import Console

from planner.report.document.analysis import analyze_document
from planner.report.document.outcome import optimize_document
from planner.report.document.verification import verify_document
from planner.report.plain import printable
from planner.report.terminal.whole import print_analysis, print_optimize, print_verification
from tests.report import examples


def printed(function, payload, **options):
    stream = io.StringIO()
    console = Console(file=stream, width=110, highlight=False, markup=False, emoji=False, **options)
    function(payload, console)
    return stream.getvalue()


def test_optimize(snapshot):
    assert printed(print_optimize, optimize_document(examples.optimize_result())) == snapshot


def test_analyze(snapshot):
    assert printed(print_analysis, analyze_document(examples.analysis())) == snapshot


def test_a_failed_verification_names_what_failed():
    before = examples.view(examples.chain(4))
    v = examples.verification(before, before, passed=False)
    text = printed(print_verification, verify_document(v))
    assert "Verification failed" in text
    assert "failed: output dx0 differs by inf" in text
    assert "3 of 4 bit-identical; largest difference inf in w3.grad" in text


def test_control_characters_and_markup_stay_text():
    text = printed(print_analysis, analyze_document(examples.analysis()))
    assert "\x1b" not in text
    assert r"line\nbreak\x1b[31m" in text
    assert "[red]{{ 7 * 7 }}" in text


def test_no_color_is_honoured(monkeypatch):
    payload = analyze_document(examples.analysis())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    colored = printed(print_optimize, optimize_document(examples.optimize_result()),
                      force_terminal=True)  # fmt: skip
    assert "\x1b[1;31m" in colored
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;3" not in printed(print_analysis, payload, force_terminal=True)


@pytest.mark.parametrize("text", ["", "a" * 80, "naïve 🚀"])
def test_short_printable_text_is_untouched(text):
    assert printable(text) == text
