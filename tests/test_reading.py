"""Files of others: regular, of a stated size, text, and JSON of the types that are wanted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from planner.errors import ModelError, UsageError
from planner.files.reading import read_bytes, read_text, shown, why_not_a_file
from planner.files.structuring import Source, parse_json, read_json, structured


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
        read_json(file, list[int], what="a list")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 100_000, "nested too deep"),
        ("9" * 401, "a number of more than 400 digits"),
        ('{"a\\"": [-' + "9" * 401 + "]}", "a number of more than 400 digits"),
        ("9" * 5000, "out of range"),
        ("[1,", "truncated"),
        ("", "truncated"),
        ("nope", r"invalid character \(byte 4\)"),
        ("[1] 2", r"trailing characters \(byte 5\)"),
        ('{"a": [0, NaN]}', r"invalid character \(byte 10\)"),
        ("[Infinity]", r"invalid character \(byte 1\)"),
        ("[0, 1e999]", r"out of range - at `\$\[1\]`"),
        ("[01]", "invalid number"),
        ('"\x01"', "invalid character"),
        ('"\\ud800"', "it is not a document: "),
        ("\ud800", "it is not a document: "),
        ("\ufeff[]", "invalid character"),
    ],
)
def test_json_that_is_none_is_one_line(text: str, said: str):
    with pytest.raises(ModelError, match=said) as raised:
        parse_json(text, Any, where="it", what="a document")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 200


def test_whole_numbers_are_exact():
    text = f"[9007199254740993, {'9' * 400}]"
    assert parse_json(text, Any, where="it", what="a list") == [9007199254740993, 10**400 - 1]


def test_a_text_may_have_many_digits():
    digits = "9" * 1000
    data = {digits: f'a\\" {digits}', "b": ["\\", digits]}
    assert parse_json(json.dumps(data), Any, where="it", what="a document") == data


def test_a_long_value_leaves_the_place_in_the_message():
    text = f'{{"name": "n", "kind": "{"x" * 5000}"}}'
    with pytest.raises(
        ModelError, match=r"Invalid enum value 'x+\.\.\.x+' - at `\$\.kind`$"
    ) as raised:
        parse_json(text, _Outer, where="it", what="right")
    assert len(str(raised.value)) < 200


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
    kind: Literal["one", "other"] = "one"
    named: dict[str, _Inner] = field(default_factory=dict)


def test_a_document_of_the_right_types_is_taken():
    data = {"name": "n", "ratio": 1, "inner": [{"size": 9007199254740993}], "pairs": [["a", 1]]}
    assert structured(data, _Outer, Source(where="it", what="right")) == _Outer(
        name="n", ratio=1.0, inner=(_Inner(size=9007199254740993),), pairs=(("a", 1),)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 1}, r"Expected `str`, got `int` - at `\$\.name`"),
        ({"ratio": "1"}, r"Expected `float`, got `str` - at `\$\.ratio`"),
        ({"ratio": True}, r"Expected `float`, got `bool` - at `\$\.ratio`"),
        ({"ratio": None}, r"Expected `float`, got `null` - at `\$\.ratio`"),
        ({"ratio": 10**399}, r"out of range - at `\$\.ratio`"),
        ({"flag": 1}, r"Expected `bool`, got `int` - at `\$\.flag`"),
        ({"inner": "ab"}, r"Expected `array`, got `str` - at `\$\.inner`"),
        ({"inner": [3]}, r"Expected `object`, got `int` - at `\$\.inner\[0\]`"),
        ({"inner": [{"size": 1.0}]}, r"Expected `int`, got `float` - at `\$\.inner\[0\]\.size`"),
        ({"inner": [{"size": 1.5}]}, r"Expected `int`, got `float` - at `\$\.inner\[0\]\.size`"),
        ({"inner": [{"size": True}]}, r"Expected `int`, got `bool` - at `\$\.inner\[0\]\.size`"),
        ({"inner": [{"size": "1"}]}, r"Expected `int`, got `str` - at `\$\.inner\[0\]\.size`"),
        ({"inner": [{}]}, r"missing required field `size` - at `\$\.inner\[0\]`"),
        ({"pairs": [["a", 1, 2]]}, r"Expected `array` of length 2.* - at `\$\.pairs\[0\]`"),
        ({"pairs": ["ab"]}, r"Expected `array`, got `str` - at `\$\.pairs\[0\]`"),
        ({"table": {"a": 1.5}}, r"Expected `int`, got `float` - at `\$\.table"),
        ({"table": []}, r"Expected `object \| null`, got `array` - at `\$\.table`"),
        ({"kind": "third"}, r"Invalid enum value 'third' - at `\$\.kind`"),
    ],
)
def test_a_document_of_other_types_is_refused_with_the_place(change: dict[str, Any], said: str):
    data = {"name": "n"} | change
    with pytest.raises(ModelError, match=said) as raised:
        parse_json(json.dumps(data), _Outer, where="it", what="right")
    assert "\n" not in str(raised.value)
    with pytest.raises(ModelError, match=said):
        structured(data, _Outer, Source(where="it", what="right"))


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("only_known_keys", [True, False])
def test_numbers_that_toml_has_and_json_has_not_are_refused(number: str, only_known_keys: bool):
    data = {"name": "n", "inner": [{"size": 1}], "ratio": float(number)}
    with pytest.raises(ModelError, match=rf"{number} is not a finite number - at `\$\.ratio`"):
        structured(data, _Outer, Source(where="it", what="right"), only_known_keys=only_known_keys)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"more": 1}, r"unknown key 'more' - at `\$`"),
        ({"inner": [{"size": 1}, {"size": 1, "x": 2}]}, r"unknown key 'x' - at `\$\.inner\[1\]`"),
        ({"named": {"a": {"size": 1, "x": 2}}}, r"unknown key 'x' - at `\$\.named\['a'\]`"),
    ],
)
def test_keys_that_no_field_has_are_refused_or_left_out(change: dict[str, Any], said: str):
    data = {"name": "n"} | change
    with pytest.raises(ModelError, match=said):
        structured(data, _Outer, Source(where="it", what="right"))
    made = structured(data, _Outer, Source(where="it", what="right"), only_known_keys=False)
    assert made.name == "n" and not hasattr(made, "more")


def test_what_is_shown_of_a_value_is_short():
    assert shown("x" * 1000) == "'" + "x" * 36 + "..."
    assert shown(10**5000) == "a int"


def test_a_file_of_nearly_the_same_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    said = "does not exist; the closest name there is 'model.onnx'"
    assert why_not_a_file(tmp_path / "modell.onnx") == said
    assert why_not_a_file(tmp_path / "other.onnx") == "does not exist"
    assert why_not_a_file(tmp_path / "none" / "model.onnx") == "does not exist"
