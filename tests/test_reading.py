"""Files of others: regular, of a stated size, text, and JSON of the types that are wanted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.errors import ModelError, UsageError
from planner.reading import parse_json, read_bytes, read_json, read_text, shown, why_not_a_file
from planner.structuring import structured


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", "gone", ".", "n" * 300, "zero\0byte"):
        assert why_not_a_file(tmp_path / name)
        with pytest.raises(ModelError):
            read_bytes(tmp_path / name, what="a file")
    with pytest.raises(UsageError, match="pipe"):
        read_bytes(tmp_path / "pipe", what="a file", error=UsageError)


def test_a_file_above_the_stated_size_is_not_read(tmp_path: Path):
    file = tmp_path / "large"
    with file.open("wb") as out:
        out.truncate(1 << 40)
    with pytest.raises(ModelError, match=f"it has {1 << 40} bytes, more than 100"):
        read_bytes(file, what="a file", at_most=100)


def test_text_is_utf8(tmp_path: Path):
    file = tmp_path / "text"
    file.write_bytes(b"caf\xc3\xa9 \xff")
    with pytest.raises(ModelError, match="byte 6 is not UTF-8"):
        read_text(file, what="a text")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="is not a list"):
        read_json(file, what="a list")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 401, "[1,", "", "nope"])
def test_json_that_is_none_is_one_line(text: str):
    with pytest.raises(ModelError) as raised:
        parse_json(text, where="it", what="a document")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 200


def test_whole_numbers_are_exact():
    assert parse_json("[9007199254740993]", where="it", what="a list") == [9007199254740993]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outer:
    name: str
    ratio: float = 0.0
    flag: bool = False
    inner: tuple[_Inner, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    table: dict[str, int] | None = None


def test_a_document_of_the_right_types_is_taken():
    data = {"name": "n", "ratio": 1, "inner": [{"size": 9007199254740993}], "pairs": [["a", 1]]}
    assert structured(data, _Outer, where="it", what="right") == _Outer(
        name="n", ratio=1.0, inner=(_Inner(size=9007199254740993),), pairs=(("a", 1),)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 1}, "1 is not a text @ file.name"),
        ({"ratio": "1"}, "'1' is not a number"),
        ({"ratio": True}, "True is not a number"),
        ({"ratio": float("nan")}, "nan is not a finite number"),
        ({"ratio": 10**400}, "is not a finite number"),
        ({"flag": 1}, "1 is not true or false"),
        ({"inner": "ab"}, "inner is 'ab', not a list"),
        ({"inner": [3]}, r"3 is not an object @ file.inner\[0\]"),
        ({"inner": [{"size": 1.0}]}, r"1.0 is not a whole number @ file.inner\[0\].size"),
        ({"inner": [{}]}, "the key 'size' is missing"),
        ({"pairs": [["a", 1, 2]]}, "it"),
        ({"pairs": ["ab"]}, "'b' is not a whole number"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_a_document_of_other_types_is_refused_with_the_place(change: dict[str, Any], said: str):
    with pytest.raises(ModelError, match=said) as raised:
        structured({"name": "n"} | change, _Outer, where="it", what="right")
    assert "\n" not in str(raised.value)


def test_what_is_shown_of_a_value_is_short():
    assert shown("x" * 1000) == "'" + "x" * 36 + "..."
    assert shown(10**5000) == "a int"
