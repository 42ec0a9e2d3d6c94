"""Networks of the sizes that people train, on the cards that they have; nothing of them is run.

    python -m reports.sizes                    every network
    python -m reports.sizes llama-7b           one

Each network is built on the meta device from its published configuration, and a step of it is exported
with a symbolic batch, with and without AdamW in the graph. Plans are made for a card of 24 GB and one of
80 GB, with all that may live on the host, and micro-batches where there is more than one sample. Every
step of the line is a process of its own, whose time and memory are taken from outside. Rows go to
`llama.json`, each as it is measured, and `llama.md` is written from them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from reports.shared import FOLDER, Row, program, read_rows, write_rows
from reports.sizes.networks import NETWORKS
from reports.sizes.page import page
from reports.sizes.watched import watched

RESULT, PAGE = FOLDER / "llama.json", FOLDER / "llama.md"
CARDS = {"rtx-4090": "24GB", "a100-80gb": "80GB"}
BATCHES: Mapping[str, tuple[int, ...]] = {
    "llama-7b": (1, 4),
    "llama-3-8b": (1, 4),
    "gpt2-xl": (8,),
    "vit-h": (64,),
}
OPTIMIZERS = ("none", "adamw")
_STEP = "reports.sizes.step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The subject of one row."""

    network: str
    optimizer: str
    batch: int
    card: str

    def arguments(self, model: Path, limit_s: float) -> list[str]:
        return [
            str(model),
            f"--network={self.network}",
            f"--optimizer={self.optimizer}",
            f"--batch={self.batch}",
            f"--hardware={self.card}",
            f"--budget={CARDS[self.card]}",
            f"--time-limit={limit_s}",
        ]

    def row(self, model: Path, exported: Row, limit_s: float, *, analyze: bool) -> Row:
        """Plan, and measure the report."""
        given = self.arguments(model, limit_s)
        found = {"export": exported, "optimize": watched(_STEP, "optimize", *given)}
        row: Row = {**asdict(self), **found}
        if row["optimize"].get("fits"):
            row["open"] = watched(_STEP, "open", *given)
        if analyze:
            row["analyze"] = watched(_STEP, "analyze", *given)
        return row


def cases(network: str, optimizer: str) -> Iterator[Case]:
    """Return the cases of one file."""
    for batch in BATCHES[network]:
        for card in CARDS:
            yield Case(network=network, optimizer=optimizer, batch=batch, card=card)


def measure(network: str, optimizer: str, limit_s: float) -> Iterator[Row]:
    """Yield the rows of one file, as they are measured."""
    with tempfile.TemporaryDirectory() as text:
        model = Path(text) / f"{network}.onnx"
        first = next(cases(network, optimizer))
        exported = watched(_STEP, "export", *first.arguments(model, limit_s))
        if "failed" in exported:
            raise SystemExit(f"{network} was not exported: {exported['failed']}")
        for case in cases(network, optimizer):
            is_first = case.card == first.card
            yield case.row(model, exported, limit_s, analyze=is_first)


def main() -> None:
    """Measure, and write the page."""
    parser = program("reports.sizes", __doc__)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="default: all")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="default: without and with AdamW")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of each search, in seconds")
    options = parser.parse_args()
    rows: list[Row] = read_rows(RESULT, {"rows": []})["rows"]
    every = [_key(asdict(c)) for n in NETWORKS for o in OPTIMIZERS for c in cases(n, o)]
    for network in options.networks or list(NETWORKS):
        for optimizer in [options.optimizer] if options.optimizer else OPTIMIZERS:
            for row in measure(network, optimizer, options.time_limit):
                rows = [r for r in rows if _key(r) != _key(row)] + [row]
                rows.sort(key=lambda r: every.index(_key(r)))
                data = {"limit_s": options.time_limit, "rows": rows}
                write_rows(RESULT, data)
                PAGE.write_text(page(data), encoding="utf-8")
                print(json.dumps(row)[:600], flush=True)


def _key(row: Row) -> tuple[str, str, int, str]:
    return row["network"], row["optimizer"], row["batch"], row["card"]


if __name__ == "__main__":
    main()
