import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.errors import UsageError
from planner.units import (
    check_budget,
    counted,
    format_both,
    format_budget,
    format_bytes,
    format_duration,
    format_percent,
    format_share,
    parse_budget,
    parse_bytes,
    typed_size,
)

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
REFUSED = [
    "0", "0B", "0.0GiB", "-1", "-1B", "16", "16G", "16M", "abc", "150%", "100.1%", "0%",
    "", " ", "%", "B", "nan", "inf", "1e3B", "1,5GB", "16 G B", "16Gib/s", "0.1B", "٣GB", "60%%",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refused_as_a_budget(text):
    with pytest.raises(UsageError) as refused:
        check_budget(text)
    assert "\n" not in str(refused.value)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["16", "16G", "1.5M"])
def test_a_bare_unit_is_called_ambiguous(text):
    with pytest.raises(UsageError, match="ambiguous: give a number with a unit"):
        check_budget(text)


@pytest.mark.parametrize("text", ["1 B", "1B", "60%", "100%", "0.001%", "16GB", "1.5 GiB", "2kib"])
def test_accepted_as_a_budget(text):
    check_budget(text)


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_every_unit_is_its_power(number, unit, space):
    assert parse_bytes(f"{number}{space}{unit}") == number * UNITS[unit]
    assert parse_bytes(f"{number}{space}{unit.lower()}") == number * UNITS[unit]


@given(st.integers(1, 2**53))
def test_whole_bytes_round_trip(size):
    assert parse_bytes(f"{size}B") == size


@given(st.integers(1, 2**62), st.booleans())
@example(1023, False)
@example(1024 * 1024 - 1, False)
@example(999_999, True)
def test_what_is_shown_parses_to_nearly_the_same(size, decimal):
    shown = format_bytes(size, decimal=decimal)
    assert re.fullmatch(r"\d+(\.\d\d)? [KMGTP]?i?B", shown)
    assert parse_bytes(shown) == pytest.approx(size, rel=0.006)
    assert parse_bytes(format_both(size).split(" = ")[0]) == pytest.approx(size, rel=0.006)


@given(st.integers(1, 2**62 - 2**55))
@example(775_091)
@example(1024 * 1024 - 1)
@example(999_999)
@example(2**61 - 1)
def test_a_budget_as_shown_is_enough(size):
    forms = format_budget(size).split(" = ")
    assert len(forms) == 2
    for shown in forms:
        assert size <= parse_budget(shown, baseline_bytes=1) <= size * 1.011 + 1


@given(st.integers(10**4, 2**50), st.integers(1, 10**4))
def test_a_share_as_shown_is_enough(baseline, share):
    budget = baseline * share // 10**4
    assert parse_budget(format_share(budget / baseline), baseline_bytes=baseline) >= budget


@given(st.integers(1, 2**50), st.integers(1, 100))
def test_a_percentage_is_of_the_baseline_and_rounds_down(baseline, percent):
    budget = parse_budget(f"{percent}%", baseline_bytes=baseline)
    assert budget == max(1, baseline * percent // 100)


def test_sizes_do_not_depend_on_the_baseline():
    assert parse_budget("16GB", baseline_bytes=1) == 16_000_000_000


def test_both_units_are_echoed():
    assert format_both(16_000_000_000) == "16.00 GB = 14.90 GiB"
    assert format_both(512) == "512 B = 512 B"


def test_zero_is_a_size_only_where_asked_for():
    assert parse_bytes("0B", zero_ok=True) == 0
    with pytest.raises(UsageError, match="more than 0 bytes"):
        parse_bytes("0B")
    with pytest.raises(UsageError, match="more than 0 bytes"):
        parse_bytes("0.1B", zero_ok=True)


def test_the_message_names_what_the_size_is_of():
    with pytest.raises(UsageError, match="--reserve '1x' is not understood"):
        parse_bytes("1x", what="--reserve")


@pytest.mark.parametrize(
    ("microseconds", "shown"),
    [(0, "0.0 µs"), (999.94, "999.9 µs"), (1234.5, "1.23 ms"), (2.5e6, "2.50 s")],
)
def test_durations(microseconds, shown):
    assert format_duration(microseconds) == shown


def test_percentages():
    assert format_percent(0.0312) == "3.12%"


@pytest.mark.parametrize(("text", "share"), [("0.6", "60%"), ("1", "100%"), (".25", "25%")])
def test_a_bare_share_is_offered_as_a_percentage(text: str, share: str) -> None:
    with pytest.raises(UsageError, match=f"or {share}, a share of the peak"):
        parse_budget(text, baseline_bytes=1000)


def test_a_bare_number_that_is_no_share_is_not() -> None:
    with pytest.raises(UsageError) as error:
        parse_budget("16", baseline_bytes=1000)
    assert "share" not in str(error.value)


def test_things_are_counted_with_their_verb():
    assert counted(1, "node") == "1 node" and counted(1200, "node") == "1,200 nodes"
    assert counted(1, "node", "are") == "1 node is" and counted(1, "pool", "run") == "1 pool runs"
    assert counted(0, "node", "are") == "0 nodes are" and counted(2, "pool", "run") == "2 pools run"


@pytest.mark.parametrize("size", [1, 999, 14_942_208, 14_945_001, 16 * 10**9 + 1])
def test_a_size_to_type_is_no_less(size: int):
    typed = typed_size(size)
    assert " " not in typed and size <= parse_bytes(typed) <= 1.01 * size + 1
