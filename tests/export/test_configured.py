"""The step of a model of transformers from its configuration alone."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
import transformers

from planner.cli.main import main
from planner.errors import UsageError
from planner.export.configured import configured_step, name_of
from planner.export.training import ExportedGraph, export_training_graph

SMALL = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
TEXT = {
    "gpt2": dict(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, pad_token_id=0),
    "llama": SMALL | dict(intermediate_size=64, max_position_embeddings=16, num_key_value_heads=1),
    "bert": SMALL | dict(intermediate_size=64, max_position_embeddings=16),
    "t5": dict(vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "net"


def saved(folder: Path, kind: str, options: dict[str, Any], *classes: str) -> str:
    config = transformers.AutoConfig.for_model(kind, **options)
    config.architectures = list(classes)
    config.save_pretrained(folder)
    return str(folder / "config.json")


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_configuration_takes_the_bytes_of_the_module(folder: Path, kind: str) -> None:
    source = saved(folder, kind, TEXT[kind])
    step = configured_step(source, {"batch": 4, "seq": 8})
    assert all(tensor.is_meta for tensor in step["module"].parameters())
    assert {name: tuple(t.shape) for name, t in step["example_inputs"].items()} == {
        "input_ids": (4, 8),
        "labels": (4, 8),
    }
    found = export_training_graph(**step)
    module = type(step["module"])(step["module"].config)
    ids = torch.randint(0, 50, (4, 8))
    wanted = export_training_graph(module, {"input_ids": ids, "labels": ids}, check=False)
    assert found.parameters == wanted.parameters
    of_values = {"Cast", "Gather"}  # of buffers, which are inputs here and folded away there
    assert not differing(found, wanted) - of_values


def differing(one: ExportedGraph, other: ExportedGraph) -> set[str]:
    """Operators of which one graph has more nodes than the other."""
    counts = [Counter(node.op_type for node in graph.model.graph.node) for graph in (one, other)]
    return {
        op_type for op_type in counts[0] | counts[1] if counts[0][op_type] != counts[1][op_type]
    }


def test_images_have_a_label_each(folder: Path) -> None:
    options = dict(image_size=32, patch_size=16, hidden_size=32, num_hidden_layers=1)
    options |= dict(num_attention_heads=2, intermediate_size=64)
    step = configured_step(saved(folder, "vit", options, "ViTForImageClassification"), {})
    shapes = {name: tuple(t.shape) for name, t in step["example_inputs"].items()}
    assert shapes == {"pixel_values": (2, 3, 32, 32), "labels": (2,)}
    proto = export_training_graph(**step).model.graph
    (image,) = (info for info in proto.input if info.name == "pixel_values")
    assert image.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_class_that_is_named_is_taken(folder: Path) -> None:
    source = saved(folder, "bert", TEXT["bert"], "BertForSequenceClassification")
    step = configured_step(source, {"seq": 8})
    assert step["name"] == "BertForSequenceClassification"
    assert step["example_inputs"]["labels"].shape == (2,)


@pytest.mark.parametrize(
    ("kind", "classes", "dims", "said"),
    [
        (
            "bert",
            ["BertForMaskedLM"],
            {"heads": 2},
            "has no dim 'heads'; it has batch and seq",
        ),
        ("gpt2", [], {"seq": 17}, "the model takes 16 tokens at most"),
        ("whisper", [], {}, "has inputs that planner does not know"),
    ],
)
def test_what_cannot_be_made_is_said(
    folder: Path, kind: str, classes: list[str], dims: dict[str, int], said: str
) -> None:
    source = saved(folder, kind, TEXT.get(kind, {}), *classes)
    with pytest.raises(UsageError, match=said):
        configured_step(source, dims)


@pytest.mark.parametrize(
    ("kind", "options", "shape", "dtype"),
    [
        ("llama", {"num_labels": 1}, (2,), torch.float32),
        ("bert", {"num_labels": 5}, (2,), torch.int64),
        ("bert", {"problem_type": "multi_label_classification"}, (2, 2), torch.float32),
        ("bert", {"num_labels": 5, "problem_type": "regression"}, (2, 5), torch.float32),
    ],
)
def test_labels_are_as_the_loss_takes_them(
    folder: Path, kind: str, options: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    named = f"{kind.title()}ForSequenceClassification"
    step = configured_step(saved(folder, kind, TEXT[kind] | options, named), {"seq": 8})
    labels = step["example_inputs"]["labels"]
    assert (tuple(labels.shape), labels.dtype) == (shape, dtype)
    if kind == "llama" or "num_labels" not in options:
        export_training_graph(**step)


def test_a_configuration_that_transformers_refuses(folder: Path) -> None:
    source = saved(folder, "llama", TEXT["llama"])
    text = Path(source).read_text().replace('"hidden_size": 32', '"hidden_size": "32"')
    Path(source).write_text(text)
    with pytest.raises(UsageError, match="no configuration: "):
        configured_step(source, {})


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no configuration"):
        configured_step(str(tmp_path / "nothing"), {})


def test_names() -> None:
    assert name_of("hf:meta-llama/Llama-3.2-1B") == "Llama-3.2-1B"
    assert name_of("hf:nets/llama/config.json") == "llama"
    assert name_of("hf:gpt2") == "gpt2"


def test_fit_is_the_fit_of_the_graph_that_export_writes(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "hf:" + saved(folder, "gpt2", TEXT["gpt2"])
    fit = ["--hardware", "t4", "--reproducible", "--json", "--time-limit", "1", "--dim", "batch=4"]
    assert main(["fit", source, "--dim", "seq=8", *fit]) == 0
    said = capsys.readouterr()
    direct = json.loads(said.out)
    line = next(line for line in said.err.splitlines() if "planner export" in line)
    _, *words = shlex.split(line[line.index("planner export") :])
    assert main(words) == 0
    capsys.readouterr()
    assert main(["fit", "net.onnx", *fit]) == 0
    of_file = json.loads(capsys.readouterr().out)
    for document in (direct, of_file):
        del document["seconds"]
    assert direct == of_file


def test_other_commands_say_what_makes_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "hf:gpt2"]) == 2
    assert "planner export hf:gpt2 -o model.onnx" in " ".join(capsys.readouterr().err.split())
