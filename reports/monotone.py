"""PyTorch's memory budget and planner's, from budget to budget: `python -m reports.monotone`.

`activation_memory_budget` bounds what is saved from the forward to the backward pass; the peak may rise
as it falls (pytorch issue 197838, on a Llama-like model). A Llama of 16, 24 and 32 layers is partitioned
at the issue's budgets, as `reports.peers.partitioner` does it: the simulator says the peak of each
schedule, and planner plans the same operators within that peak. Rows go to `monotone.json`, the page to
`monotone.md`. Nothing is run but the operators, once, for their sizes.
"""

from __future__ import annotations

from itertools import pairwise

from reports.peers.networks import Network
from reports.peers.partitioner import rows
from reports.shared import FOLDER, Row, mib, program, read_rows, table, write_rows

RESULT, PAGE = FOLDER / "monotone.json", FOLDER / "monotone.md"
BUDGETS = (0.35, 0.30, 0.25, 0.20, 0.15, 0.10, 0.05)
LAYERS = (16, 24, 32)
SIZES = {"batch": 2, "seq": 256, "width": 256, "heads": 4, "vocabulary": 1024}

_ABOUT = """# A budget that bounds the peak

Written by `python -m reports.monotone`. A Llama of 16, 24 and 32 layers (2 × 256 tokens, 256 wide,
float32; PyTorch's own issue, 197838, has another size, on a GPU): PyTorch's min-cut partitioner at each
`activation_memory_budget`, and planner at the peak of its schedule, on the same operators in the same
order, with nothing fused. Peaks are the simulator's; the price is floating-point operations, by which
PyTorch reckons, too. *Adds*: operations beyond each operator run once. *Bound*: no plan in that order
adds less.
"""


def main() -> None:
    """Measure, and write the page."""
    parser = program("reports.monotone", __doc__)
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds for each plan")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Row]] = read_rows(RESULT, {})
    for layers in () if options.page_only else LAYERS:
        network = Network(
            title=f"Llama, {layers} layers", recipe="llama", sizes={**SIZES, "layers": layers}
        )
        found[network.title] = rows(network, 2, options.time_limit, BUDGETS, prices=("flops",))
        write_rows(RESULT, found)
    PAGE.write_text(page(found), encoding="utf-8")


def page(found: dict[str, list[Row]]) -> str:
    """Return the page."""
    lines = [
        _ABOUT,
        *table(
            ("network", "budget", "peak MiB (keep all)", "PyTorch adds", "planner adds", "bound"),
            (
                (
                    title,
                    f"{row['budget']:.2f}",
                    f"{mib(row['peak_bytes'])} ({mib(row['keep_all_bytes'])})",
                    f"{row['partitioner']['added']:.1%}",
                    f"{row['planner']['added']:.1%}" if row["planner"] else "no plan found",
                    f"{row['bound']:.1%}",
                )
                for title, measured in found.items()
                for row in measured
            ),
        ),
    ]
    for title, measured in found.items():
        peaks = [row["peak_bytes"] for row in measured]
        rises = sum(below > above for above, below in pairwise(peaks))
        lines += [
            "",
            f"{title}: the peak rises at {rises} of {len(peaks) - 1} steps down in PyTorch's budget; "
            f"planner has a plan within {sum(row['planner'] is not None for row in measured)} of the "
            f"{len(peaks)} peaks.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
