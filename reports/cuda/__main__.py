"""`reports/cuda.md` from what was measured on a CUDA device: `python -m reports.cuda`.

python -m reports.cuda.facts                       on the device: cuda_facts.json
python -m reports.device cuda                      device_cuda.json
reports.cuda.large of revision 77b3e6b             cuda_large.json (now: python -m reports.gpu)
python -m reports.cuda.convolutions GRAPH.onnx     cuda_convolutions.json
python -m reports.cuda                             anywhere: the page
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reports.device import holds

FOLDER = Path(__file__).parents[1]
GIB, MIB = 2**30, 2**20
_ROWS = 36
Row = Mapping[str, Any]

_HEAD = """\
# Plans on NVIDIA GPUs

Measured with onnxruntime-gpu 1.31.1 (CUDA 13, cuDNN 9), driver 580.159, 16 CPU cores; machine code for
other GPUs was taken out of the provider's library to carry it there, and nothing else changed. Plans ran
on one H200 (143,771 MiB), and the one large graph that says so on one H100 80 GB HBM3; the facts, cuDNN's
algorithms and copies on streams of their own are of that H100. Written by `python -m reports.cuda`; that
program's first lines say how each figure is made again.

The predictions of memory were written from ONNX Runtime's source before planner had seen a GPU.
"""


def page() -> str:
    """The text."""
    rows, large = _read("device_cuda.json"), _read("cuda_large.json")
    parts = [
        _HEAD,
        *_summary(rows, large),
        *_large(large),
        *_memory(rows),
        *_beside(large),
        *_facts(_read("cuda_facts.json")),
        *_convolutions(_read("cuda_convolutions.json")),
        *_overlap(_read("overlap_cuda.json")),
        *_missing(rows),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _read(name: str) -> Any:
    path = FOLDER / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _summary(rows: list[Row], large: list[Row]) -> Iterator[str]:
    verified = [row for row in large if "passed" in row]
    count = sum(holds(row) for row in rows)
    yield "## What holds"
    yield ""
    yield (
        f"- **{count} of {len(rows)} plans** of six small networks "
        "([device_cuda.md](device_cuda.md)) and "
        f"{sum(row['passed'] for row in verified)} of {len(verified)} of large graphs: the device and "
        "the CPU run their nodes in the planned order under default options, every planned copy runs "
        "and no other, outputs are the original's bit for bit wherever those are the same in two runs "
        "and within its tolerance elsewhere, and in an arena in which the original fails the rewritten "
        "model runs."
    )
    live = [row["live"][m] for row in [*rows, *verified] for m in ("original", "rewritten")]
    exact = sum(predicted == measured for predicted, measured in live)
    yield f"- **Live bytes**: {exact} of {len(live)} peaks are as predicted, to the byte."
    off = [row["bound_ratio"] / row["predicted_ratio"] - 1 for row in verified]
    yield (
        f"- **Times**: what a plan of a large graph costs is predicted from operation times measured on "
        f"the device: the ratio measured is {min(off):+.1%} to {max(off):+.1%} off, the median "
        f"{statistics.median(off):+.1%}."
    )
    yield ""


def _large(rows: list[Row]) -> Iterator[str]:
    yield "## Large graphs"
    yield ""
    yield (
        "float32 training graphs, arrays on the device (bound). *Step*: the least of several runs in "
        "turns; predicted from operation times that were measured on the device. *Host*: the same with "
        "NumPy arrays in and out. BERT-base at 60% has no room for its parameters beside their "
        "gradients: 152 of its inputs and outputs wait on the host, in pageable memory."
    )
    yield ""
    yield (
        "| graph | GPU | budget | live GiB | arena GiB (predicted) | runs in | step | predicted | host "
        "| outputs |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        original_s, rewritten_s = (min(times) for times in row["bound_s"])
        step = f"{1e3 * original_s:.1f} -> {1e3 * rewritten_s:.1f} ms, ×{row['bound_ratio']:.3f}"
        live = " -> ".join(f"{row['live'][m][1] / GIB:.2f}" for m in ("original", "rewritten"))
        held = " -> ".join(
            f"{row['held'][f'{m}, recommended'][1] / GIB:.2f} "
            f"({row['held'][f'{m}, recommended'][0] / GIB:.2f})"
            for m in ("original", "rewritten")
        )
        cap, _, _, over, _ = row["cap"]["rewritten"]
        predicted = " -> ".join(f"{us / 1e3:.0f}" for us in row["predicted_us"])
        yield (
            f"| {row['model']} | {row['card'].split()[1]} | {row['asked']} | {live} | {held} "
            f"| {cap / GIB:.2f} GiB, "
            f"{over / row['budget_bytes']:+.0%}; the original fails there | {step} | {predicted} ms, "
            f"×{row['predicted_ratio']:.3f} | ×{row['host_ratio']:.3f} "
            f"| {row['identical']}/{row['outputs']} identical |"
        )
    yield ""


def _memory(rows: list[Row]) -> Iterator[str]:
    yield "## Memory: predicted and measured"
    yield ""
    yield (
        "What the arena held over two runs (`mem_arena_held` of ONNX Runtime's profile), original and "
        "rewritten models of the small networks, predicted / measured - 1:"
    )
    yield ""
    yield "| networks | options | models | median | worst |"
    yield "|---|---|---:|---:|---:|"
    convolutional = {"resnet18", "unet", "vit"}
    plain = [row for row in rows if row["model"] not in convolutional]
    others = [row for row in rows if row["model"] in convolutional]
    for title, some in (("without convolutions", plain), ("with convolutions", others)):
        for options, key in (("recommended", "held"), ("default", "held_by_default")):
            pairs = [row[key][m] for row in some for m in ("original", "rewritten")]
            off = [predicted / held - 1 for predicted, held in pairs]
            if off:
                worst = max(off, key=abs)
                middle = statistics.median(off)
                yield f"| {title} | {options} | {len(off)} | {middle:+.2%} | {worst:+.2%} |"
    yield ""
    yield (
        "*Recommended*: memory pattern and reuse off, regions as requested. cuDNN's workspace is in the "
        "arena and in no prediction: it is what is missing with convolutions. By *default* the "
        "second run "
        "takes one block for everything beside what the first run left, about as much again:"
    )
    yield ""
    yield "| network | budget | swaps | default MiB | recommended MiB | runs in an arena of the budget |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        default = " -> ".join(_mib(row["held_by_default"][m][1]) for m in ("original", "rewritten"))
        tight = " -> ".join(_mib(row["held"][m][1]) for m in ("original", "rewritten"))
        over = row["cap"]["rewritten"][3] / row["budget_bytes"]
        yield (
            f"| {row['model']} | {row['asked']} | {row['swap']} | {default} | {tight} | "
            f"{'yes' if not over else f'{over:+.0%}'} |"
        )
    yield ""
    yield (
        "Plans are fitted to an arena of the budget by a replay, with inputs, initializers and outputs "
        "in it (most of these sixteen at a time, 8 s each): "
        f"{_in_budget(plain)} of the {len(plain)} without convolutions and "
        f"{_in_budget(rows) - _in_budget(plain)} of the {len(rows) - len(plain)} with them ran in it; "
        f"the median needs {_over(plain)} more without and {_over(others)} with them, where no order was "
        "found that fits, or kernels take more than the replay knows: cuDNN's workspace above all."
    )
    yield ""


def beside_arena(row: Row) -> int:
    """Bytes of a large graph's process, after two runs under default options, that its arena does not
    hold."""
    return row["driver_original"][-1] - row["held"]["original, default"][1]


def _beside(large: list[Row]) -> Iterator[str]:
    yield "## Beside the arena"
    yield ""
    taken = [beside_arena(row) for row in large if row.get("driver_original")]
    yield (
        "What a process has on the device by NVML, as `nvidia-smi` shows it, less what the arena "
        "holds: the driver's context, the code of kernels, cuBLAS and cuDNN. After two runs of each "
        f"large graph as it is, under default options: {min(taken) / GIB:.2f} to "
        f"{max(taken) / GIB:.2f} GiB. Where a GPU's memory is the budget, `planner optimize` and "
        "`planner fit` set 1 GiB aside for it "
        "(`planner/defaults.py`)."
    )
    yield ""
    yield "| graph | GPU | process GiB | arena GiB | beside it GiB |"
    yield "|---|---|---:|---:|---:|"
    for row in large:
        if row.get("driver_original"):
            driver, held = row["driver_original"][-1], row["held"]["original, default"][1]
            yield (
                f"| {row['model']} | {row['card'].split()[1]} | {driver / GIB:.2f} | {held / GIB:.2f} "
                f"| {beside_arena(row) / GIB:.2f} |"
            )
    yield ""


def _in_budget(rows: list[Row]) -> int:
    return sum(not row["cap"]["rewritten"][3] for row in rows)


def _over(rows: list[Row]) -> str:
    middle = statistics.median(row["cap"]["rewritten"][3] / row["budget_bytes"] for row in rows)
    return f"{middle:.0%}"


def _mib(size: int) -> str:
    return f"{size / MIB:.2f}"


def _facts(rows: list[Row]) -> Iterator[str]:
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row["case"], []).append(row)
    size, copies = by["size"][0], by["copies"][0]
    limit, graphs, feeds = by["limit"][0], by["cuda_graph"][0], by["feeds"][0]
    steady = [row for row in by["steady"] if "steady" in row]
    over = [row["op"] for row in by["inplace"] if row.get("taken_mib") == 64 and _here(row)]
    beside = [row["op"] for row in by["inplace"] if row.get("taken_mib") == 128 and _here(row)]
    rate = 2 * copies["bytes"] / copies["copies_s"] / 1e9
    at = {
        name: {node: in_use for node, in_use, _ in case["nodes"]}
        for name, case in feeds.items()
        if isinstance(case, dict)
    }
    yield "## Facts"
    yield ""
    yield "| question | answer |"
    yield "|---|---|"
    yield (
        f"| Does `Size` of a tensor on the device copy it? | no: {size['8_s'] * 1e3:.2f} ms a "
        "step with eight "
        f"of 64 MiB each, {size['0_s'] * 1e3:.2f} ms without; it runs on the device |"
    )
    yield (
        f"| Which kernels write over their input? | {_list(over)} (views among them). Beside it: "
        f"{_list(beside)} |"
    )
    yield (
        "| When is what is fed copied? | before the first node, for the whole run: "
        f"{at['fed']['n1']:.0f} MiB in use at the second. Where a `MemcpyFromHost` alone reads "
        "it, there: "
        f"{at['fed, copied']['n2']:.0f} MiB. An initializer behind such a copy is folded and "
        "stays on the "
        f"device ({at['initializer, copied']['n2']:.0f} MiB), but for one that is a graph input, too "
        f"({at['overridable, copied']['n2']:.0f} MiB) |"
    )
    yield (
        f"| How fast are copies? | {rate:.0f} GB/s, out and back in pinned memory; arrays of NumPy about "
        "10.7 GB/s either way (the four large graphs' steps on the host less those on the device) |"
    )
    yield (
        f"| Does anything overlap? | no: products {copies['products_s'] * 1e3:.1f} ms, copies "
        f"{copies['copies_s'] * 1e3:.1f} ms, both {copies['both_s'] * 1e3:.1f} ms |"
    )
    yield (
        "| What does `gpu_mem_limit` bound? | the device's arena, inputs and outputs in it: of "
        "four buffers, "
        f"3.9 do not fit, 4.1 do; pinned memory is not counted ({_pinned(limit)}) |"
    )
    yield (
        "| Do copies go with `enable_cuda_graph`? | no: without them a session "
        f"{graphs['no copies']}; with "
        "them it is refused |"
    )
    unsteady = [row["steady"] for row in steady if row["in_all"] > 1]
    yield (
        f"| Which operators give other bits in other runs? | {_list(unsteady)}: those that add up "
        "rows, with "
        f"atomics. {len(steady) - len(unsteady)} others gave the same bits in 32 runs of three sessions, "
        "convolutions and products among them |"
    )
    refused = [row["call"][0] for row in by["steady"] if "error" in row]
    if refused:
        yield f"| What does not load? | {_list(refused)} with `training_mode`, from operator set 14 on |"
    yield ""


def _here(row: Row) -> bool:
    return row["provider"] == ["CUDAExecutionProvider"]


def _pinned(limit: Row) -> str:
    ((name, said),) = ((n, s) for n, s in limit.items() if "pinned" in n)
    return f"{name}: {said if said == 'runs' else 'fails'}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _convolutions(rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    yield "## cuDNN's algorithms"
    yield ""
    yield (
        "A step of ResNet-50 (32 images, 2,570 nodes, forward and backward), inputs and outputs on the "
        "device, by two options of the provider. The default is EXHAUSTIVE with the largest workspace."
    )
    yield ""
    yield "| `cudnn_conv_algo_search` | largest workspace | step | first step | arena GiB, in use |"
    yield "|---|---|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row['search']} | {'yes' if row['max_workspace'] == '1' else 'no'} | "
            f"{row['least_s'] * 1e3:.1f} ms | {row['first_s'] * 1e3:.0f} ms | "
            f"{row['in_use_peak'] / GIB:.2f} |"
        )
    yield ""


def _overlap(found: Row) -> Iterator[str]:
    if not found:
        return
    one_s, own_s = found["median_s"]
    yield "## Copies on streams of their own"
    yield ""
    yield (
        f"A chain with tensors of {4 * found['width'] ** 2 // MIB} MiB that are copied out and back: "
        f"**{found['different']} of {found['steps']} steps gave other bits** with copies on "
        "streams of their "
        f"own than on one stream; a second session on one stream, {found['control']} of "
        f"{found['steps']}. "
        f"A step took {own_s * 1e3:.2f} ms instead of {one_s * 1e3:.2f} ms. What ONNX Runtime's "
        "source says "
        "is so: a buffer is given to the next operation while a copy still reads it. So `--copies "
        "overlapped` uses operators of planner's own ([overlap.md](overlap.md))."
    )
    yield ""


def _missing(rows: list[Row]) -> Iterator[str]:
    yield "## Not measured"
    yield ""
    yield f"- {_ROWS - len(rows)} of the {_ROWS} rows that `python -m reports.device cuda` asks for."
    yield (
        "- Other GPUs and other types than float32; beside PyTorch, other networks than GPT-2 small "
        "([peers_cuda.md](peers_cuda.md))."
    )


def main() -> None:
    """Write the page."""
    (FOLDER / "cuda.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
