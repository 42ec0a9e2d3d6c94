"""Files are written whole or not at all, and external data stays where it is."""

from __future__ import annotations

import os
import stat

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.errors import UsageError
from planner.files.writing import check_writable
from planner.onnxio.load import load_model
from planner.onnxio.save import atomic_write, write_model, written_together
from tests.onnxio.test_load import external, info, save


@pytest.fixture
def big(tmp_path):
    """A model with external data, in a folder of its own."""
    folder = tmp_path / "source"
    folder.mkdir()
    path = save(
        folder,
        [h.make_node("Add", ["x", "w"], ["y"], name="add")],
        [info("x", 4)],
        [info("y", 4)],
        [external("w", [4], offset=8)],
    )
    (folder / "weights.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    return path


def save_model(model: ir.Model, path) -> None:
    with atomic_write(path) as temporary:
        write_model(model, temporary)


def weight_fields(path) -> dict[str, str]:
    (tensor,) = onnx.load(path, load_external_data=False).graph.initializer
    assert tensor.data_location == T.EXTERNAL
    assert not tensor.raw_data
    return {entry.key: entry.value for entry in tensor.external_data}


def test_external_data_is_kept_by_reference(big):
    target = big.parent / "copy.onnx"
    before = (big.parent / "weights.bin").stat()
    save_model(load_model(big).model, target)
    assert weight_fields(target) == {"location": "weights.bin", "offset": "8", "length": "16"}
    after = (big.parent / "weights.bin").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert sorted(os.listdir(big.parent)) == ["copy.onnx", "model.onnx", "weights.bin"]
    value = load_model(target).model.graph.initializers["w"].const_value
    assert value is not None
    assert value.numpy().tolist() == [2, 3, 4, 5]


def test_external_data_below_the_output_s_folder_is_pointed_to(big):
    target = big.parent.parent / "copy.onnx"
    save_model(load_model(big).model, target)
    assert weight_fields(target)["location"] == os.path.join("source", "weights.bin")
    value = load_model(target).model.graph.initializers["w"].const_value
    assert value is not None
    assert value.numpy().tolist() == [2, 3, 4, 5]


def test_external_data_elsewhere_is_refused_and_nothing_is_written(big, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(UsageError, match="does not lie below"):
        save_model(load_model(big).model, elsewhere / "copy.onnx")
    assert not os.listdir(elsewhere)


def test_a_saved_model_is_the_model(tmp_path):
    path = save(
        tmp_path, [h.make_node("Neg", ["x"], ["y"], name="n")], [info("x", 4)], [info("y", 4)]
    )
    target = tmp_path / "copy.onnx"
    save_model(load_model(path).model, target)
    onnx.checker.check_model(str(target))
    assert onnx.load(target).graph == onnx.load(path).graph


def test_a_failed_save_leaves_nothing(tmp_path, big):
    class Broken(ir.Tensor):
        def tobytes(self) -> bytes:
            raise RuntimeError("the disk is gone")

    model = load_model(big).model
    value = model.graph.initializers["w"]
    value.const_value = Broken(np.ones(4, np.float32), name="w")
    target = big.parent / "copy.onnx"
    target.write_text("precious")
    with pytest.raises(Exception, match=r"."):
        save_model(model, target)
    assert target.read_text() == "precious"
    assert sorted(os.listdir(big.parent)) == ["copy.onnx", "model.onnx", "weights.bin"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "plan.json"
    path.write_text("old")
    with pytest.raises(error), atomic_write(path) as temporary:
        temporary.write_text("half of the n")
        assert path.read_text() == "old"
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_finished_write_replaces_what_was_there(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_written_file_has_the_user_s_usual_permissions(tmp_path):
    usual, written = tmp_path / "usual", tmp_path / "written"
    usual.write_text("")
    with atomic_write(written) as temporary:
        temporary.write_text("")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_check_writable(tmp_path):
    existing = tmp_path / "there"
    existing.write_text("")
    check_writable(tmp_path / "new", force=False)
    check_writable(existing, force=True)
    with pytest.raises(UsageError, match="exists"):
        check_writable(existing, force=False)
    with pytest.raises(UsageError, match="folder"):
        check_writable(tmp_path, force=True)
    with pytest.raises(UsageError, match="does not exist"):
        check_writable(tmp_path / "no" / "file", force=True)


def test_files_written_together_are_there_only_at_the_end(tmp_path):
    paths = [tmp_path / name for name in ("model", "plan", "report")]
    paths[1].write_text("old")
    with written_together() as files:
        for path in paths:
            with files.writing(path) as temporary:
                temporary.write_text("new")
        assert [path.exists() for path in paths] == [False, True, False]
        assert paths[1].read_text() == "old"
    assert [path.read_text() for path in paths] == ["new"] * 3
    assert len(os.listdir(tmp_path)) == 3


def test_where_one_of_several_cannot_be_renamed_all_is_as_it_was(tmp_path):
    paths = [tmp_path / name for name in ("model", "trace", "plan", "report")]
    paths[2].write_text("old plan")
    with (
        pytest.raises(UsageError, match=r"output .*model cannot be written: Is a directory"),
        written_together() as files,
    ):
        for path in paths:
            with files.writing(path) as temporary:
                temporary.write_text("new")
        paths[0].mkdir()  # between the check of the outputs and the end
        (paths[0] / "precious").write_text("mine")
    assert sorted(os.listdir(tmp_path)) == ["model", "plan"]
    assert paths[2].read_text() == "old plan"
    assert (paths[0] / "precious").read_text() == "mine"


def test_where_one_of_several_cannot_be_written_none_is(tmp_path):
    said = r"plan cannot be written: No space left.*free some room"
    with pytest.raises(UsageError, match=said), written_together() as files:
        with files.writing(tmp_path / "model") as temporary:
            temporary.write_text("whole")
        with files.writing(tmp_path / "plan"), open("/dev/full", "w") as full:
            full.write("too much")
    assert not os.listdir(tmp_path)
