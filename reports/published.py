"""Networks of MODeL, ROAM and HiRemate, by plan: `python -m reports.published [ROW...]`, half an hour.

Order alone, at two batch sizes: the peak in the order in which PyTorch traced the step, in ONNX
Runtime's, in the best order found, and a bound over all orders. Recompute and order: the predicted step
at parts of the peak, and how long planning took. Nothing is run. Rows go to `published.json`, the page to
`published.md`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from planner import optimize
from planner.errors import InfeasibleBudgetError
from planner.graph.schedule import file_order
from planner.order.lists import min_peak_order
from planner.order.reorder import peak_of
from planner.pipeline.solve.orders import base_orders
from reports.literature import HARDWARE, built, on_gpu
from reports.shared import FOLDER, Row, program, read_rows, table, write_rows

RESULT, PAGE = FOLDER / "published.json", FOLDER / "published.md"
NETS = ("resnet18", "resnet50", "densenet121", "vit", "bert", "translator", "gpt2", "unet")
BATCHES, SHARES = (1, 32), (50, 40, 30)
LIMIT_S = 20.0

_ABOUT = f"""# Order alone, and recompute, beside published methods

Written by `python -m reports.published`. Training steps without an optimizer, planned for CUDA with
the times of the profile `{HARDWARE}`, not run. Papers' figures are of their abstracts, on their own
networks and PyTorch's graphs of them: beside ours they tell the size of an effect, not which is better.

- MODeL (Steiner et al., ICML 2023): order and placement, "30% less memory on average".
- ROAM (Shu et al., arXiv:2310.19295): order and placement, 35.7% less than PyTorch.
- HiRemate (Gusak et al., ICML 2025): recompute, 50 to 70% less memory for 10 to 15% more time.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows, and write the page."""
    parser = program("reports.published", __doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="network:batch (default: all)")
    asked = parser.parse_args(arguments).rows or [f"{net}:{b}" for net in NETS for b in BATCHES]
    rows: dict[str, Row] = read_rows(RESULT, {})
    with tempfile.TemporaryDirectory() as folder:
        for key in asked:
            net, _, batch = key.partition(":")
            path = built(net, Path(folder), "--batch", batch)
            is_last = int(batch) == BATCHES[-1]
            rows[key] = {**_orders(path), "shares": _shares(path) if is_last else {}}
            print(key, rows[key], flush=True)
            write_rows(RESULT, rows)
            PAGE.write_text(page(rows), encoding="utf-8")
    return 0


def _orders(path: Path) -> Row:
    prepared = on_gpu(path)
    whole = prepared.formulated()
    place = {op: i for i, op in enumerate(whole.ops)}
    traced = [place[op] for op in file_order(prepared.graph) if op in place]
    start = time.monotonic()
    found = base_orders(prepared, time_limit_s=LIMIT_S)
    return {
        "nodes": len(whole.ops),
        "traced_bytes": peak_of(whole.problem, traced),
        "own_bytes": peak_of(whole.problem, range(len(whole.ops))),
        "best_bytes": found[0].peak_bytes,
        "bound_bytes": min_peak_order(whole.problem, traced)[1],
        "took_s": time.monotonic() - start,
    }


def _shares(path: Path) -> Row:
    """Return the predicted step over the model's own, and the seconds of planning, at each share."""
    found: Row = {}
    for share in SHARES:
        start = time.monotonic()
        try:
            plan = optimize(
                path,
                budget=f"{share}%",
                budget_of="live",
                device="cuda",
                hardware=HARDWARE,
                swap="none",
                time_limit_s=LIMIT_S,
                reproducible=True,
                dry_run=True,
            ).plan
        except InfeasibleBudgetError:
            found[str(share)] = None
            continue
        ratio = plan.planned.time_us / plan.baseline.time_us
        found[str(share)] = {"ratio": ratio, "took_s": time.monotonic() - start}
    return found


def page(rows: dict[str, Row]) -> str:
    """Return the page."""
    saved = [1 - row["best_bytes"] / row["traced_bytes"] for row in rows.values()]
    lines = [
        _ABOUT,
        f"Order alone saves {sum(saved) / len(saved):.0%} of the traced order's peak on average. *Best* "
        "is that of the best order found, *bound* of any.",
        "",
        *table(
            (
                "network",
                "batch",
                "operations",
                "traced, MB",
                "ONNX Runtime's",
                "best",
                "bound",
                "s",
            ),
            (
                (
                    *key.split(":"),
                    f"{row['nodes']:,}",
                    *(
                        f"{row[f'{of}_bytes'] / 1e6:,.1f}"
                        for of in ("traced", "own", "best", "bound")
                    ),
                    f"{row['took_s']:.1f}",
                )
                for key, row in rows.items()
            ),
        ),
        "",
        f"Recompute and order, {LIMIT_S:.0f} s of work a search (`--reproducible`): the predicted step "
        "by the original's at a share of the peak in ONNX Runtime's order, and the seconds it took.",
        "",
        *table(
            ("network", "batch", *(f"{share}%" for share in SHARES)),
            (
                (*key.split(":"), *map(_share, row["shares"].values()))
                for key, row in rows.items()
                if row["shares"]
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def _share(at: Row | None) -> str:
    return f"×{at['ratio']:.3f} ({at['took_s']:.0f} s)" if at else "none found"


if __name__ == "__main__":
    sys.exit(main())
