"""`literature.md`, from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reports.shared import line

_MB = 1e6

_INTRODUCTION = """# The literature's figures, beside planner's

Written by `python -m reports.literature`. Everything is by plan: predicted, nothing but one forward
pass of PyTorch is run. MB are 10⁶ bytes, as the papers have them.

## Sohoni et al. 2019: WideResNet-28-2, CIFAR-10, batch 100

N. Sohoni, C. Aberger, M. Leszczynski, J. Zhang, C. Ré: *Low-Memory Neural Network Training: A
Technical Report*, arXiv:1904.10631. The report's text could not be read here beyond its abstract (up
to 60.7 times less memory for this network, 8.7 times for a DynamicConv Transformer on IWSLT'14) and a
public summary (paperium.net: memory of the model, of the optimizer and of activations; a profiler that
adds up tensor storage along PyTorch's autograd graph; sparse parameters in compressed rows). Its
baseline of 404.8 MB and the steps of 42.6 and 12.2 MB are taken as given; which of its techniques
(sparsity, low precision, micro-batches, checkpointing) each step combines could not be read.
"""

_ADDS_UP = """
What adds up to the published figure: PyTorch's autograd keeps {autograd:.1f} MB from forward to
backward (counted here, each storage once, by `saved_tensors_hooks`); with four times the parameters'
{parameters:.2f} MB (parameters, momentum, gradients and one more such set) that is {sum:.1f} MB, and
the published figure is {published:.1f}. That it is made up so is our arithmetic, not the report's
text. planner's baseline, {peak:.1f} MB, is {off:+.1%} off. It is the peak of one moment, right behind
the loss, as ONNX Runtime runs the exported graph (`wrn28-2`, momentum SGD without weight decay in the
graph): parameters and momentum are there once each, the gradients of parameters and their new values
are not there yet, and gradients of activations are. The last activation, which autograd keeps (3.3
MB), is not read by the exported backward pass, whose gradient of a ReLU reads a sign.
"""

_STEPS = """
### Steps down

*Exact* levers keep every bit of the outputs (`--swap`, `--resident`, recompute); the peaks are the
least that searches of seconds found, before ONNX Runtime's fragmentation, and times are ratios
predicted by the profile `cpu`; plans at the least peak are far from the quickest, and a micro-batch's
time is one to that of its own graph. *Lossy* ones change
numbers: `--cast-saved`, which planner makes and verifies (`reports/precision.md`).
Micro-batches of {micro} are a graph of that batch with the gradients added up in one more set of the
parameters' size: batch normalization has statistics of its own in each, so that they change numbers,
too.
"""

_TRANSLATOR = """
## A Transformer for IWSLT'14

The recipe `translator` is fairseq's `transformer_iwslt_de_en` (6 + 6 layers, 512 wide, 4 heads, 10,000
tokens of both languages), AdamW in the graph, 128 × (32 + 32) tokens. The report's own is a
DynamicConv Transformer, whose dynamic convolutions are not built here, so that no figure of it can be
set beside this one.
"""

_TFLMS = """
## TFLMS: Le et al. 2019

T. Le, H. Imai, Y. Negishi, K. Kawachiya: *TFLMS: Large Model Support in TensorFlow by Graph
Rewriting*, arXiv:1807.02037; what they published is from the abstract. Here: the largest size whose
peak is within 16 or 32 GB as the model is, and with a plan (recompute and swaps), for CUDA, not run, with
the times of the profile `v100` (copies over PCIe 3). Workspace of cuDNN is not known and not counted.
ResNet-50 has 224×224 images and momentum SGD; 3D U-Net (Çiçek et al. 2016, 4 channels in, 3 classes)
batch 1 and AdamW.

