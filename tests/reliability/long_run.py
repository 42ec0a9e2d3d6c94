"""A long training run: `python -m tests.reliability.long_run [--steps 10000]`.

A training graph of some 300 nodes (`models.drawn`) is rewritten within a
budget, by recomputing and by swapping. The original and both rewritten models then train side by
side in one process, each in one session: the weights that a step gives are the next step's, and
batches come from one seed. After every step every output is compared bit for bit. The memory that
the process holds is sampled; its slope is that of the least squares line through the samples after
the first tenth.

Writes `reports/reliability/long_run.json`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from models import drawn as graphs
from planner import optimize
from planner.runtime.timing import own_bytes

NODES = 300
RESULT = Path(__file__).parents[2] / "reports" / "reliability" / "long_run.json"
PLANS = {"recompute": ("70%", "none"), "swap": ("70%", "only")}
_BATCHES = 64
_SAMPLES = 500
_SLOWEST_SHARE = 0.1  # of the run, at its start, which is left out of the slope

Arrays = dict[str, npt.NDArray[Any]]


class Training:
    """One model in one session, with its state."""

    def __init__(self, model: Path, seed: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]
        self.next = {n: n.removesuffix("_new") for n in self.names if n.endswith("_new")}
        self.shapes = {i.name: i.shape for i in self.session.get_inputs()}
        generator = np.random.default_rng(seed)
        self.state = {n: self.draw(generator, n) for n in self.next.values()}

    def draw(self, generator: np.random.Generator, name: str) -> npt.NDArray[np.float32]:
        """Values for an input."""
        shape = self.shapes[name]
        return (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def step(self, batch: Arrays) -> list[npt.NDArray[Any]]:
        """Run one step; its outputs."""
        outputs: list[Any] = self.session.run(self.names, {**batch, **self.state})
        found = dict(zip(self.names, outputs, strict=True))
        self.state = {state: found[name] for name, state in self.next.items()}
        return outputs


def differs(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether any bit does."""
    return one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes()


def train(steps: int, *, seed: int = 0, time_limit_s: float = 20.0) -> dict[str, Any]:
    """Plan, train, compare; what `long_run.json` holds."""
    with tempfile.TemporaryDirectory() as folder:
        original = Path(folder) / "original.onnx"
        nodes = graphs.save("transformer", NODES, original)
        models = {"original": original}
        for name, (budget, swap) in PLANS.items():
            models[name] = Path(folder) / f"{len(models)}.onnx"
            planned = optimize(
                original,
                budget=budget,
                swap=swap,  # pyright: ignore[reportArgumentType]
                output=models[name],
                time_limit_s=time_limit_s,
                verify=False,
            ).plan
            assert not planned.unchanged
        runs = {name: Training(path, seed) for name, path in models.items()}
    generator = np.random.default_rng(seed + 1)
    fed = [{"x": runs["original"].draw(generator, "x")} for _ in range(_BATCHES)]
    different = dict.fromkeys(PLANS, 0)
    losses: list[float] = []
    samples: list[tuple[int, int]] = []
    start = {name: array.copy() for name, array in runs["original"].state.items()}
    every = max(1, steps // _SAMPLES)
    began = time.monotonic()
    for step in range(steps):
        batch = fed[step % len(fed)]
        expected = runs["original"].step(batch)
        for name in PLANS:
            outputs = runs[name].step(batch)
            different[name] += any(map(differs, expected, outputs))
        losses.append(float(expected[0]))
        if step % every == 0:
            samples.append((step, own_bytes()))
        if step % max(1, steps // 20) == 0:
            print(
                f"step {step:,}: loss {losses[-1]:.4f}, {own_bytes() / 2**20:.1f} MiB", flush=True
            )
    last = runs["original"].state
    assert all(np.isfinite(array).all() and differs(array, start[n]) for n, array in last.items())
    late = [s for s in samples if s[0] >= _SLOWEST_SHARE * steps]
    slope = float(np.polyfit(*np.array(late, dtype=float).T, 1)[0]) if len(late) > 1 else 0.0
    return {
        "nodes": nodes,
        "steps": steps,
        "seed": seed,
        "onnxruntime": ort.__version__,
        "plans": {n: {"budget": b, "swap": s} for n, (b, s) in PLANS.items()},
        "outputs": len(runs["original"].names),
        "steps_that_differ": different,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "first_mib": late[0][1] / 2**20,
        "last_mib": late[-1][1] / 2**20,
        "most_mib": max(held for _, held in late) / 2**20,
        "least_mib": min(held for _, held in late) / 2**20,
        "slope_bytes_per_step": slope,
        "seconds": round(time.monotonic() - began, 1),
    }


def table(data: Mapping[str, Any]) -> str:
    """The part of the report."""
    rows = [
        f"| {name} | {plan['budget']} | {data['steps']:,} | {data['steps_that_differ'][name]} |"
        for name, plan in data["plans"].items()
    ]
    return "\n".join(
        [
            "| rewritten model | budget | steps | steps with any bit that differs |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            f"{data['nodes']} nodes, {data['outputs']} outputs compared at each step, loss "
            f"{data['first_loss']:.4f} -> {data['last_loss']:.4f}. Three sessions in one process held "
            f"{data['first_mib']:.1f} MiB after a tenth of the run and {data['last_mib']:.1f} MiB at "
            f"its end (between {data['least_mib']:.1f} and {data['most_mib']:.1f}): "
            f"{data['slope_bytes_per_step']:+.1f} bytes a step.",
        ]
    )


def main() -> None:
    """Train, write the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data = train(given.steps, seed=given.seed)
    RESULT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(table(data))


if __name__ == "__main__":
    main()
