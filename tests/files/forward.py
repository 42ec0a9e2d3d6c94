"""Forward ONNX files, differentiated and planned: `python -m tests.files.forward [WORD...]`.

    pip install "onnx-planner[models,onnxsim]" torchvision timm
    python -m tests.files.forward               every model; with words, those with one in the name

Each module is written by `torch.onnx.export` for inference, made a training graph of by
`planner.differentiate` (mean square; gradients), and planned within 60% of its peak of live bytes (90%,
or what the error names, where there is no plan within that). Gradients are compared with autograd's where
the file has a module's parameter under its own name and value. Writes `reports/forward.json` and
`reports/forward.md`.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

from planner import differentiate
from planner.errors import PlannerError
from reports.shared import FOLDER, Row, line, mib, plain, program, read_rows, short, write_rows
from tests.files.measure import gained

RESULT, PAGE = FOLDER / "forward.json", FOLDER / "forward.md"
BATCH = 4
Made = tuple[nn.Module, Tensor]


def vision(name: str, size: int = 64, **more: Any) -> Made:
    import torchvision

    module = getattr(torchvision.models, name)(weights=None, **more)
    return module, torch.randn(BATCH, 3, size, size)


def of_timm(name: str, size: int = 64, **more: Any) -> Made:
    import timm

    return timm.create_model(name, pretrained=False, **more), torch.randn(BATCH, 3, size, size)


def text(kind: str, **sizes: int) -> Made:
    import transformers

    build = getattr(transformers, kind)
    config = build.config_class(
        vocab_size=100, bos_token_id=0, eos_token_id=1, pad_token_id=0, **sizes
    )
    config.use_cache = False
    return build(config), torch.randint(0, 100, (BATCH, 32))


MODELS: dict[str, Callable[[], Made]] = {
    "torchvision alexnet": partial(vision, "alexnet", size=96),
    "torchvision convnext_tiny": partial(vision, "convnext_tiny"),
    "torchvision densenet121": partial(vision, "densenet121"),
    "torchvision efficientnet_b0": partial(vision, "efficientnet_b0"),
    "torchvision mnasnet0_5": partial(vision, "mnasnet0_5"),
    "torchvision mobilenet_v2": partial(vision, "mobilenet_v2"),
    "torchvision regnet_y_400mf": partial(vision, "regnet_y_400mf"),
    "torchvision resnet18": partial(vision, "resnet18"),
    "torchvision shufflenet_v2_x0_5": partial(vision, "shufflenet_v2_x0_5"),
    "torchvision squeezenet1_1": partial(vision, "squeezenet1_1"),
    "torchvision swin_t": partial(vision, "swin_t"),
    "torchvision vgg11": partial(vision, "vgg11"),
    "torchvision vit_b_16": partial(vision, "vit_b_16", size=32, image_size=32),
    "timm mixer_s32_224": partial(of_timm, "mixer_s32_224", img_size=64),
    "timm resmlp_12_224": partial(of_timm, "resmlp_12_224", img_size=64),
    "timm vit_tiny_patch16_224": partial(of_timm, "vit_tiny_patch16_224", img_size=64),
    "transformers BertForSequenceClassification": partial(
        text,
        "BertForSequenceClassification",
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
    ),
    "transformers DistilBertForSequenceClassification": partial(
        text, "DistilBertForSequenceClassification", dim=64, n_layers=4, n_heads=4, hidden_dim=256
    ),
    "transformers ElectraForSequenceClassification": partial(
        text,
        "ElectraForSequenceClassification",
        hidden_size=64,
        embedding_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
    ),
    "transformers GPT2LMHeadModel": partial(
        text, "GPT2LMHeadModel", n_embd=64, n_layer=4, n_head=4, n_positions=64
    ),
}


class Logits(nn.Module):
    """A module whose result is a tensor."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        found = self.module(x)
        return found if isinstance(found, Tensor) else found.logits


