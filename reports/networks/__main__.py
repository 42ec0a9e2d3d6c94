"""Networks that people train, through the whole line: `python -m reports.networks [WORD...]`.

    pip install torchvision timm diffusers     beside onnx-planner[models]; what is missing is left out
    python -m reports.networks                 every network
    python -m reports.networks timm bert       those with one of these words in the name

Each is exported, its loss and gradients are compared with autograd's, and a plan that is held within 70%
of its peak (85% where nothing is, or what the error names) is verified on ONNX Runtime, in a process of
its own. Rows go to `reports/networks.json`, each as it is measured, and `reports/networks.md` is written
from them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from reports.shared import (
    FOLDER,
    Row,
    apart,
    line,
    mib,
    plain,
    program,
    read_rows,
    short,
    write_rows,
)

RESULT, PAGE = FOLDER / "networks.json", FOLDER / "networks.md"
TIMES = 1.5
"""As far as this from PyTorch, by how far PyTorch is from itself: both are drawn by chance."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = program("reports.networks", __doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each plan")
    parser.add_argument("--missing", action="store_true", help="only what has no row yet")
    options = parser.parse_args(arguments)
    from models.networks.catalogue import catalogue
    from reports.networks.measure import row_named

    networks, missing = catalogue()
    rows: dict[str, Row] = read_rows(RESULT, {})
    asked = [n for n in networks if not options.words or any(w in n for w in options.words)]
    for name in asked:
        if options.missing and name in rows:
            continue
        start = time.monotonic()
        ended = {"network": name, "export": "the process ended"}
        row = apart(row_named, name, options.time_limit) or ended
        rows[name] = {**row, "seconds": time.monotonic() - start}
        print(json.dumps(rows[name]), flush=True)
        rows = {n: rows[n] for n in networks if n in rows}
        write_rows(RESULT, rows)
        PAGE.write_text(page(list(rows.values()), options.time_limit), encoding="utf-8")
    for package in missing:
        print(f"{package} is not installed: its networks are left out", file=sys.stderr)
    return 0


def page(rows: Sequence[Row], time_limit_s: float) -> str:
    """Return the rows as Markdown."""
    import onnxruntime
    import torch

    from models.networks.unseen import unseen
    from reports.networks.measure import NEAR
    from reports.planned import BUDGETS
    from reports.session import over_and_off

    exported = [row for row in rows if not row["export"] and not row.get("numbers")]
    right = [row for row in exported if _is_right(row)]
    verified = [row for row in exported if row["plan"] == "verified"]
    refused = [row for row in exported if row["plan"] == "infeasible"]
    same = [row for row in verified if row["identical"] == row["outputs"]]
    plain = [row for row in verified if not row["plain_differ"]]
    live = [row for row in verified if row["budget_of"] == "live"]
    over, off = over_and_off(verified)
    names = unseen()
    late = [row for row in rows if row["network"] in names]
    text = [
        "# Networks",
        "",
        f"PyTorch {torch.__version__}, onnxruntime {onnxruntime.__version__}; written by "
        "`python -m reports.networks`. Small configurations of real module code, dropout set to 0.",
        "",
        f"Of {len(rows)}: {len(exported)} export and run, {len(right)} of these with autograd's numbers "
        f"(below); {len(verified)} are planned in {time_limit_s:g} s and verified, {len(same)} of these "
        f"bit for bit; for {len(refused)} no plan was found. The budget is {BUDGETS[0]} of the peak, "
        f"{BUDGETS[1]} where nothing is held within that, or what the error names.",
        "",
        f"Where `onnxruntime.InferenceSession(path)` opens both files, {len(plain)} of "
        f"{len(verified)} networks give the same bits in all results (*plain*). {len(over)} of "
        f"{len(verified) - len(live)} hold more than their budget as `planner.open_session` opens them; "
        f"what is held is predicted {off}. In {len(live)} more the budget bounds live bytes alone, as "
        "their outcomes say: less than 256 KiB comes and goes, or kernels pack constant weights.",
        "",
        f"{len(late)} of them were tried once the exporter stood (`models/networks/unseen.py`): "
        f"{sum(row in right for row in late)} export with autograd's numbers, "
        f"{sum(row in same for row in late)} are planned and verified bit for bit.",
        "",
        f"*Gradients*: norm of the difference of all gradients, by their norm. Above {NEAR:g}, *PyTorch* "
        "is the same between PyTorch and itself: in float64, and with inputs changed six times by a "
        "millionth or less, whichever is most; batch normalization of few values amplifies rounding, "
        "and a ReLU near 0 flips. A row counts as right where ONNX Runtime is no further off than "
        f"{TIMES:g} times that.",
        "",
        "*Plain*: results that are the same bits where `onnxruntime.InferenceSession(path)` opens both "
        "files, inputs that are written over included; *unstable* ones differ from run to run of the "
        "original. *Held*: MiB that ONNX Runtime's arena takes, inputs and initializers included: as "
        "`planner.open_session` opens the file, and under default options. Rows without "
        "these two are of an earlier revision, which looked at neither.",
        "",
        "| network | nodes | loss | gradients | PyTorch | plan | identical | plain | MiB | held | slower "
        "| seconds |",
        "|---|---:|---:|---:|---:|---|---:|---:|---|---|---:|---:|",
        *(_line(row) for row in exported),
        "",
    ]
    taken = [row for row in exported if row.get("assumed")]
    if taken:
        text += [
            "## Taken for granted",
            "",
            "What these networks' Python reads of tensors is as in the example inputs (`specialize`).",
            "",
            "| network | what is read |",
            "|---|---|",
            *(f"| {row['network']} | {'<br>'.join(map(short, row['assumed']))} |" for row in taken),
            "",
        ]
    failed = [(r, r["export"] or r["numbers"]) for r in rows if r not in exported]
    odd = [(r, r.get("why", "verification")) for r in exported if r["plan"] != "verified"]
    for title, found in (("Not exported", failed), ("Not planned or not verified", odd)):
        if found:
            text += [f"## {title}", "", "| network | why |", "|---|---|"]
            text += [*(f"| {row['network']} | {short(why)} |" for row, why in found), ""]
    return "\n".join(text)


def _is_right(row: Row) -> bool:
    from reports.networks.measure import NEAR

    return row["gradients_apart"] <= max(NEAR, TIMES * row.get("torch_apart", 0.0))


def _line(row: Row) -> str:
    cells = [
        row["network"] if _is_right(row) else f"**{row['network']}**",
        f"{row['nodes']:,}",
        f"{row['loss_apart']:.0e}",
        f"{row['gradients_apart']:.0e}",
        f"{row['torch_apart']:.0e}" if "torch_apart" in row else "",
        f"{row['plan']}, {_budget(row)}" if "budget" in row else row["plan"],
    ]
    if "outputs" in row:
        cells += [
            f"{row['identical']} of {row['outputs']}",
            plain(row),
            " -> ".join(mib(row[key], ".2f") for key in ("peak_bytes", "planned_bytes")),
            ", ".join(mib(row[f"measured_{key}_bytes"], ".2f") for key in ("held", "default_held")),
            f"{100 * row['added']:.1f}%",
        ]
    else:
        cells += ["", "", "", "", ""]
    cells.append(f"{row['seconds']:.0f}")
    return line(*cells)


def _budget(row: Row) -> str:
    """Return the budget as a share of the peak."""
    if row["budget"].endswith("%"):
        return row["budget"]
    return f"{100 * row['budget_bytes'] / row['peak_bytes']:.0f}% (named)"


if __name__ == "__main__":
    sys.exit(main())
