"""planner beside what a PyTorch user would pick to lower the memory of a training step.

    python -m reports.peers                            every network, on the CPU
    python -m reports.peers --networks gpt,unet --rounds 20
    python -m reports.peers --device cuda --hardware h100    on a GPU (planner[gpu] and PyTorch for CUDA)
    python -m reports.peers --page-only                `peers.md` from `peers.json` alone

Equal networks, parameters, data, type and step (loss and all gradients, no optimizer): PyTorch eager,
checkpointing per block, torch.compile at several memory budgets, saved tensors copied away; the exported
graph on ONNX Runtime as it is; and planner's rewritten models, planned at each peer's own peak. Then
PyTorch's partitioner and planner's solver on one problem. A network's row goes to `peers.json` beside
this folder when it is done (`peers_cuda.json` for a GPU), and `peers.md` is written from that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports.peers.page import page
from reports.shared import FOLDER, program, read_rows, write_rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    options = _parser().parse_args(arguments)
    stem = "peers" if options.device == "cpu" else f"peers_{options.device}"
    result, written = options.folder / f"{stem}.json", options.folder / f"{stem}.md"
    rows = read_rows(result, {})
    if not options.page_only:
        from reports.peers.contest import Settings, measure
        from reports.peers.networks import GPU_NETWORKS, NETWORKS
        from reports.peers.pytorch import VARIANTS

        networks = NETWORKS if options.device == "cpu" else GPU_NETWORKS
        names = options.networks.split(",") if options.networks else list(networks)
        if unknown := [name for name in names if name not in networks]:
            print(f"no network {unknown[0]!r}; there are {', '.join(networks)}", file=sys.stderr)
            return 2
        settings = Settings(
            variants=options.variants.split(",") if options.variants else VARIANTS,
            rounds=options.rounds,
            threads=options.threads,
            limit_s=options.time_limit,
            device=options.device,
            hardware=options.hardware,
            built=options.built,
            fuse=("none",) if options.no_fusion else ("none", "auto"),
            partitioner=options.device == "cpu" and not options.no_partitioner,
        )
        for name in names:
            print(f"== {name}: {networks[name].title}", file=sys.stderr, flush=True)
            row = measure(name, networks[name], settings)
            if "partitioner" not in row and "partitioner" in rows.get(name, {}):
                row["partitioner"] = rows[name]["partitioner"]  # from an earlier call
            rows = {n: {**rows, name: row}[n] for n in networks if n in {**rows, name: row}}
            write_rows(result, rows)
            written.write_text(page(rows, options.device), encoding="utf-8")
    if rows:
        written.write_text(page(rows, options.device), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = program("reports.peers", __doc__)
    parser.add_argument("--networks", help="names with commas between (default: all)")
    parser.add_argument("--variants", help="PyTorch's, with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=10, help="of turns")
    parser.add_argument("--threads", type=int, default=2, help="of either runtime")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of each search, in seconds")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--hardware", default="cpu", help="planner's profile; the CPU is measured")
    parser.add_argument("--built", type=Path, help="folder of graphs exported before: NETWORK.onnx")
    parser.add_argument("--no-partitioner", action="store_true", help="leave the partitioner out")
    parser.add_argument("--no-fusion", action="store_true", help="leave plans of --fuse auto out")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results lie")
    return parser


if __name__ == "__main__":
    sys.exit(main())
