"""A training step in PyTorch beside the same step by `planner.torch.step`.

    python -m reports.torch_step                  every row
    python -m reports.torch_step gpt bert         these
    python -m reports.torch_step --page-only      the page alone, from what was measured

Each row is one network of `models.recipes` at a budget, trained by two fresh processes, the one in
PyTorch, the other by `planner.torch.step`, PyTorch's AdamW outside of both. They take a step in turns, so
that other work of the machine meets both. Writes `torch_step.json` and `torch_step.md` in this folder.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from reports.shared import FOLDER, MIB, Row, line, program, read_rows, write_rows

RESULT, PAGE = FOLDER / "torch_step.json", FOLDER / "torch_step.md"
STEPS, WARM, THREADS = 20, 3, 1
EAGER, PLANNED = "eager", "planned"

_TEXT = {"seq": 128, "width": 128, "layers": 4, "heads": 4}
ROWS: dict[str, tuple[str, str, dict[str, int]]] = {
    "gpt": ("gpt2", "60%", {"batch": 8, "vocabulary": 512, **_TEXT}),
    "resnet18": ("resnet18", "80%", {"batch": 32, "image_size": 64, "width": 16, "classes": 10}),
    "bert": ("bert", "80%", {"batch": 8, "vocabulary": 1000, **_TEXT}),
    "gpt_wide": (
        "gpt2",
        "60%",
        {"batch": 8, "seq": 256, "width": 384, "layers": 6, "heads": 6, "vocabulary": 4096},
    ),
}
"""The networks, by name: recipe, budget and size."""


class Trained:
    """One network in this process, trained one way.

    Attributes:
        bytes: what the process has grown by when it is `made`, is `ready`, and has `trained`: the
            high-water mark of its resident set, `ready` what is resident, all less what it had with
            PyTorch, the module and the optimizer.
    """

    def __init__(self, name: str, way: str) -> None:
        import torch

        from models.recipes import RECIPES
        from planner.export.initial import initial_specs
        from planner.export.inputs import draw_inputs
        from planner.running.alone_worker import _put_back, status_bytes

        recipe, budget, size = ROWS[name]
        made = RECIPES[recipe].step(RECIPES[recipe].sized(**size))
        values = draw_inputs(initial_specs(made.module))
        self.module = made.module.to_empty(device="cpu")
        state = {key: torch.from_numpy(array) for key, array in values.items()}
        self.module.load_state_dict(state, strict=False)
        x, y = (torch.from_numpy(array) for array in draw_inputs(made.inputs).values())
        self.optimizer = torch.optim.AdamW(self.module.parameters(), 1e-3)
        self.torch, self._now = str(torch.__version__), status_bytes
        self._before = _put_back()
        start = time.process_time()
        if way == PLANNED:
            import planner.torch

            step = planner.torch.step(self.module, x, made.loss, targets=y, budget=budget)
            self.loss_of = lambda: step(x, y)
        else:
            self.loss_of = lambda: made.loss(self.module(x), y)
        self.made_s = time.process_time() - start
        made = status_bytes("VmHWM") - self._before
        self.bytes = {"made": made, "ready": _put_back() - self._before}

    def step(self) -> Row:
        """Run one step; return its times with backward and without the optimizer, and its loss."""
        self.optimizer.zero_grad()
        start, start_cpu = time.perf_counter(), time.process_time()
        loss = self.loss_of()
        loss.backward()
        found = {"s": time.perf_counter() - start, "cpu_s": time.process_time() - start_cpu}
        self.optimizer.step()
        return {**found, "loss": loss.item()}

    def end(self) -> Row:
        """Return the other measurements."""
        found = {**self.bytes, "trained": self._now("VmHWM") - self._before}
        weights = sum(p.nbytes for p in self.module.parameters())
        return {"made_s": self.made_s, "bytes": found, "weights": weights, "torch": self.torch}


_here: list[Trained] = []
"""What is trained in this process."""


def begin(name: str, way: str) -> None:
    """Make what is trained in this process."""
    _here.append(Trained(name, way))


def answer(what: str) -> Row:
    """Call `step` or `end` of what is trained in this process."""
    return getattr(_here[0], what)()


def process(name: str, way: str) -> ProcessPoolExecutor:
    """Return a fresh process that trains one network one way."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=begin, initargs=(name, way))


