"""Metadata read by itself is what onnx reads, and nothing else is taken for a model."""

from __future__ import annotations

import io

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.onnxio.metadata import read_metadata
from tests.reliability.graphs import diamond, proto

TEXTS = st.text(max_size=200)


def serialized(props: dict[str, str]) -> bytes:
    model = proto(diamond())
    onnx.helper.set_model_props(model, props)
    return model.SerializeToString()


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_it_is_what_onnx_reads(props: dict[str, str]):
    assert read_metadata(io.BytesIO(serialized(props))) == props


@given(st.data())
def test_a_part_of_a_model_is_none_or_has_a_part_of_its_metadata(data: st.DataObject):
    props = {"a": "1" * 200, "b": "2"}
    whole = serialized(props)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = read_metadata(io.BytesIO(part))
    except ValueError:
        return
    assert found.items() <= props.items()


@given(st.binary(max_size=300))
def test_other_bytes_are_a_model_to_onnx_too_or_an_error(content: bytes):
    try:
        found = read_metadata(io.BytesIO(content))
    except ValueError:
        return
    try:
        model = onnx.load_model_from_string(content)
    except Exception:
        return  # what it passes over may be broken
    assert found == {p.key: p.value for p in model.metadata_props}


def test_a_model_without_a_graph_is_none():
    model = onnx.ModelProto(ir_version=9)
    with pytest.raises(ValueError, match="no graph"):
        read_metadata(io.BytesIO(model.SerializeToString()))