def row_of(name: str, time_limit_s: float) -> Row:
    """One model; what fails is in the row, by its own message."""
    torch.manual_seed(0)
    made, inputs = MODELS[name]()
    module = Logits(made).eval()
    with torch.no_grad():  # equal tensors would be one in the file
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and tensor.numel() > 1:
                tensor.add_(0.01 * torch.randn_like(tensor))
    row: Row = {"model": name}
    with tempfile.TemporaryDirectory() as folder:
        path, training = Path(folder) / "forward.onnx", Path(folder) / "training.onnx"
        torch.onnx.export(
            module, (inputs,), path, input_names=["x"], external_data=False, verbose=False
        )
        row["forward_nodes"] = len(onnx.load(path).graph.node)
        try:
            graph = differentiate(path, loss="mse")
        except PlannerError as error:
            return {**row, "outcome": "refused", "why": str(error)}
        graph.save(training)
        row |= {"nodes": len(graph.model.graph.node), "trained": len(graph.parameters)}
        row |= _beside_autograd(graph, module, inputs)
        return row | gained(training, time_limit_s)


def _beside_autograd(graph: Any, module: nn.Module, inputs: Tensor) -> Row:
    """How far the gradients are apart, of parameters that the file has as the module has them."""
    found = module(inputs)
    target = torch.randn_like(found)
    nn.functional.mse_loss(found, target).backward()
    session = ort.InferenceSession(graph.model.SerializeToString())
    feeds = {"x": inputs.numpy(), "target": target.numpy(), **graph.parameters}
    names = [output.name for output in session.get_outputs()]
    arrays = dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))
    own = dict(module.named_parameters())
    off = whole = 0.0
    compared = 0
    for name, start in graph.parameters.items():
        parameter = own.get(name)
        if parameter is None or parameter.grad is None:
            continue
        if np.array_equal(parameter.detach().numpy(), start):
            gradient = parameter.grad.numpy()
            off += float(np.square(arrays[f"{name}_grad"] - gradient).sum())
            whole += float(np.square(gradient).sum())
            compared += 1
    return {"compared": compared, "apart": (off / whole) ** 0.5 if whole else None}


def page(rows: Sequence[Row], time_limit_s: float) -> str:
    """The rows as Markdown."""
    done = [row for row in rows if row["outcome"] != "refused"]
    verified = [row for row in done if row["outcome"] == "verified"]
    same = [row for row in verified if not row["plain_differ"]]
    refused = [row for row in rows if row["outcome"] == "refused"]
    lines = [
        "# Training graphs from forward files",
        "",
        f"onnxruntime {ort.__version__}, CPU; written by `python -m tests.files.forward`, "
        f"{time_limit_s:g} s for each plan. Models as `torch.onnx.export` writes them for inference; "
        f"batches of {BATCH}; loss (mean square) and gradients, compared with differences of the loss.",
        "",
        f"Of {len(rows)} models {len(done)} become training graphs, {len(verified)} of these are planned "
        f"and verified, {len(same)} with the same bits in plain sessions of both files.",
        "",
        "*Autograd*: norm of the difference of the gradients from PyTorch's, by their norm, over the "
        "parameters that the file has under PyTorch's names and values (an export folds batch "
        "normalizations into convolutions, whose weights are others then).",
        "",
        "| model | nodes | trained | autograd | budget | MiB live | MiB held | bits, plain |",
        "|---|---:|---:|---|---|---|---:|---:|",
        *(_line(row) for row in done),
        "",
    ]
    if refused:
        lines += ["| refused | why |", "|---|---|"]
        lines += [f"| {row['model']} | {short(row['why'], 200)} |" for row in refused]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row) -> str:
    apart = "-" if row["apart"] is None else f"{row['apart']:.0e} of {row['compared']}"
    cells = [row["model"], f"{row['nodes']:,}", str(row["trained"]), apart]
    if "budget_bytes" in row:
        cells += [
            f"{100 * row['budget_bytes'] / row['peak_bytes']:.0f}%",
            " -> ".join(mib(row[key], ".2f") for key in ("peak_bytes", "planned_bytes")),
            mib(row.get("measured_held_bytes"), ".2f"),
            plain(row),
        ]
    else:
        cells += [row["outcome"], "", "", ""]
    return line(*cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = program("tests.files.forward", __doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each plan")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    rows: dict[str, Row] = read_rows(RESULT, {})
    for name in MODELS:
        if not options.words or any(word in name for word in options.words):
            rows[name] = row_of(name, options.time_limit)
            print(json.dumps(rows[name]), flush=True)
            write_rows(RESULT, rows)
    ordered = [rows[name] for name in MODELS if name in rows]
    PAGE.write_text(page(ordered, options.time_limit), encoding="utf-8")


if __name__ == "__main__":
    main()