The budget bounds live bytes, as the paper counts; a search takes {limit:.0f} s. *Beside*: the step by
the original's where copies run beside the operations (`--copies overlapped`); *between*: where they run
on the stream of the operations, as ONNX Runtime has its own. *Run again*, *swapped* and *MB*, copied out
and in, are of the plan beside. What is planned with copies between would take no longer with copies
beside: where *beside* is dearer, its search has not found that plan.
"""


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page."""
    s = found["sohoni"]
    peak = s["baseline"]["peak_bytes"]
    text = _INTRODUCTION + _split("baseline", s["baseline"])
    text += _ADDS_UP.format(
        autograd=s["autograd_bytes"] / _MB,
        parameters=s["parameter_bytes"] / _MB,
        sum=(s["autograd_bytes"] + 4 * s["parameter_bytes"]) / _MB,
        published=s["published_bytes"] / _MB,
        peak=peak / _MB,
        off=peak / s["published_bytes"] - 1,
    )
    text += _STEPS.format(micro=s["micro"]["batch"]) + _steps(s)
    text += _TRANSLATOR + _split("baseline", found["translator"]["baseline"])
    if "tflms" in found:
        text += _TFLMS.format(limit=found["tflms"][0]["limit_s"]) + _tflms(found["tflms"])
    return text


def _split(name: str, row: Mapping[str, Any]) -> str:
    parts = row["split"]
    return _table(
        ("MB", "peak", *parts), [(name, _mb(row["peak_bytes"]), *map(_mb, parts.values()))]
    )


def _steps(s: Mapping[str, Any]) -> str:
    peak, micro = s["baseline"]["peak_bytes"], s["micro"]
    more = s["parameter_bytes"]
    rows = [("published: baseline", _mb(s["published_bytes"]), "1.0", "", "")]
    rows += [
        ("published: a step", _mb(size), f"{s['published_bytes'] / size:.1f}", "", "")
        for size in s["steps_bytes"]
    ]

    def add(name: str, size: int, ratio: float | None, kind: str) -> None:
        time = "" if ratio is None else f"{ratio:.2f}"
        rows.append((name, _mb(size), f"{peak / size:.1f}", time, kind))

    add("planner: as it is", peak, 1.0, "exact")
    for name, found in s["least"].items():
        kind = "lossy" if found["halved_tensors"] else "exact"
        add(f"planner: {name}", found["peak_bytes"], found["ratio"], kind)
    batches = f"micro-batches of {micro['batch']}"
    add(batches, micro["baseline"]["peak_bytes"] + more, None, "lossy")
    for name, found in micro["least"].items():
        add(f"{batches}, {name}", found["peak_bytes"] + more, found["ratio"], "lossy")
    return _table(("", "peak, MB", "times less", "time", "numbers"), rows)


def _tflms(rows: Iterable[Mapping[str, Any]]) -> str:
    cells: list[tuple[str, ...]] = []
    for r in rows:
        start = (r["network"], f"{r['budget_bytes'] / 1e9:.0f}", r["option"], str(r["without"]))
        for size in r["sizes"]:
            grown = (size["size"] / r["without"]) ** r["power"]
            why = r["published"] if size["is_published"] else "the largest"
            cells.append((*start, str(size["size"]), f"{grown:.1f}", why, *_plan(size)))
    titles = ("network", "GB", "what grows", "as it is", "size", "times the elements", "")
    return _table((*titles, "beside", "between", "run again", "swapped", "MB"), cells)


def _plan(size: Mapping[str, Any]) -> tuple[str, ...]:
    beside, between = size["overlapped"], size["serial"]
    ratios = [f"{plan['ratio']:.2f}" if plan else "none found" for plan in (beside, between)]
    if not beside:
        return (*ratios, "", "", "")
    counts = ("recomputed_ops", "swapped_tensors")
    return (*ratios, *(f"{beside[c]:,}" for c in counts), f"{beside['copied_bytes'] / _MB:,.0f}")


def _mb(size: int) -> str:
    return f"{size / _MB:.1f}"


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n" + "\n".join(line(*cells) for cells in lines) + "\n"