def row_of(name: str) -> Row:
    """Measure one network, both ways."""
    recipe, budget, size = ROWS[name]
    row: Row = {"name": name, "recipe": recipe, "budget": budget, "size": size, "steps": STEPS}
    with process(name, PLANNED) as first:  # makes the plan, which the one that is measured finds
        first.submit(answer, "end").result()
    taken: dict[str, list[Row]] = {EAGER: [], PLANNED: []}
    with process(name, EAGER) as theirs, process(name, PLANNED) as ours:
        both = {EAGER: theirs, PLANNED: ours}
        for number in range(STEPS):
            for way in sorted(both, reverse=bool(number % 2)):
                taken[way].append(both[way].submit(answer, "step").result())
        for way, at in both.items():
            row[way] = {**at.submit(answer, "end").result(), "taken": taken[way]}
    return row


def ratio(row: Row, key: str) -> float:
    """Return the median over the steps of a time's ratio, planned to eager."""
    pairs = zip(row[PLANNED]["taken"][WARM:], row[EAGER]["taken"][WARM:], strict=True)
    return statistics.median(ours[key] / theirs[key] for ours, theirs in pairs)


def off(row: Row) -> list[float]:
    """Return the relative error of each loss against PyTorch's."""
    pairs = zip(row[PLANNED]["taken"], row[EAGER]["taken"], strict=True)
    return [abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"]) for ours, theirs in pairs]


def page(rows: Sequence[Row]) -> str:
    """Return the tables."""
    import onnxruntime

    threads = "one thread" if THREADS == 1 else f"{THREADS} threads"
    lines = [
        "# A step in PyTorch by `planner.torch.step`",
        "",
        f"torch {rows[0][EAGER]['torch']}, onnxruntime {onnxruntime.__version__}, CPU, {threads}; "
        "written by `python -m reports.torch_step`. Two fresh processes train the same network from the "
        f"same values, {STEPS} steps in turns, PyTorch's AdamW outside of both.",
        "",
        "*time*: loss and gradients by `planner.torch.step`, over PyTorch's, the median of the steps; "
        "*processor time* is the same of what the processes used, which other work on the machine "
        "changes less. *loss off*: by what share of PyTorch's the loss is off, at the first step, at the "
        "fifth, and at most: training carries rounding along, and a loss near 0 shows it. *made*: "
        "processor time of `planner.torch.step` itself where the plan is found: imports, the trace, the "
        "comparison with PyTorch.",
        "",
        "| network | budget | time | processor time | loss, first -> last | loss off: first, fifth, most "
        "| made |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_times(row) for row in rows),
        "",
        "MiB that a process grows by, with PyTorch, the module and the optimizer there already: the "
        "high-water mark of its resident set while it trains (*training*), which has gradients and "
        "AdamW's state in it; for `planner.torch.step` also while the step is made (*making*), what is "
        "resident then (*ready*: mostly the libraries that export and run graphs, which are the same for "
        "any network), and how far training goes above that.",
        "",
        "| network | budget | weights | PyTorch: training | step: making | ready | training | "
        "training, above ready |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_bytes_of(row) for row in rows),
        "",
    ]
    return "\n".join(lines)


def _times(row: Row) -> str:
    losses = [taken["loss"] for taken in row[EAGER]["taken"]]
    apart = off(row)
    return line(
        row["name"],
        row["budget"],
        f"×{ratio(row, 's'):.2f}",
        f"×{ratio(row, 'cpu_s'):.2f}",
        f"{losses[0]:.4f} -> {losses[-1]:.4f}",
        f"{apart[0]:.1e}, {apart[4]:.1e}, {max(apart):.1e}",
        f"{row[PLANNED]['made_s']:.1f} s",
    )


def _bytes_of(row: Row) -> str:
    eager, planned = row[EAGER]["bytes"], row[PLANNED]["bytes"]
    figures = [row[EAGER]["weights"], eager["trained"]]
    figures += [planned[when] for when in ("made", "ready", "trained")]
    figures.append(planned["trained"] - planned["ready"])
    return line(row["name"], row["budget"], *(f"{size / MIB:.0f}" for size in figures))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = program("reports.torch_step", __doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # of the processes that train
    known: dict[str, Row] = read_rows(RESULT, {})
    for name in () if options.page_only else options.rows or ROWS:
        known[name] = row_of(name)
        print(_times(known[name]), _bytes_of(known[name]), sep="\n", flush=True)
        write_rows(RESULT, known)
    PAGE.write_text(page([known[name] for name in ROWS if name in known]), encoding="utf-8")


if __name__ == "__main__":
    main()
